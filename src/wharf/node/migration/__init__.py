"""What an allocation keeps, on its way to the node where another one takes its place."""

from wharf.node.migration.archive import (
    InvalidArchive,
    TruncatedArchive,
    list_migrated_folders,
    pack_folders,
    unpack_folders,
)

__all__ = ["InvalidArchive", "TruncatedArchive", "list_migrated_folders", "pack_folders", "unpack_folders"]
