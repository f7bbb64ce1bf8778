"""The structure of the package as rules: layers, confinement of libraries, sizes, public names, cost of an import.

The tables come first and are what one edits; the checks read the sources without importing them. Every exception is
an entry with its reason, and an entry that is no longer needed fails, so that the tables stay true.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "s4async"

# A module imports from lower layers, its own package, and the siblings named in SIBLINGS. ARCHITECTURE.md draws this.
LAYERS: dict[int, set[str]] = {
    0: {"frame", "errors", "options", "trace", "version", "format"},
    1: {"device", "codecs", "storage", "state"},
    2: {"pipeline"},
    3: {"engine", "handle", "catalog"},
    4: {"saving", "loading", "pending"},
    5: {"checkpointer", "inspection"},
    6: {"api"},
    7: {"cli", "integrations", "runner", "__main__"},
}
TOP = 7  # modules of this layer use public names only

# Within a layer: importer -> imported. Cycles are excluded below.
SIBLINGS: dict[tuple[str, str], str] = {
    ("options", "errors"): "options are checked where they are made",
    ("format", "errors"): "a broken rule of the format is an error of the tree",
    ("format", "frame"): "a manifest is a list of frames",
    ("codecs", "device"): "a codec for a device works on that device's memory",
    ("handle", "engine"): "a handle is completed by the engine and cancels its job",
    ("saving", "pending"): "a save takes the slot that bounds how many run",
    ("checkpointer", "inspection"): "a store can look at and check its own steps",
    ("__main__", "cli"): "`python -m s4async` is the command line",
}

# The pipeline sees protocols: these hold concrete drivers and are reached through the registries.
CONCRETE = {
    "device": {"base", "pool"},  # all other modules of the package are concrete
    "codecs": {"base", "policy"},
    "storage": {"base"},
}
PROTOCOLS_ONLY = {"pipeline", "catalog"}

# library -> the modules that may import it (a package stands for all its modules)
CONFINED: dict[str, set[str]] = {
    "aiobotocore": {"storage.s3"},
    "asyncio": {"storage", "pipeline", "catalog", "engine", "handle", "saving", "loading", "checkpointer", "api"},
    "backports": {"codecs.zstd"},
    "botocore": {"storage.s3"},
    "compression": {"codecs.zstd"},
    "ctypes": {"device.nvcomp", "device.cuda"},
    "cupy": {"device.cuda", "device.kernels"},
    "multiprocessing": set(),
    "pickle": {"state"},
    "subprocess": {"runner"},
    "torch": {"state", "device", "pipeline", "saving", "loading", "integrations", "cli", "runner"},
    "torch.distributed": {"integrations"},
    "uvloop": {"engine"},
    "zstandard": {"codecs.zstd"},
}
READS_ENVIRONMENT = {"options"}  # the only module that looks at environment variables

MODULE_LINES, FUNCTION_LINES = 300, 60
TOO_LONG: dict[str, str] = {}  # "module" or "module:Class.function" -> why it is better in one piece

PUBLIC = [
    "FORMAT_VERSION",
    "CheckpointInfo",
    "Checkpointer",
    "Entry",
    "Inspection",
    "LoadHandle",
    "LoadReport",
    "Options",
    "Progress",
    "SaveHandle",
    "SaveReport",
    "__version__",
    "errors",
    "inspect",
    "load",
    "load_async",
    "load_checkpoint",
    "save",
    "save_async",
    "save_checkpoint",
    "verify",
    "wait_all",
]
NOT_LOADED = {"aiobotocore", "botocore", "aiohttp", "cupy", "matplotlib", "torch.distributed.checkpoint", "uvloop"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


@dataclass(frozen=True)
class Module:
    """One source file. ``name``: dotted, without the package; empty for the package itself."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def top(self) -> str:
        """The module or package right under ``s4async`` that this is, or belongs to."""
        return self.name.partition(".")[0]


@cache
def modules() -> dict[str, Module]:
    """All modules by name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found[name] = Module(name, path, ast.parse(text, str(path)), text.count("\n"))
    return found


@cache
def imports(module: Module) -> list[tuple[str, int, bool]]:
    """What a module imports: dotted name, line, whether at run time (not under ``if TYPE_CHECKING``)."""
    typing_only = {
        id(inner)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = []
    for node in ast.walk(module.tree):
        runtime = id(node) not in typing_only
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, runtime) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno, runtime) for alias in node.names]
    return found


def internal(module: Module, *, runtime_only: bool = False) -> Iterator[tuple[str, int]]:
    """The package's own modules that ``module`` imports, by name, with the line."""
    for name, line, runtime in imports(module):
        if name.partition(".")[0] != PACKAGE or (runtime_only and not runtime):
            continue
        target = name.removeprefix(PACKAGE).removeprefix(".")
        if target not in modules():
            target = target.rpartition(".")[0]  # a name inside the module
        yield target, line


def layer(top: str) -> int:
    """The layer of a module right under the package."""
    return next(number for number, names in LAYERS.items() if top in names)


def where(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


def report(faults: list[str], rule: str) -> None:
    assert not faults, "\n".join([rule, *sorted(set(faults))])


def test_every_module_has_a_layer() -> None:
    known = set().union(*LAYERS.values())
    report(sorted({m.top for m in modules().values() if m.top} - known), "give these a layer in LAYERS:")


def test_imports_point_down() -> None:
    faults, used = [], set()
    for module in modules().values():
        if not module.top or layer(module.top) == TOP:
            continue  # the package itself lists the public names; the top has a rule of its own
        for target, line in internal(module):
            top = target.partition(".")[0]
            if top == module.top:
                continue
            if (module.top, top) in SIBLINGS:
                used.add((module.top, top))
            elif not top or layer(top) >= layer(module.top):
                faults.append(f"{where(module, line)}: {module.name} (L{layer(module.top)}) imports {top or PACKAGE}")
    report(faults, "a module imports from lower layers or its own package:")
    idle = {pair for pair in SIBLINGS if layer(pair[0]) != TOP} - used
    report([f"{a} -> {b}" for a, b in idle if modules_exist(a, b)], "SIBLINGS that nobody uses:")


def modules_exist(*tops: str) -> bool:
    return set(tops) <= {m.top for m in modules().values()}


def test_the_top_layer_uses_public_names_only() -> None:
    faults = []
    for module in modules().values():
        if module.top not in LAYERS[TOP]:
            continue
        for target, line in internal(module):
            top = target.partition(".")[0]
            allowed = not target or top in {module.top, "errors", "version"} or (module.top, top) in SIBLINGS
            if not allowed:
                faults.append(f"{where(module, line)}: imports {PACKAGE}.{target}")
    report(faults, f"{', '.join(sorted(LAYERS[TOP]))} use what `import {PACKAGE}` gives and nothing else:")


def test_there_are_no_import_cycles() -> None:
    """At run time, wherever in the module the import stands."""
    graph = {m.name: {t for t, _ in internal(m, runtime_only=True)} - {m.name} for m in modules().values()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path[path.index(name) :], name))}"
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            visit(target, (*path, name))
        done.add(name)

    for name in graph:
        if name:  # the package itself imports everything, and the top imports it
            visit(name, ())


def test_the_pipeline_sees_protocols_only() -> None:
    faults = []
    for module in modules().values():
        if module.top not in PROTOCOLS_ONLY:
            continue
        for target, line in internal(module):
            top, _, rest = target.partition(".")
            if top in CONCRETE and rest and rest not in CONCRETE[top]:
                faults.append(f"{where(module, line)}: imports {target}")
    report(faults, "these know protocols; drivers come through the registries:")


@pytest.mark.parametrize("library", sorted(CONFINED))
def test_library_is_confined(library: str) -> None:
    faults = []
    for module in modules().values():
        if {module.name, module.top} & CONFINED[library]:
            continue
        faults += [
            f"{where(module, line)}: imports {name}"
            for name, line, _ in imports(module)
            if f"{name}.".startswith(f"{library}.")
        ]
    report(faults, f"{library} belongs in {', '.join(sorted(CONFINED[library])) or 'no module'} only:")


def test_only_options_reads_the_environment() -> None:
    faults = [
        where(module, node.lineno)
        for module in modules().values()
        if module.name not in READS_ENVIRONMENT
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
    ]
    report(faults, f"environment variables are read in {', '.join(READS_ENVIRONMENT)} only:")


def test_errors_come_from_the_tree() -> None:
    """No bare built-in error and no ``assert`` where a caller's mistake or a bad file is told."""
    faults = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Assert):
                faults.append(f"{where(module, node.lineno)}: assert")
            elif isinstance(node, ast.Raise) and node.exc is not None:
                name = ast.unparse(node.exc).partition("(")[0]
                if name in {"Exception", "BaseException", "RuntimeError", "ValueError", "NotImplementedError"}:
                    faults.append(f"{where(module, node.lineno)}: raise {name}")
    report(faults, "raise an error of s4async.errors:")


def test_sizes() -> None:
    sizes: dict[str, tuple[int, int]] = {}  # name -> lines, limit
    for module in modules().values():
        sizes[module.name] = module.lines, MODULE_LINES
        for name, node in functions(module.tree):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            sizes[f"{module.name}:{name}"] = (node.end_lineno or first) - first + 1, FUNCTION_LINES
    over = {name: size for name, size in sizes.items() if size[0] > size[1]}
    faults = [f"{name}: {lines} lines, limit {limit}" for name, (lines, limit) in over.items() if name not in TOO_LONG]
    report(faults, "split these, or say in TOO_LONG why not:")
    report(sorted(set(TOO_LONG) - set(over)), "short again, or gone; remove from TOO_LONG:")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def test_modules_have_telling_names_and_a_docstring() -> None:
    faults = [f"{m.name}: vague" for m in modules().values() if VAGUE_NAMES & set(m.name.split("."))]
    faults += [
        f"{m.name or PACKAGE}: no docstring"
        for m in modules().values()
        if m.tree.body and not ast.get_docstring(m.tree)
    ]
    report(faults, "a module says what it is for:")


def test_the_public_names_are_these() -> None:
    listed = [
        ast.literal_eval(node.value)
        for node in modules()[""].tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert listed == [PUBLIC], "a public name is for ever: change PUBLIC on purpose"


def test_importing_the_package_loads_nothing_optional() -> None:
    """In a fresh interpreter. What torch itself loads is torch's affair."""
    code = (
        "import sys, json, torch; before = set(sys.modules); import s4async as package;"
        f"print(json.dumps([sorted(set(sys.modules) - before), [n for n in {PUBLIC} if hasattr(package, n)]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    loaded, names = json.loads(done.stdout)
    report(sorted(NOT_LOADED & set(loaded)), "loaded by `import s4async`, needed by few:")
    assert names == PUBLIC


def test_the_drawing_shows_the_layers() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lines = {
        int(number): set(re.findall(r"\w+", rest)) for number, rest in re.findall(r"^ L(\d)(.*)$", text, re.MULTILINE)
    }
    built = {m.top for m in modules().values()} - {"__main__"}
    missing = {number: sorted((names & built) - lines.get(number, set())) for number, names in LAYERS.items()}
    assert not any(missing.values()), f"ARCHITECTURE.md, Layers: missing {missing}"
