"""How the leader's brain answers what is asked of it: one module for each noun, joined here.

Each module declares its subjects with their forms, and a class that decides by one operation and commits as the leader
(`Brain.decide`). No rule of the domain stands here.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from wharf.server.brain import Brain
from wharf.server.subject import Subject

AnsweredBy: TypeAlias = tuple[Subject[Any, Any], Callable[[Any], Awaitable[Any]]]


def answers_of(_brain: Brain) -> tuple[AnsweredBy, ...]:
    """Every subject with the method that answers it."""
    return ()
