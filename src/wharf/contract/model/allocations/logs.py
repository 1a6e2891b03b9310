"""The last words of an allocation's tasks: the ends of their logs, kept with the allocation when its files are gone.

They are packed, because every server holds them in memory, and bounded twice: by who packs them, and when they are read.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

MAX_PACKED_BYTES: Final = 64 << 10
"""More is not taken from a node."""
MAX_UNPACKED_BYTES: Final = 4 << 20

LogTails = Mapping[str, Mapping[str, bytes]]
"""By task, and by `stdout` and `stderr`."""


def pack_log_tails(tails: LogTails) -> bytes:
    """Nothing where nobody said anything, or where it would be too much."""
    said = {
        task: {stream: text for stream, text in of.items() if text} for task, of in tails.items() if any(of.values())
    }
    if not said:
        return b""
    packed = zlib.compress(msgspec.msgpack.encode(said), 6)
    return packed if len(packed) <= MAX_PACKED_BYTES else b""


def unpack_log_tails(packed: bytes) -> LogTails:
    """What cannot be read says nothing."""
    if not packed:
        return {}
    try:
        whole = zlib.decompressobj().decompress(packed, MAX_UNPACKED_BYTES)
        return msgspec.msgpack.decode(whole, type=dict[str, dict[str, bytes]])
    except (zlib.error, msgspec.MsgspecError):
        return {}
