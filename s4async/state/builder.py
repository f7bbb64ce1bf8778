"""Builder: nodes and storages -> objects. The dispatch from a tag to the function that builds it.

Views of one region are views of one storage, so ties come back by themselves. Whatever a build function raises that
is not ours becomes a ``FormatError`` with the path: the document promised something that its data cannot be. Holds no
state but the path of the node at work, and never unpickles unless it was told to.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from s4async.errors import FormatError, S4AsyncError, UnsafeLoadError
from s4async.state.document import Node, Record
from s4async.state.dtypes import DTYPES
from s4async.state.regions import bytes_of, strided
from s4async.state.tags import BLOB, PICKLE, RUN, SPECS, VALUE

__all__ = ["AssembleFunction", "BuildFunction", "Builder", "Tables"]

BuildFunction = Callable[["Builder", Node], object]  # of a leaf
AssembleFunction = Callable[["Builder", Node, list[object]], object]  # of a container, from its built children


class Tables(NamedTuple):
    """The functions of all tags."""

    leaves: Mapping[int, BuildFunction]
    containers: Mapping[int, AssembleFunction]


class Builder:
    """Builds the objects of one document. ``storages``: by region index, on the devices the tensors shall have."""

    __slots__ = ("_containers", "_leaves", "_storages", "_trail", "_weights_only")

    def __init__(
        self,
        tables: Tables,
        storages: Mapping[int, torch.UntypedStorage],
        weights_only: bool,
    ) -> None:
        self._leaves, self._containers = tables
        self._storages = storages
        self._weights_only = weights_only
        self._trail: list[str] = []

    @property
    def path(self) -> str:
        """Of the node being built."""
        return "/".join(self._trail)

    def build(self, node: Node) -> object:
        """The object of a node. Raises ``FormatError``, ``UnsafeLoadError``, ``UnsupportedError``.

        One Python frame per level of nesting, so that the depth that a skeleton allows is far below Python's limit.
        """
        if node.tag == VALUE:
            return node.args[0]
        try:
            assemble = self._containers.get(node.tag)
            if assemble is None:
                return self._leaves[node.tag](self, node)
            parts = []
            for name, child in zip(node.names(), node.children, strict=True):
                self._trail.append(name)
                parts.append(self.build(child))
                self._trail.pop()
            return assemble(self, node, parts)
        except (S4AsyncError, MemoryError):
            raise
        except Exception as error:  # constructors of many libraries, fed by an untrusted document
            raise FormatError(f"{self.path!r}: the record of a {SPECS[node.tag].name} is wrong: {error!r}") from error

    def build_at(self, node: Node, path: str) -> object:
        """The object of a node that is built by itself; ``path`` is for messages."""
        self._trail = [path] if path else []
        return self.build(node)

    def view(self, record: Record) -> torch.Tensor:
        """The strided tensor of a record, sharing the region's storage."""
        dtype = DTYPES[record.dtype]
        storage = self._storage(record.region)
        start = record.offset // dtype.itemsize
        return strided(storage, storage.device, dtype.dtype, start, record.shape, record.strides)

    def payload(self, node: Node) -> bytes:
        """The bytes of a BLOB or RUN node, a copy."""
        return self.raw(node).tobytes()

    def raw(self, node: Node) -> npt.NDArray[np.uint8]:
        """The bytes of a BLOB or RUN node where they are; on the host, and not to be kept."""
        if node.tag == BLOB:
            return np.frombuffer(node.args[0], np.uint8)
        if node.tag != RUN:
            raise FormatError(f"{self.path!r}: rule 'a payload is a byte string or a run': found tag {node.tag}")
        record: Record = node.args[0]
        if record.dtype != "uint8" or record.strides != (1,):
            raise FormatError(f"{self.path!r}: rule 'a run is contiguous uint8': {record}")
        storage = self._storage(record.region)
        flat = bytes_of(storage, storage.device, record.offset, record.shape[0])
        array: npt.NDArray[np.uint8] = flat.cpu().numpy()
        return array

    def unpickle(self, node: Node) -> object:
        if self._weights_only:
            raise UnsafeLoadError(
                f"{self.path!r}: a pickled object; load with weights_only=False if you trust the file"
            )
        try:
            return pickle.loads(self.payload(node.args[0]))  # noqa: S301  # the caller said weights_only=False
        except Exception as error:  # unpickling runs any code, which raises any type
            raise UnsafeLoadError(f"{self.path!r}: this pickled object cannot be loaded: {error!r}") from error

    def _storage(self, region: int) -> torch.UntypedStorage:
        try:
            return self._storages[region]
        except KeyError:
            raise FormatError(f"{self.path!r}: region {region} was not restored") from None


PICKLED: dict[int, BuildFunction] = {PICKLE: Builder.unpickle}
