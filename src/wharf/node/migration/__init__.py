"""Migration: moves the data of an ephemeral disk from an ended allocation to the node of its replacement."""

from wharf.node.migration.archive import (
    InvalidMigrationArchive,
    TruncatedArchive,
    list_migrated_folders,
    pack_folders,
    unpack_folders,
)

__all__ = ["InvalidMigrationArchive", "TruncatedArchive", "list_migrated_folders", "pack_folders", "unpack_folders"]
