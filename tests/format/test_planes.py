"""The dtype table."""

import pytest
import torch

from s4async.errors import UnsupportedError
from s4async.format.planes import DTYPES, LAYOUTS, dtype_of, layout_of


@pytest.mark.parametrize("name", DTYPES)
def test_sizes_are_torchs(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is not None:
        assert dtype.itemsize == DTYPES[name].itemsize
    assert DTYPES[name].itemsize % DTYPES[name].layout.itemsize == 0


def test_every_torch_dtype_with_storage_is_known() -> None:
    named = {str(d).removeprefix("torch.") for d in vars(torch).values() if isinstance(d, torch.dtype)}
    placeholders = {n for n in named if n.startswith(("int", "uint", "bits")) and n not in DTYPES}
    assert named - placeholders <= set(DTYPES)


def test_layouts_have_one_plane_per_byte() -> None:
    for id, layout in LAYOUTS.items():
        assert id == layout.id == layout_of(id).id
        assert len(layout.planes) == layout.itemsize


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnsupportedError, match="float7"):
        dtype_of("float7")
    with pytest.raises(UnsupportedError, match="tiles"):
        layout_of("tiles")
