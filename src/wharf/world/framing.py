"""Frames on a byte stream: four bytes of length in big-endian order, then one msgpack message.

Message types, and what happens after an invalid frame, belong to the protocols that use frames.
"""

from typing import Final

import msgspec

LENGTH_BYTES: Final = 4

_encode: Final = msgspec.msgpack.Encoder().encode


class FrameTooLong(Exception):
    """The length of a received frame is above the limit: the sender uses another protocol."""


def encode_frame(message: msgspec.Struct) -> bytes:
    """Return a message as one frame."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Splits received bytes into the bodies of frames. The bytes may arrive in parts of any size.

    A length above `max_bytes` is rejected before its body is buffered, which protects the memory of the receiver.
    """

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes and return the bodies that are now complete. Raises `FrameTooLong`."""
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        bodies = []
        start, end = 0, len(source)
        while end - start >= LENGTH_BYTES:
            length = int.from_bytes(source[start : start + LENGTH_BYTES], "big")
            if length > self._max_bytes:
                raise FrameTooLong(f"a frame of {length} bytes exceeds the limit of {self._max_bytes} bytes")
            body_start = start + LENGTH_BYTES
            if end - body_start < length:
                break
            start = body_start + length
            bodies.append(bytes(source[body_start:start]))
        if source is buffer:
            del buffer[:start]
        elif start < end:
            buffer += data[start:]
        return bodies
