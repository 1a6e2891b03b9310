"""The whole fleet in few bytes: one letter for each node and for each allocation, for pictures."""

import enum
from typing import Final

from wharf.contract.model.record import Record

MAX_FLEET_NODES: Final = 10_000
"""Limits the size of a fleet and the time to build it; further nodes are counted only."""
LETTERS: Final = "abcdefgh"
"""The letters of allocations. So few values need little more than three bits for each allocation, compressed."""


class FleetGrouping(enum.StrEnum):
    """What the letter of an allocation stands for."""

    STATE = "state"
    JOB = "job"
    NAMESPACE = "namespace"


class FleetValue(Record):
    """A letter of allocations."""

    letter: str
    text: str  # A state, a job with its namespace, or a namespace; "others" for all that have no letter of their own.
    count: int  # How many allocations have this letter.


class FleetPicture(Record):
    """All nodes by name, with their unfinished allocations in namespaces that the caller may read."""

    names: tuple[str, ...]
    states: str  # A letter for each node: r ready, i ineligible, d draining, a away, n new (initializing).
    cpu: tuple[int, ...]  # How much of its CPU the allocations of each node request, in percent.
    memory: tuple[int, ...]  # How much of its memory they request, in percent.
    allocations: str  # The letters of the allocations of each node; a comma separates two nodes.
    values: tuple[FleetValue, ...]
    hidden_nodes: int = 0  # Nodes beyond the limit, which are not listed.
