"""Frames on a Unix socket: four bytes of length and one message of msgpack. And the socket's address, however deep it lies.

It knows no message.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

MAX_FRAME_BYTES: Final = 256_000_000
"""A longer frame is none of ours."""

_ADDRESS_BYTES: Final = 100  # Unix socket addresses hold 104 to 108, depending on the system.
_encode = msgspec.msgpack.Encoder().encode


class FramingError(Exception):
    """The other end does not speak this protocol."""


def encode_frame(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class SocketFrameDecoder:
    """Cuts what arrives into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are whole with this. Raises `NotOurs`."""
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        bodies = []
        start, end = 0, len(source)
        while end - start >= 4:
            length = int.from_bytes(source[start : start + 4], "big")
            if length > MAX_FRAME_BYTES:
                raise FramingError(f"a frame of {length} bytes")
            if end - start - 4 < length:
                break
            bodies.append(bytes(source[start + 4 : start + 4 + length]))
            start += 4 + length
        if source is buffer:
            del buffer[:start]
        elif start < end:
            buffer += data[start:]
        return bodies


@contextmanager
def open_socket_address(path: Path) -> Iterator[str]:
    """An address of the socket at `path` that is short enough for the system, as long as the context lasts."""
    if len(os.fsencode(path)) <= _ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not Path("/proc/self/fd").exists():
            raise OSError(f"the path is longer than the {_ADDRESS_BYTES} bytes that a socket's address may have here")
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
