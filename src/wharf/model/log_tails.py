"""The last words of an allocation's tasks: the ends of their logs, kept with the allocation when its files are gone.

They are packed, because every server holds them in memory, and bounded twice: by who packs them, and when they are read.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

PACKED_MAX_BYTES: Final = 64 << 10
"""More is not taken from a node."""
UNPACKED_MAX_BYTES: Final = 4 << 20

Tails = Mapping[str, Mapping[str, bytes]]
"""By task, and by `stdout` and `stderr`."""


def pack(tails: Tails) -> bytes:
    """Nothing where nobody said anything, or where it would be too much."""
    said = {
        task: {stream: text for stream, text in of.items() if text} for task, of in tails.items() if any(of.values())
    }
    if not said:
        return b""
    packed = zlib.compress(msgspec.msgpack.encode(said), 6)
    return packed if len(packed) <= PACKED_MAX_BYTES else b""


def unpack(packed: bytes) -> Tails:
    """What cannot be read says nothing."""
    if not packed:
        return {}
    try:
        whole = zlib.decompressobj().decompress(packed, UNPACKED_MAX_BYTES)
        return msgspec.msgpack.decode(whole, type=dict[str, dict[str, bytes]])
    except (zlib.error, msgspec.MsgspecError):
        return {}
