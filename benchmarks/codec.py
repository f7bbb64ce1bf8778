"""What one core makes of whole tensors: speed each way, ratio, and how close to the order-0 bound.

Side by side in one run, pinned to one core: our frames as the pipeline makes them (checksums of raw and stored bytes
included), ZipNN, zstd at its usual levels, and a plain copy of memory as the scale. Then our own path with two threads
on two cores. The bound is the entropy of the split planes in windows of 64 Ki symbols, tables not counted; a coder
that finds repetitions may pass it. Speeds are medians, in GB/s of raw bytes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.coders import Coder, Ours, coders
from benchmarks.machine import RESULTS, append, machine
from benchmarks.states import Shape, trained
from s4async.codecs.policy import entropy_bits
from s4async.device.base import Bytes
from s4async.device.cpu import CpuDevice
from s4async.format.planes import dtype_of
from s4async.options import Options

MB, GB = 10**6, 10**9
WINDOW = 64 << 10  # symbols of one entropy table
SMALL = Options().small_bytes


@dataclass(frozen=True)
class Group:
    """Tensors of one dtype that are measured together; small ones joined, as frames join them."""

    name: str
    dtype: str
    items: list[Bytes]

    @property
    def nbytes(self) -> int:
        """Raw bytes."""
        return sum(item.size for item in self.items)


@dataclass(frozen=True)
class Row:
    """One coder on one group. ``stored`` and ``bound`` in percent of the raw bytes, speeds in GB/s of raw bytes."""

    group: str
    dtype: str
    coder: str
    raw_bytes: int
    bound: float
    stored: float
    encode: float
    decode: float


def main(argv: Sequence[str]) -> None:
    """Measure, print the table, append the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks codec", description=__doc__)
    parser.add_argument("--mb", type=float, default=32, help="raw MB of each group at most")
    parser.add_argument("--repeat", type=int, default=7, help="repetitions; the median counts")
    parser.add_argument(
        "--state", type=Path, help="a file of torch.save with a flat dict of tensors to measure instead"
    )
    parser.add_argument("--folder", type=Path, default=RESULTS / "states", help="where trained states are kept")
    parser.add_argument("--results", type=Path, default=RESULTS / "codec.jsonl")
    parser.add_argument("--tiny", action="store_true", help="a model of seconds, to see that everything runs")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    shape = Shape(width=64, layers=1, context=32, batch=2, steps=2, corpus_bytes=1 << 16) if options.tiny else Shape()
    groups = _cut(_of_file(options.state) if options.state else _of_training(options.folder, shape), options.mb)
    with _cores(1):
        rows = [row for group in groups for row in _measure(group, options.repeat)]
    _print(rows)
    scaling = {group.name: _scaling(group, options.repeat) for group in groups if group.name.endswith("weights")}
    for name, (encode, decode) in scaling.items():
        print(f"two threads on two cores, {name}: {encode:.2f} x encoding, {decode:.2f} x decoding")
    record = {"benchmark": "codec", "machine": machine(), "rows": [asdict(row) for row in rows], "scaling": scaling}
    append(options.results, record)


def _of_training(folder: Path, shape: Shape) -> list[Group]:
    """Weights and both moments of the float32 and bfloat16 recipes; weights cast to float16, as for inference."""
    groups = []
    for recipe in ("bf16", "fp32"):
        state = trained(recipe, folder, shape)
        for kind, name in (("model", "weights"), ("exp_avg", "exp_avg"), ("exp_avg_sq", "exp_avg_sq")):
            tensors = [tensor for key, tensor in state.items() if key.startswith(f"{kind}.")]
            groups.append(_group(f"{recipe} {name}", tensors))
            if recipe == "fp32" and kind == "model":
                groups.append(_group("fp16 weights", [tensor.half() for tensor in tensors]))
    return groups


def _of_file(path: Path) -> list[Group]:
    """The floating point tensors of a file, and those of float32 cast to the 16-bit types."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    tensors = [t for t in state.values() if torch.is_tensor(t) and t.is_floating_point()]
    groups = []
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        own = [t for t in tensors if t.dtype == dtype] or [t.to(dtype) for t in tensors if t.dtype == torch.float32]
        if own:
            groups.append(_group(f"{path.stem} {str(dtype).removeprefix('torch.')} weights", own))
    return groups


def _group(name: str, tensors: Sequence[torch.Tensor]) -> Group:
    arrays = [tensor.contiguous().reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
    items = [array for array in arrays if array.size >= SMALL]
    if small := [array for array in arrays if array.size < SMALL]:
        items.append(np.concatenate(small))
    return Group(name, str(tensors[0].dtype).removeprefix("torch."), items)


def _cut(groups: list[Group], mb: float) -> list[Group]:
    """No group larger than ``mb``: whole items while they fit, then a part of one."""
    cut = []
    for group in groups:
        left, items = int(mb * MB), []
        for item in group.items:
            items.append(item[: left // 16 * 16])
            left -= items[-1].size
        cut.append(Group(group.name, group.dtype, [item for item in items if item.size]))
    return cut


def _measure(group: Group, repeat: int) -> list[Row]:
    """Equality first; then every coder in turn, again and again, so that none has the quiet minute for itself."""
    found = list(coders(group.dtype))
    kept = {coder.name: [coder.keep(item) for item in group.items] for coder in found}
    for coder in found:
        for item, stored in zip(group.items, kept[coder.name], strict=True):
            back = np.empty_like(item)
            coder.decode(stored, back)
            if not np.array_equal(back, item):
                raise AssertionError(f"{coder.name} does not give back the bytes of {group.name}")
    seconds: dict[str, list[tuple[float, float]]] = {coder.name: [] for coder in found}
    for _ in range(repeat):
        for coder in found:
            seconds[coder.name].append(_once(coder, group, kept[coder.name]))
    bound = _bound_bytes(group)
    rows = []
    for coder in found:
        encode, decode = (statistics.median(times) for times in zip(*seconds[coder.name], strict=True))
        stored = sum(map(coder.nbytes, kept[coder.name]))
        speeds = (group.nbytes / GB / encode, group.nbytes / GB / decode)
        rows.append(Row(group.name, group.dtype, coder.name, group.nbytes, 100 * bound / group.nbytes,
                        100 * stored / group.nbytes, *speeds))  # fmt: skip
    return rows


def _once(coder: Coder, group: Group, kept: Sequence[object]) -> tuple[float, float]:
    """Seconds to encode and to decode all items."""
    encode = decode = 0.0
    for item, stored in zip(group.items, kept, strict=True):
        source, back = coder.ready(item), np.empty_like(item)
        back.fill(0)  # pages are there before the clock runs
        start = time.perf_counter()
        coder.encode(source)
        middle = time.perf_counter()
        coder.decode(stored, back)
        encode += middle - start
        decode += time.perf_counter() - middle
    return encode, decode


def _bound_bytes(group: Group) -> float:
    """Order-0 entropy of the split planes, one table per plane, item and window."""
    device, layout = CpuDevice(), dtype_of(group.dtype).layout
    bits = 0.0
    for item in group.items:
        planes = np.empty((layout.itemsize, item.size // layout.itemsize), np.uint8)
        device.split(item, layout, planes)
        for plane in planes:
            for at in range(0, plane.size, WINDOW):
                counts = np.bincount(plane[at : at + WINDOW], minlength=256)
                bits += entropy_bits(counts, corrected=False) * counts.sum()
    return bits / 8


def _scaling(group: Group, repeat: int) -> tuple[float, float]:
    """Speed of two threads on two cores over that of one thread, encoding and decoding. From the best times of each:
    whatever else runs on the second core would count against us alone."""
    times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    ours = Ours(group.dtype)
    kept = [ours.keep(item) for item in group.items]
    for _ in range(repeat):
        for threads, found in times.items():
            found.append(ours.parallel(group.items, kept, threads))
    best = {threads: [min(each) for each in zip(*found, strict=True)] for threads, found in times.items()}
    return best[1][0] / best[2][0], best[1][1] / best[2][1]


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """This process and its new threads on ``count`` of the cores it may use, where the system can pin."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _print(rows: Sequence[Row]) -> None:
    print(f"{'data':<28}{'MB':>6}{'bound %':>9}  {'coder':<10}{'stored %':>9}{'of bound':>10}{'in':>7}{'out':>7} GB/s")
    last = ""
    for row in rows:
        head = f"{row.group:<28}{row.raw_bytes / MB:>6.1f}{row.bound:>9.2f}" if row.group != last else " " * 43
        last = row.group
        print(f"{head}  {row.coder:<10}{row.stored:>9.2f}{100 * row.stored / row.bound:>9.1f}%"
              f"{row.encode:>7.2f}{row.decode:>7.2f}")  # fmt: skip
