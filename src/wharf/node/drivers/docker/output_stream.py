"""Decodes the engine's output streams: frames of stdout and stderr, and the timestamps of log entries.

Each frame has a header of 8 bytes with its stream and its length. With a terminal there is one stream without frames.
"""

import re
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

from wharf.contract.model.times import SECOND

FRAME_HEADER_BYTES: Final = 8
_HEADER: Final = struct.Struct(">BxxxL")


class ContainerOutput(NamedTuple):
    """A part of the output of one stream."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    is_frame_start: bool = True
    """Whether a frame of the engine begins here: each log entry is one frame."""


class OutputFrameDecoder:
    """Splits the bytes that the engine sends into the output of stdout and stderr."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._incomplete_header = b""
        self._stream: Literal["stdout", "stderr"] = "stdout"
        self._is_frame_start = False
        self._remaining_bytes = 0
        """Remaining bytes of the current frame; large frames are passed on in parts."""

    def feed(self, data: bytes) -> Iterator[ContainerOutput]:
        """Yield the output that can be decoded after receiving `data`; an incomplete header is kept for the next call."""
        if self._is_tty:
            if data:
                yield ContainerOutput("stdout", data)
            return
        buffer, position = self._incomplete_header + data, 0
        self._incomplete_header = b""
        while position < len(buffer):
            if not self._remaining_bytes:
                if len(buffer) - position < FRAME_HEADER_BYTES:
                    self._incomplete_header = buffer[position:]
                    return
                stream_number, self._remaining_bytes = _HEADER.unpack_from(buffer, position)
                self._stream = "stderr" if stream_number == 2 else "stdout"
                position += FRAME_HEADER_BYTES
                self._is_frame_start = True
                continue
            piece = buffer[position : position + self._remaining_bytes]
            position += len(piece)
            self._remaining_bytes -= len(piece)
            is_frame_start, self._is_frame_start = self._is_frame_start, False
            yield ContainerOutput(self._stream, piece, is_frame_start)


MAX_TIMESTAMP_BYTES: Final = 64
"""A longer beginning of an entry is not a timestamp."""
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


class LogEntryChunk(NamedTuple):
    """A part of a log entry."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    at_ns: int | None  # the entry's Unix time in the first part; None in further parts


class TimestampDecoder:
    """Separates the timestamps from the content of log entries."""

    def __init__(self, *, is_tty: bool) -> None:
        self._is_tty = is_tty
        self._head: bytes | None = b""
        """The incomplete timestamp of the current entry; None after the timestamp."""

    def feed(self, chunk: ContainerOutput) -> Iterator[LogEntryChunk]:
        """Yield the parts of log entries that `chunk` contains, without their timestamps.

        An incomplete timestamp is kept for the next call.
        """
        if not self._is_tty:
            if chunk.is_frame_start:
                self._head = b""
            yield from self._decode_entry(chunk.stream, chunk.data)
            return
        # Without frames, an entry is a line.
        for line in _split_lines(chunk.data):
            yield from self._decode_entry(chunk.stream, line)
            if line.endswith(b"\n"):
                self._head = b""

    def _decode_entry(self, stream: Literal["stdout", "stderr"], data: bytes) -> Iterator[LogEntryChunk]:
        """Yield the part of an entry in `data`, as soon as the timestamp at the entry's beginning is complete.

        An entry without a valid timestamp is yielded whole with time 0.
        """
        if self._head is None:
            yield LogEntryChunk(stream, data, None)
            return
        head = self._head + data
        stamp, space, rest = head.partition(b" ")
        if not space and len(head) < MAX_TIMESTAMP_BYTES:
            self._head = head
            return
        self._head = None
        at_ns = parse_timestamp(stamp)
        if at_ns is None:  # No timestamp: repeated output is better than lost output.
            yield LogEntryChunk(stream, head, 0)
        else:
            yield LogEntryChunk(stream, rest, at_ns)


def _split_lines(data: bytes) -> list[bytes]:
    """Return the lines of `data` with their line feeds; the last one may be incomplete.

    A carriage return does not end a line: it belongs to the terminal's output.
    """
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def parse_timestamp(stamp: bytes) -> int | None:
    """Return the Unix time in nanoseconds of a timestamp such as `2024-05-01T10:00:00.5Z`; None if it is invalid."""
    match = _STAMP.fullmatch(stamp)
    if match is None:
        return None
    zone = "+00:00" if match[3] == b"Z" else match[3].decode()
    seconds = int(datetime.fromisoformat(match[1].decode() + zone).timestamp())
    return seconds * SECOND + int((match[2] or b"0").ljust(9, b"0"))
