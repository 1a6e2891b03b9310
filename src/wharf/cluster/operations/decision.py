"""The form of every decision."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from wharf.contract.model.log import Write
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import DecisionContext

__all__ = ["Decision", "DecisionContext"]

T = TypeVar("T")


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """What is to be written, and the reply to give for the index at which it was.

    Without a write nothing needs to change, and `reply` is called with the snapshot's own index.
    """

    write: Write | None
    build_reply: Callable[[int], T]
    invalid_transitions: tuple[InvalidTransition, ...] = ()
    """Steps that were asked for and that no table of states has. The rest counts; whoever decides logs these."""
