"""The form of every decision."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from wharf.model.changes import Write
from wharf.model.machine import TransitionRefused
from wharf.model.moment import Moment

__all__ = ["Decision", "Moment"]

T = TypeVar("T")


class Decision(msgspec.Struct, Generic[T], frozen=True):
    """What is to be written, and the reply to give for the index at which it was.

    Without a write nothing needs to change, and `reply` is called with the snapshot's own index.
    """

    write: Write | None
    reply: Callable[[int], T]
    refused: tuple[TransitionRefused, ...] = ()
    """Steps that were asked for and that no table of states has. The rest counts; whoever decides logs these."""
