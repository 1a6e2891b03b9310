"""Frames of a log stream: JSON objects, one after another, each with a part of a log and its position.

The position in a frame lets a client continue a broken stream where it broke off.
"""

from base64 import b64decode
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from wharf.contract.wire.json_objects import JsonObjectSplitter

ALL_LOGS: Final = "all"
"""The log type that stands for standard output and then standard error, in one reply. Such logs cannot be followed."""
RETAINED_LOG_FOLDER: Final = "kept-by-servers"
"""The folder of the file name that is sent with a retained log. Offsets count from the first retained byte."""
HEARTBEAT_FRAME: Final = b"{}"
"""A frame without content, which only shows that the stream is alive."""


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
        self._objects = JsonObjectSplitter()

    def feed(self, chunk: bytes) -> Iterator[EncodedLogFrame]:
        """Yield the frames that this chunk completes. Raises `ValueError` if the stream does not consist of frames."""
        for encoded in self._objects.feed(chunk):
            yield EncodedLogFrame(encoded, msgspec.json.decode(encoded, type=LogFrame))

    def reset(self) -> None:
        """Drop the incomplete frame at the end of a broken stream."""
        self._objects.reset()
