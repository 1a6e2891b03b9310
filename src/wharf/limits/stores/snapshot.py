"""The format of counter files: a header, then frames (length and msgpack value) of counters, so that no step takes long.

This version reads older formats and rejects newer ones. Concurrency leases are not stored, because their requests end
with the process.
"""

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Final

import msgspec

from wharf.limits.core.counting.bans import BanRecord
from wharf.limits.core.counting.counters import Counters
from wharf.world.framing import LENGTH_BYTES, encode_frame

FORMAT_VERSION: Final = 1
ROWS_PER_FRAME: Final = 2_000
"""Rows encoded in one step, so that a step does not block the event loop for long."""
_MAX_FRAME_BYTES: Final = 1 << 26


class InvalidSnapshot(Exception):
    """A counter file that cannot be read. The text gives the reason and what to do."""


class CounterFileHeader(msgspec.Struct, tag="counters"):
    """The first frame of a counter file."""

    form: int
    """The version of the format."""


class CounterRows(msgspec.Struct, tag="rows"):
    """A frame with counters of one rule."""

    rule: str
    """The name of the rule."""
    rows: list[tuple[str, tuple[int, ...]]]
    """Key and numbers of each counter; their meaning depends on the algorithm. No numbers: the counter was reset."""

    def load_into(self, counters: Counters) -> None:
        """Load the rows into the counters, and reset those without numbers. A rule that no longer exists is skipped."""
        for key, numbers in self.rows if self.rule in counters.tables else ():
            if numbers:
                counters.load_row(self.rule, key, numbers)
            else:
                counters.reset_key(self.rule, key)


class BanRows(msgspec.Struct, tag="bans"):
    """A frame with ban records, each with its subject."""

    rows: list[tuple[str, BanRecord]]

    def load_into(self, counters: Counters) -> None:
        counters.bans.load(self.rows)


_decoder: Final = msgspec.msgpack.Decoder(CounterFileHeader | CounterRows | BanRows)


def generate_frames(counters: Counters) -> Iterator[bytes]:
    """Yield the frames of a counter file with all counters and bans.

    Counters may change between two frames; each row is correct at the time it is encoded.
    """
    yield encode_frame(CounterFileHeader(FORMAT_VERSION))
    for name, table in list(counters.tables.items()):
        keys = table.keys()
        while batch := list(islice(keys, ROWS_PER_FRAME)):
            found = ((key, table.dump_row(key)) for key in batch)
            rows = [(key, numbers) for key, numbers in found if numbers is not None]
            if rows:
                yield encode_frame(CounterRows(name, rows))
    subjects = iter(counters.bans)
    while batch := list(islice(subjects, ROWS_PER_FRAME)):
        yield encode_frame(
            BanRows([(subject, counters.bans[subject]) for subject in batch if subject in counters.bans])
        )


def read_frames(file: BinaryIO, name: str, *, can_be_torn: bool = False) -> Iterator[CounterRows | BanRows]:
    """Yield the frames of a counter file after its header.

    Raises `InvalidSnapshot` if the file is damaged, has a newer format or is not a counter file. `name` is for the message.
    With `can_be_torn`, an incomplete last frame is ignored: the writer was killed, and no reply depended on that
    frame.
    """
    header = _read_frame(file, name, can_be_torn=can_be_torn)
    if header is None and can_be_torn:
        return
    if not isinstance(header, CounterFileHeader):
        raise InvalidSnapshot(f"{name} is not a counter file: move it away, or configure another path")
    if header.form > FORMAT_VERSION:
        raise InvalidSnapshot(
            f"{name} was written by a newer version (format {header.form}; this version reads up to {FORMAT_VERSION})"
        )
    while (frame := _read_frame(file, name, can_be_torn=can_be_torn)) is not None:
        if not isinstance(frame, CounterFileHeader):
            yield frame


def _read_frame(
    file: BinaryIO, name: str, *, can_be_torn: bool = False
) -> CounterFileHeader | CounterRows | BanRows | None:
    """Return the next frame, or `None` at the end of the file.

    With `can_be_torn`, an incomplete frame is treated as the end. Raises `InvalidSnapshot` if the frame is damaged.
    """
    length = file.read(LENGTH_BYTES)
    if not length:
        return None
    size = int.from_bytes(length, "big")
    data = file.read(min(size, _MAX_FRAME_BYTES))
    if can_be_torn and (len(length) < LENGTH_BYTES or len(data) != size):
        return None
    try:
        if len(length) < LENGTH_BYTES or len(data) != size:
            raise msgspec.DecodeError("the file is truncated")
        frame: CounterFileHeader | CounterRows | BanRows = _decoder.decode(data)
    except msgspec.DecodeError as problem:
        raise InvalidSnapshot(f"{name} is damaged ({problem}): move it away to start with empty counters") from None
    return frame
