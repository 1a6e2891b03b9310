"""Frames of a log stream: JSON objects, one after another, each with a part of a log and its position.

The position in a frame lets a client continue a broken stream where it broke off.
"""

from base64 import b64decode
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

HEARTBEAT_FRAME: Final = b"{}"
"""A frame without content, which only shows that the stream is alive."""
MAX_FRAME_BYTES: Final = 1 << 20
"""Limit of an incomplete frame; protects the memory of its reader. A node sends 64 KiB of data in a frame."""


class LogFrame(
    msgspec.Struct,
    omit_defaults=True,
    rename={"offset": "Offset", "data": "Data", "file": "File", "event": "FileEvent"},
):
    """One part of a log or file."""

    offset: int = 0
    """Position in the file after this part, in bytes."""
    data: str = ""
    """The bytes in base64."""
    file: str = ""
    """The path of the file, relative to the folder of the allocation."""
    event: str = ""
    """Deletion or truncation of the file; empty: none."""


def is_continuation(position: LogFrame, frame: LogFrame) -> bool:
    """Return whether `frame` can be the first one with data after `position`.

    `False` for the frame of an older version that ignores the requested position.
    """
    return frame.file != position.file or frame.offset - len(b64decode(frame.data)) == position.offset


class EncodedLogFrame(NamedTuple):
    """A frame as it was received, and decoded."""

    encoded: bytes
    frame: LogFrame


class LogFrameSplitter:
    """Splits the chunks of a log stream into frames. A chunk may contain several frames, or a part of one."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, chunk: bytes) -> Iterator[EncodedLogFrame]:
        """Yield the frames that this chunk completes. Raises `ValueError` if the stream does not consist of frames."""
        buffer, begin, search_from = self._buffer + chunk, 0, 0
        while (end := buffer.find(b"}", search_from) + 1) > 0:
            search_from = end
            try:
                frame = msgspec.json.decode(buffer[begin:end], type=LogFrame)
            except msgspec.DecodeError:
                continue  # The brace is part of a file name.
            yield EncodedLogFrame(buffer[begin:end].strip(), frame)
            begin = end
        self._buffer = buffer[begin:].lstrip()
        if len(self._buffer) > MAX_FRAME_BYTES or not b"{".startswith(self._buffer[:1]):
            raise ValueError(f"not a log frame: {self._buffer[:40]!r}")

    def reset(self) -> None:
        """Drop the incomplete frame at the end of a broken stream."""
        self._buffer = b""
