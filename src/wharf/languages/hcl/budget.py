"""Limits of one evaluation: steps instead of a clock, and the size of what it builds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wharf.languages.hcl.diagnostics import SourceRange

MAX_STEPS: Final = 1_000_000
"""The steps of one evaluation. A step takes at most about a microsecond, so an evaluation takes at most about a second."""
MAX_RESULT_BYTES: Final = 10_000_000
"""The size of all values that one evaluation builds, also of values that it discards. Protects the memory of a server."""
MAX_VALUE_DEPTH: Final = 100
"""How deep lists and maps of a value may nest: limits the stack of functions that walk a value."""
VALUE_BYTES: Final = 8
"""The size that a number, a boolean or an element of a collection counts as, beside its text."""


class BudgetExceeded(Exception):
    """The evaluation takes too many steps or builds too much. `try` and `can` do not catch it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.place: SourceRange | None = None
        """The part of the document that was evaluated, if it is known."""


@contextmanager
def locate_excess(place: "SourceRange") -> Iterator[None]:
    """Give a `BudgetExceeded` the place of the part of a document that the block evaluates."""
    try:
        yield
    except BudgetExceeded as error:
        error.place = error.place or place
        raise


class Budget:
    """Counts the steps and the built bytes of one evaluation. Raises `BudgetExceeded`."""

    __slots__ = ("bytes_left", "result_bytes_left", "steps_left")

    def __init__(self, max_steps: int = MAX_STEPS, max_bytes: int = MAX_RESULT_BYTES) -> None:
        self.steps_left = max_steps
        self.bytes_left = max_bytes
        self.result_bytes_left = max_bytes

    def use_steps(self, count: int) -> None:
        """Count steps before they are done."""
        self.steps_left -= count
        if self.steps_left < 0:
            raise BudgetExceeded(
                f"the evaluation takes more than {MAX_STEPS:,} steps", "write shorter loops, or fewer nested ones"
            )

    def use_bytes(self, count: int) -> None:
        """Count bytes before they are built. Building takes time too, so a step is counted for every 64 bytes."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise BudgetExceeded(
                f"the evaluation builds more than {MAX_RESULT_BYTES // 1_000_000} MB", "build shorter texts and lists"
            )
        self.use_steps((count >> 6) + 1)

    def use_result(self, count: int) -> None:
        """Count the size of a value of the result. A value that occurs several times counts each time."""
        self.result_bytes_left -= count
        if self.result_bytes_left < 0:
            raise BudgetExceeded(
                f"the result is larger than {MAX_RESULT_BYTES // 1_000_000} MB", "build shorter texts and lists"
            )
