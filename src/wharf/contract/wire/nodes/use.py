"""How full nodes are: in lists, and with what runs on one node in a reply of limited size."""

import enum
from typing import Final

from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.record import Record

DEFAULT_SHOWN_ALLOCATIONS: Final = 100
MAX_SHOWN_ALLOCATIONS: Final = 1_000
"""Limits the size of the reply: a node can have 100,000 allocations that have ended."""


class NodeOrder(enum.StrEnum):
    """The orders of a list of nodes, besides that by ID."""

    NAME = "name"
    STATE = "state"  # What needs a person first: down, disconnected, initializing, draining, ineligible, ready.
    POOL = "pool"
    USE = "use"  # The fullest first, by the larger of the requested shares of CPU and memory.


class RequestedResources(Record):
    """What the allocations of a node request together."""

    cpu: int = 0  # In MHz. All allocations count that use the node, also those that the caller may not read.
    memory_mb: int = 0


class DeviceUse(Record):
    """How many instances of a model of devices are assigned to allocations."""

    vendor: str
    type: str
    name: str
    in_use: int


class NodeUse(Record):
    """What the allocations of a node request together, and the newest of them."""

    cpu: int = 0  # In MHz. All allocations count that use the node, also those that the caller may not read.
    memory_mb: int = 0
    devices: tuple[DeviceUse, ...] = ()
    allocation_count: int = 0  # The allocations that the caller may read, also those that have ended.
    allocations: tuple[
        AllocationStub, ...
    ] = ()  # The first of them: those that use the node, then the others, newest first.
