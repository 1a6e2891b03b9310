"""Frames on a Unix socket: four bytes of length, then one msgpack message.

Also opens sockets whose path is longer than a socket address. The message types are in `store.messages`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

MAX_FRAME_BYTES: Final = 256_000_000
"""Protects the process's memory: the decoder rejects a longer frame as not of this protocol."""

_ADDRESS_BYTES: Final = 100  # Unix socket addresses hold 104 to 108, depending on the system.
_encode = msgspec.msgpack.Encoder().encode


class FramingError(Exception):
    """The peer does not speak this protocol."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """Encode a message as one frame."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


class SocketFrameDecoder:
    """Splits the received bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes and return the bodies that are now complete. Raises `FramingError`."""
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
    """Yield an address of the socket at `path` that fits into a socket address. It is valid inside the `with` block."""
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
