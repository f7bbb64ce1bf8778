"""An independent witness of a state: one SHA-256 digest per leaf, made with ``hashlib`` alone.

A tensor's digest covers dtype, shape, strides and every byte; any other leaf's covers its type and ``repr``. The
witness knows nothing of s4async, so that equality of witnesses is not s4async's own opinion of itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

__all__ = ["Digests", "differences", "digests"]

Digests = dict[str, str]  # path of a leaf -> hexadecimal digest


def digests(state: object) -> Digests:
    """The digest of every leaf of ``state``, by path."""
    return {path: _digest(leaf) for path, leaf in _leaves(state, "")}


def differences(expected: Digests, found: Digests) -> list[str]:
    """Paths of leaves that are missing, unexpected or different."""
    return sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))


def _leaves(node: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        yield path or "/", type(node)
        for key, value in node.items():
            yield from _leaves(value, f"{path}/{key}")
    elif isinstance(node, list | tuple):
        yield path or "/", type(node)
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}/{index}")
    else:
        yield path, node


def _digest(leaf: object) -> str:
    if not isinstance(leaf, Tensor):
        return hashlib.sha256(f"{type(leaf)} {leaf!r}".encode()).hexdigest()
    head = f"{leaf.dtype} {tuple(leaf.shape)} {leaf.stride()}".encode()
    data = leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.sha256(head)
    digest.update(data.data)
    return digest.hexdigest()
