"""What a follower is sent: pieces of a file with the place where they end, and what became of the file."""

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

import msgspec


class Frame(NamedTuple):
    """Without data and event it only says that one still looks."""

    offset: int = 0
    data: bytes = b""
    file: str = ""
    event: str = ""


class _Shape(
    msgspec.Struct,
    omit_defaults=True,
    rename={"offset": "Offset", "data": "Data", "file": "File", "event": "FileEvent"},
):
    offset: int = 0
    data: str = ""
    file: str = ""
    event: str = ""


async def encoded(frames: AsyncGenerator[Frame, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        async for frame in frames:
            data = base64.b64encode(frame.data).decode()
            yield msgspec.json.encode(_Shape(frame.offset, data, frame.file, frame.event))


async def plain(frames: AsyncGenerator[Frame, None]) -> AsyncGenerator[bytes, None]:
    """The bytes alone. That one still looks is said by none."""
    async with aclosing(frames):
        async for frame in frames:
            yield frame.data
