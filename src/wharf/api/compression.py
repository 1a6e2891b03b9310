"""Bodies made smaller, in steps small enough for a loop that must go on."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

LEVEL: Final = 1
"""The fastest: a list shrinks to a tenth, and stronger levels win little for several times the work."""

COMPRESSED_AT_ONCE: Final = 256 * 1024
"""Bytes taken in one step: about two milliseconds."""

# How zlib is told to write the header that each encoding has.
WINDOWS: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


def negotiated(accept_encoding: bytes) -> bytes:
    """The first encoding in the list that is spoken here; weights are not understood (conventions 1.9)."""
    for name in accept_encoding.split(b","):
        if (stripped := name.strip()) in WINDOWS:
            return stripped
    return b""


def compressed(parts: Iterable[bytes], encoding: bytes) -> Iterator[bytes]:
    """The parts of the compressed body. Each step takes in a bounded number of bytes; what it yields may be empty."""
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[encoding])
    for part in parts:
        for start in range(0, len(part), COMPRESSED_AT_ONCE):
            yield compressor.compress(part[start : start + COMPRESSED_AT_ONCE])
    yield compressor.flush()
