"""The walls around a program of the machine: what it sees, what it may do. Everything is made by small programs of the
machine and a few lines of shell, in namespaces that end with the program: nothing of it can be left over.
"""

from wharf.node.walls.launching import Device, Entry, Inside, Launch, entry, launch
from wharf.node.walls.rights import (
    ALLOWED,
    KNOWN,
    Rights,
    UnknownRight,
    WrongRight,
    capabilities,
    rights_like,
    rights_of,
)
from wharf.node.walls.root import DEFAULT_FOLDERS, Binding, Root, WrongRoot

__all__ = [
    "ALLOWED",
    "DEFAULT_FOLDERS",
    "KNOWN",
    "Binding",
    "Device",
    "Entry",
    "Inside",
    "Launch",
    "Rights",
    "Root",
    "UnknownRight",
    "WrongRight",
    "WrongRoot",
    "capabilities",
    "entry",
    "launch",
    "rights_like",
    "rights_of",
]
