"""Damage of every kind: one function per target, ``(data, rng) -> data``.

``raw`` changes bytes of an object and leaves its checksums wrong. The others know the structure: they take a good
object apart, change a few places and seal it again, so that what is behind the checksums is reached. The same
functions serve hypothesis (``test_fuzz``) and the coverage-guided fuzzer (``__main__``).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from s4async.errors import S4AsyncError
from s4async.format.planes import DTYPES, LAYOUTS
from s4async.state.dtypes import DTYPES as TENSOR_DTYPES
from s4async.state.tags import FLAGS, SPECS
from tests.fuzz.forge import BLOBS, FRAMES, REGIONS, Forged, seal_record, take_apart

__all__ = ["MUTATORS", "Mutator", "chunks", "manifest", "raw", "record", "skeleton"]

Mutator = Callable[[bytes, Random], bytes]

NUMBERS = (
    *(0, 1, -1, 2, 3, 4, 7, 8, 15, 16, 17, 64, 255, 256, 4096, 65535, 65536, 1 << 20, 1 << 30, (1 << 30) + 1),
    *((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 50, (1 << 50) + 1, 1 << 60, (1 << 60) + 1),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, -2, -16, -(1 << 31), -(1 << 63)),
)
WORDS = (
    *("", "a", "w", "x/y", "..", "../x", "/etc/passwd", "\0", "\u202e", "k" * 300, "cpu", "cuda:0", "cuda:x", "meta"),
    *("mps", "xla:0", "hpu", "raw", "constant", "zstd", "ans", "rounded", "delta", "xor", *LAYOUTS, *DTYPES),
)
DOCUMENT_WORDS = (
    *("", "a", "w", "key", "state", "inc", "pos", "entropy", "C", "F", "_values", "_offsets", "ragged_idx", "cpu"),
    *("meta", "cuda:1", "torch.qint8", "torch.quint8", "torch.qint32", "torch.per_tensor_affine", "torch.float16"),
    *("torch.per_channel_affine", "torch.sparse_csr", "torch.sparse_bsr", "torch.sparse_csc", "torch.strided"),
    *("<f8", "<u4", "|u1", "|b1", "|S0", "<U0", "|V0", "|V9", "<M8[ns]", "|O", "PCG64", "MT19937", "Philox", "SFC64"),
    *("int", "list", "PurePosixPath", "WindowsPath", "types.SimpleNamespace", "argparse.Namespace"),
    *("tests.state.classes_of_tests", "Config", "Color", "RED", "Access", "Point", "Marked", "Wrapper", "Frozen"),
    *("torch.nested._internal.nested_tensor", "NestedTensor", "builtins", "os", "system", "enum", "collections"),
)


def raw(data: bytes, rng: Random) -> bytes:
    """Bytes changed, cut, moved or repeated anywhere."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        _raw_once(changed, rng)
    return bytes(changed)


def _raw_once(data: bytearray, rng: Random) -> None:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 16, 48, 300))
    if rng.random() < 0.3:
        at = max(0, len(data) - rng.randrange(1, 200))  # footer and manifest, where most of the meaning is
    what = rng.randrange(7)
    if what == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif what == 1:
        data[at : at + size] = rng.randbytes(size)
    elif what == 2:
        del data[at : at + size]
    elif what == 3:
        data[at:at] = bytes([rng.randrange(256)]) * size
    elif what == 4:
        source = rng.randrange(len(data) + 1)
        data[at : at + size] = data[source : source + size]
    elif what == 5:
        del data[at:]
    else:
        number = rng.choice(NUMBERS)
        width = rng.choice((1, 2, 4, 8))
        data[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def manifest(data: bytes, rng: Random) -> bytes:
    """Fields of the manifest: regions, frames, extents, blobs, and everything beside them."""
    forged = _apart(data)
    if forged is None:
        return raw(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _manifest_once(forged, rng)
    return forged.sealed()


def _manifest_once(forged: Forged, rng: Random) -> None:
    fields = forged.manifest
    what = rng.randrange(12)
    if what == 0:
        fields[:] = _listed(_changed(fields, rng, WORDS))
    elif what <= 6 and len(fields) > FRAMES:
        which = rng.choice((REGIONS, FRAMES, FRAMES, FRAMES))
        fields[which] = _changed(fields[which], rng, WORDS)
    elif what == 7:
        forged.version, forged.reader = rng.choice(NUMBERS) & 0xFFFF, rng.choice((1, 1, 2, 0xFFFF))
    elif what == 8:
        forged.frames = raw(forged.frames, rng)
    elif what == 9:
        _add_constant_region(forged, rng)
    else:
        _swap_inside(fields, rng)


def _add_constant_region(forged: Forged, rng: Random) -> None:
    """A region that costs no stored bytes, whatever its size, and perhaps a tensor of it."""
    with contextlib.suppress(IndexError, TypeError, AttributeError):  # of a manifest that was damaged before
        regions, frames = forged.manifest[REGIONS], forged.manifest[FRAMES]
        nbytes = rng.choice((0, 1, 4096, 1 << 20, 1 << 30, 1 << 34, 1 << 50))
        regions.append(["more", "uint8", nbytes, "cpu"])
        for at in range(0, min(nbytes, 1 << 33), 1 << 30):
            size = min(1 << 30, nbytes - at)
            blob = [0, "constant", size, 0, 0, 0, [], rng.randbytes(1)]
            frames.append(["uint8", "bytes:1", "", None, [[len(regions) - 1, at, size, 0]], [blob]])
        if rng.random() < 0.7:
            version, tokens, blobs, records = forged.skeleton
            tensor = [tag for tag, spec in SPECS.items() if spec.name == "tensor"]
            items = [tag for tag, spec in SPECS.items() if spec.name == "list"]
            records = [*records, [len(regions) - 1, 0, "uint8", [nbytes], [1], 0]]
            forged.skeleton = [version, [*items, 2, *tokens, *tensor], blobs, records]


def _swap_inside(fields: list[Any], rng: Random) -> None:
    """Two records of one list exchanged, or one repeated: order is what gives frames their offsets."""
    lists = [field for field in fields[REGIONS : FRAMES + 1] if isinstance(field, list) and len(field) > 1]
    if lists:
        chosen = rng.choice(lists)
        i, j = rng.randrange(len(chosen)), rng.randrange(len(chosen))
        chosen[i], chosen[j] = (chosen[j], chosen[i]) if rng.random() < 0.7 else (chosen[i], chosen[i])


def skeleton(data: bytes, rng: Random) -> bytes:
    """The document that describes the state: tokens, byte strings and tensor records."""
    forged = _apart(data)
    if forged is None or not _is_document(forged.skeleton):
        return raw(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        _skeleton_once(forged, rng)
    return forged.sealed()


def _is_document(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(isinstance(column, list) for column in value[1:])


def _skeleton_once(forged: Forged, rng: Random) -> None:
    tokens, blobs, records = forged.skeleton[1:]
    what = rng.randrange(10)
    if what <= 2 and tokens:
        tokens[rng.randrange(len(tokens))] = _token(rng)
    elif what == 3:
        at, size = rng.randrange(len(tokens) + 1), rng.randrange(1, 6)
        source = rng.randrange(len(tokens) + 1)
        tokens[at : at + rng.choice((0, size))] = tokens[source : source + rng.choice((0, size, 3 * size))]
    elif what <= 5 and records:
        at = rng.randrange(len(records))
        records[at] = _changed_record(records[at], rng, forged)
    elif what == 6:
        blobs[:] = _listed(_changed(blobs, rng, DOCUMENT_WORDS))
    elif what == 7:
        forged.skeleton[rng.randrange(1, 4)] = _changed(forged.skeleton[rng.randrange(1, 4)], rng, DOCUMENT_WORDS)
        if not _is_document(forged.skeleton):
            forged.skeleton[1:] = [tokens, blobs, records]
    else:
        branch = Branch(rng, len(forged.manifest[REGIONS]) if len(forged.manifest) > REGIONS else 0)
        branch.node(rng.choice((1, 2, 3)))
        items = next(tag for tag, spec in SPECS.items() if spec.name == "list")
        tokens[:] = [items, 2, *branch.tokens, *tokens]
        blobs[:0], records[:0] = branch.blobs, branch.records


def _token(rng: Random) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(tuple(SPECS)),
        lambda: rng.choice(tuple(SPECS)),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(DOCUMENT_WORDS),
        lambda: rng.choice((None, True, False, 0.5, -0.0, float("nan"), float("inf"))),
    )
    return rng.choice(kinds)()


def _changed_record(wire: Any, rng: Random, forged: Forged) -> Any:
    if not isinstance(wire, list) or len(wire) != 6 or rng.random() < 0.1:
        return _changed(wire, rng, DOCUMENT_WORDS)
    region, offset, dtype, shape, strides, flags = wire
    what = rng.randrange(8)
    if what == 0:
        region = rng.randrange(len(forged.manifest[REGIONS]) + 1)
    elif what == 1:
        offset = rng.choice((*NUMBERS, 4, 8, 12, 24))
    elif what == 2:
        dtype = rng.choice(tuple(TENSOR_DTYPES))
    elif what == 3 and isinstance(shape, list):
        shape = _changed(shape, rng, ())
    elif what == 4 and isinstance(strides, list):
        strides = _changed(strides, rng, ())
    elif what == 5:
        flags = rng.choice((*range(FLAGS + 1), FLAGS + 1))
    elif what == 6 and isinstance(shape, list) and isinstance(strides, list):
        at = rng.randrange(len(shape) + 1)
        shape, strides = [*shape[:at], rng.choice(NUMBERS), *shape[at:]], [*strides[:at], 0, *strides[at:]]
    elif isinstance(shape, list) and isinstance(strides, list):
        shape, strides = shape[::-1], strides[::-1]
    return [region, offset, dtype, shape, strides, flags]


class Branch:
    """A subtree that follows the table of tags, with values that need not make sense."""

    def __init__(self, rng: Random, regions: int) -> None:
        self.rng, self.regions = rng, regions
        self.tokens: list[Any] = []
        self.blobs: list[bytes] = []
        self.records: list[Any] = []

    def node(self, depth: int) -> None:
        if depth <= 0 or self.rng.random() < 0.2:
            self.tokens.append(self.rng.choice((None, True, False, 1.5, *DOCUMENT_WORDS)))
            return
        tag = self.rng.choice(tuple(SPECS))
        spec = SPECS[tag]
        self.tokens.append(tag)
        for letter in spec.args:
            self.argument(letter, depth - 1)
        if spec.body:
            count = self.rng.randrange(4)
            self.tokens.append(count)
            if spec.body in ("pairs", "fields"):
                self.tokens += [self.rng.choice(DOCUMENT_WORDS) for _ in range(count)]
            for _ in range(count):
                self.node(depth - 1)

    def argument(self, letter: str, depth: int) -> None:
        rng = self.rng
        if letter in "NK":
            self.node(depth)
        elif letter == "b":
            self.blobs.append(rng.randbytes(rng.choice((0, 1, 4, 8, 16, 40))))
        elif letter == "t":
            self.records.append(self.record())
        elif letter in "ISL":
            count = rng.randrange(4)
            self.tokens.append(count)
            for _ in range(count):
                self.argument({"I": "i", "S": "s", "L": "N"}[letter], depth)
        else:
            scalars: dict[str, Callable[[], Any]] = {
                "i": lambda: rng.choice((0, 0, 1, 2, 3, *NUMBERS)),
                "n": lambda: rng.choice((None, *NUMBERS)),
                "s": lambda: rng.choice(DOCUMENT_WORDS),
                "f": lambda: rng.choice((0.0, 1.0, float("nan"), 1e308)),
                "y": lambda: rng.random() < 0.5,
            }
            self.tokens.append(scalars[letter]())

    def record(self) -> list[Any]:
        rng = self.rng
        shape = [rng.choice((0, 1, 1, 2, 2, 3, 4, 8)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3)))]
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.insert(0, rng.choice((step, step, step, 0, 1)))
            step *= max(1, size)
        dtype = rng.choice(("float32", "int64", "int64", "int8", "uint8", "int32", rng.choice(tuple(TENSOR_DTYPES))))
        flags = rng.choice((0, 0, 0, rng.randrange(FLAGS + 1)))
        return [rng.randrange(self.regions + 1), rng.choice((0, 0, 8, 16)), dtype, shape, strides, flags]


def chunks(data: bytes, rng: Random) -> bytes:
    """What the codec is given: stored chunks with a checksum that is right, and the sizes that go with them."""
    forged = _apart(data)
    coded = _coded(forged) if forged is not None else []
    if forged is None or not coded:
        return manifest(data, rng)
    for _ in range(rng.choice((1, 1, 2))):
        frame, plane, blob = rng.choice(coded)
        start, end = forged.blob_at(frame, plane)
        stored, at = [], start
        for size in blob[6]:
            stored.append(forged.frames[at : min(at + size, end)])
            at += size
        if stored:
            which = rng.randrange(len(stored))
            raw_nbytes = min(blob[5], blob[2] - which * blob[5])
            stored[which] = _chunk(stored[which], raw_nbytes, rng)
            forged.replace_blob(frame, plane, stored)
    return forged.sealed()


def _coded(forged: Forged) -> list[tuple[int, int, list[Any]]]:
    found = []
    try:
        for index, frame in enumerate(forged.manifest[FRAMES]):
            for plane, blob in enumerate(frame[BLOBS]):
                if blob[1] == "zstd" and all(type(n) is int and n >= 0 for n in (*blob[2:6], *blob[6])) and blob[5]:
                    found.append((index, plane, blob))
        for index, plane, _ in found:
            forged.blob_at(index, plane)
    except (IndexError, TypeError, ValueError):
        return []
    return found


def _chunk(stored: bytes, raw_nbytes: int, rng: Random) -> bytes:
    """Another zstd stream for a chunk of ``raw_nbytes``."""
    magic = b"\x28\xb5\x2f\xfd"
    what = rng.randrange(9)
    if what <= 2 or len(stored) < 8:
        return raw(stored, rng) or b"\0"
    if what == 3:  # a header of our own: any descriptor, window, size
        size = rng.choice((raw_nbytes, raw_nbytes - 1, raw_nbytes + 1, *NUMBERS)) & ((1 << 64) - 1)
        head = bytes([0xC0 | rng.choice((0, 0x20, 0x04, 0x08, 0x03)), rng.randrange(256)])
        return magic + head + struct.pack("<Q", size) + stored[rng.choice((5, 6, 7, 9)) :]
    if what == 4:  # runs: three bytes of header and one of content stand for as much as a block may hold
        block = rng.choice((raw_nbytes, 1 << 17, (1 << 21) - 1, 1))
        runs = [(block << 3 | 2).to_bytes(3, "little") + b"A" for _ in range(rng.choice((1, 2, 50)))]
        runs[-1] = (block << 3 | 3).to_bytes(3, "little") + b"A"
        return magic + bytes([0xC0, 0x58 + rng.randrange(160)]) + struct.pack("<Q", raw_nbytes) + b"".join(runs)
    if what == 5:
        return stored + rng.choice((stored, b"\0", magic, b"\x50\x2a\x4d\x18\x04\0\0\0abcd"))
    if what == 6:
        return b"\x50\x2a\x4d\x18" + struct.pack("<I", rng.choice((0, 8, 1 << 31))) + stored
    if what == 7:
        return stored[: rng.randrange(len(stored))] or b"\0"
    return rng.randbytes(min(raw_nbytes, rng.choice((1, 8, 40))) or 1)


def record(data: bytes, rng: Random) -> bytes:
    """A commit record; its checksum is mostly right."""
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return raw(data, rng)
    if not isinstance(fields, dict) or rng.random() < 0.15:
        return raw(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        fields = _changed(fields, rng, RECORD_WORDS)
    try:
        return seal_record(fields)
    except (TypeError, OverflowError, ValueError):
        return raw(data, rng)


RECORD_WORDS = (
    *("commit", "", ".", "..", "../x.s4", "/etc/passwd", "data/../../x", "data//x", "steps/00000000000000000002.json"),
    *(
        "data/00000000000000000002-x.s4",
        "data/x\0",
        "data/" + "k" * 2000,
        ".x.s4tmp",
        "data\\x",
        "\u202e",
        "memory://x",
    ),
    *("key", "rank", "nbytes", "uuid", "step", "objects", "parent", "version"),
)


def _apart(data: bytes) -> Forged | None:
    try:
        return take_apart(data)
    except (S4AsyncError, msgspec.DecodeError, ValueError, TypeError, IndexError, RecursionError):
        return None


def _changed(value: Any, rng: Random, words: tuple[str, ...]) -> Any:
    """A copy of a value of lists, numbers, texts and bytes with one place changed, at a random depth."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], _changed(value[at], rng, words), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(tuple(value))
        if rng.random() < 0.15:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: _changed(value[key], rng, words)}
    if rng.random() < 0.1:
        return _any(rng, words)
    if isinstance(value, list):
        return _changed_list(value, rng, words)
    if isinstance(value, dict):
        return {**value, rng.choice(words): _any(rng, words)}
    if type(value) is int:
        near = (value - 1, value + 1, 2 * value, value // 2, -value, value ^ (1 << rng.randrange(32)))
        return rng.choice((*near, *NUMBERS))
    if isinstance(value, bytes):
        return raw(value, rng)
    return _any(rng, words) if not isinstance(value, str) or not words else rng.choice(words)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _changed_list(value: list[Any], rng: Random, words: tuple[str, ...]) -> list[Any]:
    at = rng.randrange(len(value) + 1)
    what = rng.randrange(6)
    if what == 0:
        return value[:at] + value[at + 1 :]
    if what == 1:
        return [*value[:at], _any(rng, words), *value[at:]]
    if what == 2:
        return value[:at] + value[at : at + 1] * rng.choice((2, 3, 50)) + value[at + 1 :]
    if what == 3:
        return value[:at]
    if what == 4:
        return []
    return [value] if rng.random() < 0.3 else value[::-1]


def _any(rng: Random, words: tuple[str, ...]) -> Any:
    """A value of any type that the wire knows."""
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(words) if words else "w",
        lambda: rng.choice((None, True, False, 1.5)),
        list,
        lambda: [rng.choice(NUMBERS)],
        lambda: {"a": 1},
    )
    return rng.choice(kinds)()


MUTATORS: dict[str, Mutator] = {
    "raw": raw,
    "manifest": manifest,
    "skeleton": skeleton,
    "chunks": chunks,
    "record": record,
}
