"""Connects pipes to the event loop so that each descriptor is closed once.

uvloop closes the descriptor of a pipe, and then the file object that it was given, which closes the same number again. In
between, another thread may have opened a file under this number: it then writes to a closed file, or the process aborts.
"""

import asyncio
import os
from collections.abc import Callable
from typing import IO, TypeVar, cast

P = TypeVar("P", bound=asyncio.BaseProtocol)


class _Descriptor:
    """A descriptor that its transport closes. Closing this object does nothing."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        """Do nothing: uvloop has closed the descriptor already."""


async def connect_reading_end(build_protocol: Callable[[], P], descriptor: int) -> tuple[asyncio.ReadTransport, P]:
    """Connect the reading end of a pipe to the running loop. Its transport closes the descriptor."""
    return await asyncio.get_running_loop().connect_read_pipe(build_protocol, _wrap(descriptor, "rb"))


async def connect_writing_end(build_protocol: Callable[[], P], descriptor: int) -> tuple[asyncio.WriteTransport, P]:
    """Connect the writing end of a pipe to the running loop. Its transport closes the descriptor."""
    return await asyncio.get_running_loop().connect_write_pipe(build_protocol, _wrap(descriptor, "wb"))


def _wrap(descriptor: int, mode: str) -> IO[bytes]:
    """Return the object that the running loop expects for a descriptor."""
    if type(asyncio.get_running_loop()).__module__.startswith("uvloop"):
        return cast(IO[bytes], _Descriptor(descriptor))
    return os.fdopen(
        descriptor, mode, buffering=0
    )  # The transport of asyncio closes the file object, and nothing else.
