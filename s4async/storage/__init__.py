"""Named immutable objects: where checkpoints are kept. ``base`` has the protocols; drivers are loaded by URL scheme."""

from s4async.storage.base import (
    ObjectInfo,
    ObjectReader,
    Storage,
    Upload,
    check_key,
    open_storage,
    register,
    split_url,
)

__all__ = [
    "ObjectInfo",
    "ObjectReader",
    "Storage",
    "Upload",
    "check_key",
    "open_storage",
    "register",
    "split_url",
]
