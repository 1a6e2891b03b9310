"""Log tails: the last log lines of an allocation's tasks, stored with the allocation for the time after its files are deleted.

They are compressed, because every server holds them in memory. Their size is limited when they are packed and unpacked.
"""

import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

MAX_PACKED_BYTES: Final = 64 << 10
"""Compressed size that servers accept from a node for one allocation; limits the memory of every server."""
MAX_UNPACKED_BYTES: Final = 4 << 20
"""Decompressed size; protects readers against compression bombs."""

LogTails = Mapping[str, Mapping[str, bytes]]
"""Log text by task name, then by `stdout` and `stderr`."""


def pack_log_tails(tails: LogTails) -> bytes:
    """Return the last log lines of an allocation's tasks, compressed.

    The result is empty if there is no text, or if it would be larger than `MAX_PACKED_BYTES`.
    """
    texts = {
        task: {stream: text for stream, text in streams.items() if text}
        for task, streams in tails.items()
        if any(streams.values())
    }
    if not texts:
        return b""
    packed = zlib.compress(msgspec.msgpack.encode(texts), 6)
    return packed if len(packed) <= MAX_PACKED_BYTES else b""


def unpack_log_tails(packed: bytes) -> LogTails:
    """Decompress the last log lines of an allocation's tasks and return them.

    The result is empty if the bytes are empty or damaged.
    """
    if not packed:
        return {}
    try:
        data = zlib.decompressobj().decompress(packed, MAX_UNPACKED_BYTES)
        return msgspec.msgpack.decode(data, type=dict[str, dict[str, bytes]])
    except (zlib.error, msgspec.MsgspecError):
        return {}
