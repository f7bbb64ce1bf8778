"""The documents do what they say: Python blocks run, links lead somewhere, make verbs exist.

In every Markdown file of the root and of ``docs/`` a block fenced ``python`` is run, in order, all blocks of one file
in one fresh interpreter in an empty folder, with warnings as errors. ``python no-run`` is shown but not run (it must
still parse). Other languages are not looked at, but Python that hides in them, or in a fence without a language, fails.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUN, SHOWN = "python", "python no-run"
OTHER_LANGUAGES = {"console", "text", "sh", "bash", "toml", "yaml", "json", "ini", "dockerfile", "hcl", "mermaid", ""}

_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(.*?)\s*$")
_PYTHON = re.compile(
    r"^\s*(import \w|from [\w.]+ import |def \w+\(|class \w+|with .+:$|>>> )|\bs4async\.\w+\(", re.MULTILINE
)
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line``: of its first line, counted from 1. ``indent``: what the fence stands in by."""

    language: str
    line: int
    text: str


@cache
def split(document: Path) -> tuple[list[Block], list[tuple[int, str]]]:
    """The fenced blocks of a document, and its lines outside them with their numbers."""
    blocks, prose = [], []
    inside: tuple[str, str, int, list[str]] | None = None  # fence, language, first line, lines
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None:
            if fence:
                inside = fence[2], fence[3], number + 1, []
            else:
                prose.append((number, line))
        elif fence and fence[2].startswith(inside[0]) and not fence[3]:
            blocks.append(Block(inside[1], inside[2], textwrap.dedent("\n".join(inside[3]))))
            inside = None
        else:
            inside[3].append(line)
    assert inside is None, f"{document.name}:{inside[2] - 1}: this fence is never closed"
    return blocks, prose


def name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_block_says_what_it_is(document: Path) -> None:
    faults = []
    for block in split(document)[0]:
        place = f"{name(document)}:{block.line}"
        if block.language in {RUN, SHOWN}:
            compile(block.text, place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        elif block.language not in OTHER_LANGUAGES:
            faults.append(f"{place}: language {block.language!r}; use {RUN!r}, {SHOWN!r} or one of OTHER_LANGUAGES")
        elif _PYTHON.search(block.text) and block.language in {"", "text"}:
            faults.append(f"{place}: Python without its mark; fence it as {RUN!r} or {SHOWN!r}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.language == RUN for b in split(d)[0])], ids=name)
def test_blocks_run(document: Path, tmp_path: Path) -> None:
    """As one program whose line numbers are the document's."""
    lines: list[str] = []
    for block in split(document)[0]:
        if block.language == RUN:
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    program = tmp_path / document.name
    program.write_text("\n".join([*lines, ""]), encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("S4ASYNC_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{name(document)}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    faults = []
    for number, line in split(document)[1]:
        for target in _LINK.findall(_CODE_SPAN.sub("", line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue  # another site
            path, _, anchor = target.partition("#")
            found = (document.parent / path).resolve() if path else document
            if not found.exists():
                faults.append(f"{name(document)}:{number}: {target}: no such file")
            elif anchor and found.suffix == ".md" and anchor not in set(anchors(found)):
                faults.append(f"{name(document)}:{number}: {target}: no such heading")
    assert not faults, "\n".join(faults)


def anchors(document: Path) -> Iterator[str]:
    """The anchors that Markdown viewers give to headings."""
    for _, line in split(document)[1]:
        if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
            yield re.sub(r"[^\w\- ]", "", heading[1].lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_make_verbs_exist(document: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    verbs = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    blocks, prose = split(document)
    code = [block.text for block in blocks if not block.language.startswith(RUN)]
    code += [span for _, line in prose for _, span in _CODE_SPAN.findall(line)]
    said = {verb for text in code for verb in re.findall(r"(?:^|[\s$;&])make ([a-z][a-z-]*)", text)}
    assert said <= verbs, f"{name(document)}: make has no {', '.join(sorted(said - verbs))}"
