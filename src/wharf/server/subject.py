"""One thing that may be asked of the leader's brain: its name, and the forms of question and answer."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

Q = TypeVar("Q")
A = TypeVar("A")


class Subject(Generic[Q, A]):
    def __init__(self, name: str, question: type[Q], answer: type[A]) -> None:
        self.name = name
        self.read_question = msgspec.msgpack.Decoder(question).decode
        self.read_answer = msgspec.msgpack.Decoder(answer).decode


AnsweredBy: TypeAlias = tuple[Subject[Any, Any], Callable[[Any], Awaitable[Any]]]
"""A subject with the method that answers it."""
