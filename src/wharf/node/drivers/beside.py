"""Commands beside a task that runs: what a driver that can run them is asked, and what it gives.

A driver need not; one that does has `run_beside`.
"""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec

Stream = Literal["stdout", "stderr"]


class CommandOrder(msgspec.Struct, frozen=True):
    run: str
    """Beside which start of which task."""
    name: str
    """Of this command, used once. What it starts is found by it."""
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    is_tty: bool = False
    height: int = 0
    width: int = 0


class Command(Protocol):
    """One that has begun."""

    async def read(self, stream: Stream) -> bytes:
        """What it says next; nothing where it will say no more. With a terminal all is `stdout`."""
        ...

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. What it does not want to hear is dropped."""
        ...

    async def close_input(self) -> None:
        """It will hear no more. With a terminal: it hangs up."""
        ...

    def resize(self, height: int, width: int) -> None: ...

    async def wait(self) -> int:
        """Its exit code; 128 and the number of the signal that it died by."""
        ...

    async def end(self) -> None:
        """Whatever is left of it is killed. Twice does no harm."""
        ...


@runtime_checkable
class RunsBeside(Protocol):
    async def run_beside(self, order: CommandOrder) -> Command:
        """Raises CannotStart."""
        ...
