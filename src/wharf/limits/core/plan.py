"""Which limits a request meets, under which keys, with which ceilings and costs: all that a store needs to count it.

A plan is a value: the same rules, caller and endpoint give the same plan. It holds no counters and no moment.
"""

import msgspec

from wharf.limits.core.route import OTHER
from wharf.limits.core.rule import Interface, Rule


def owner_of_key(key: str) -> str:
    """The first member of a key: no scope value holds a space."""
    return key.partition(" ")[0]


def shared_key(owner: str) -> str:
    """The key that all counters of an owner share which would be too many."""
    return f"{owner} {OTHER}"


class Charge(msgspec.Struct, frozen=True, gc=False):
    """One limit that a request meets."""

    rule: Rule
    name: str
    """The rule's name, half of the counter's key. The other half is `key`; never the ceiling or the window."""
    key: str
    ceiling: int
    cost: int
    """What is charged when the request is admitted."""
    needs: int
    """How much room there must be. A meter is charged afterwards, and needs room for 1."""
    is_enforced: bool
    spare_key: str
    """The key to count under when there are too many keys; empty when this key needs no bound."""
    owner: str
    """Whose keys are bounded together, for a rule with several counters an owner."""


class Plan(msgspec.Struct, frozen=True, eq=False):
    endpoint: str
    interface: Interface
    resource: str
    """The primary bucket that headers show."""
    shown: Charge
    """The charge of that bucket. With `is_free` it is shown and not charged."""
    charges: tuple[Charge, ...]
    """The primary first, then the secondary limits in the order of the rules."""
    meters: tuple[Charge, ...]
    """Those of the charges that are charged with CPU time when it is known."""
    leases: tuple[int, ...]
    """Which of the charges hold a slot while the request runs."""
    ban_subject: str
    ban_is_shadow: bool
    is_free: bool
    bounded: tuple[int, ...]
    """Which of the charges have a spare key."""
    objects_most: int | None
    hides_cost: bool
