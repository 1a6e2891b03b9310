"""The result type of every operation."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from wharf.contract.model.log import Write
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext

__all__ = ["Decision", "DecisionContext"]

T = TypeVar("T")


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """The write to commit, and the function that builds the reply from the index of that write.

    If `write` is None, nothing has to change; `build_reply` is then called with the index of the snapshot.
    """

    write: Write | None
    build_reply: Callable[[int], T]
    invalid_transitions: tuple[InvalidTransition, ...] = ()
    """Requested state changes that the state tables do not allow. They are left out of the write; the caller logs
    them.
    """
