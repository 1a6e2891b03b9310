"""What an allocation keeps, on its way to the node where another one takes its place."""

from wharf.node.migrating.packing import kept_folders, pack
from wharf.node.migrating.unpacking import BrokenOff, NotWhole, unpack

__all__ = ["BrokenOff", "NotWhole", "kept_folders", "pack", "unpack"]
