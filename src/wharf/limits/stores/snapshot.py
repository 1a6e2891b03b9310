"""The form in which counters are kept in a file: a header, then frames of rows, so that no step is long.

A newer program reads older forms; a file of a newer form is refused with a sentence. Slots of running requests are
not kept: the requests end with the process.
"""

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Final

import msgspec

from wharf.limits.core.counting.bans import BanRecord
from wharf.limits.core.counting.counters import Counters

FORMAT_VERSION: Final = 1
ROWS_PER_FRAME: Final = 2_000
_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MOST: Final = 1 << 26


class InvalidSnapshot(Exception):
    """A file of counters that cannot be read. Its text says why, and what to do."""


class CounterFileHeader(msgspec.Struct, tag="counters"):
    form: int


class CounterRows(msgspec.Struct, tag="rows"):
    """Counters of one rule: key and numbers. No numbers: it was begun anew."""

    rule: str
    rows: list[tuple[str, tuple[int, ...]]]

    def load_into(self, counters: Counters) -> None:
        for key, numbers in self.rows if self.rule in counters.tables else ():
            if numbers:
                counters.load_row(self.rule, key, numbers)
            else:
                counters.reset_key(self.rule, key)


class BanRows(msgspec.Struct, tag="bans"):
    rows: list[tuple[str, BanRecord]]

    def load_into(self, counters: Counters) -> None:
        counters.bans.update(self.rows)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(CounterFileHeader | CounterRows | BanRows)


def generate_frames(counters: Counters) -> Iterator[bytes]:
    """All counters, some rows at a time. Between two frames they may change: each row is right when it is written."""
    yield encode_frame(CounterFileHeader(FORMAT_VERSION))
    for name, table in list(counters.tables.items()):
        keys = iter(list(table.keys()))
        while some := list(islice(keys, ROWS_PER_FRAME)):
            found = ((key, table.dump_row(key)) for key in some)
            rows = [(key, numbers) for key, numbers in found if numbers is not None]
            if rows:
                yield encode_frame(CounterRows(name, rows))
    subjects = iter(list(counters.bans))
    while some := list(islice(subjects, ROWS_PER_FRAME)):
        yield encode_frame(BanRows([(subject, counters.bans[subject]) for subject in some if subject in counters.bans]))


def encode_frame(value: CounterFileHeader | CounterRows | BanRows) -> bytes:
    data = _encoder.encode(value)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def read_frames(file: BinaryIO, name: str, *, can_be_torn: bool = False) -> Iterator[CounterRows | BanRows]:
    """`may_be_torn`: the last frame, be it the first, may be cut off, as whoever wrote it was killed; nobody was told of it."""
    first = _read_frame(file, name, may_be_torn=can_be_torn)
    if first is None and can_be_torn:
        return
    if not isinstance(first, CounterFileHeader):
        raise InvalidSnapshot(f"{name} holds no counters of a limiter: move it away, or name another file")
    if first.form > FORMAT_VERSION:
        raise InvalidSnapshot(
            f"{name} was written by a newer version (form {first.form}; this one reads up to {FORMAT_VERSION})"
        )
    while (frame := _read_frame(file, name, may_be_torn=can_be_torn)) is not None:
        if not isinstance(frame, CounterFileHeader):
            yield frame


def _read_frame(
    file: BinaryIO, name: str, *, may_be_torn: bool = False
) -> CounterFileHeader | CounterRows | BanRows | None:
    length = file.read(_LENGTH_BYTES)
    if not length:
        return None
    size = int.from_bytes(length, "big")
    data = file.read(min(size, _FRAME_BYTES_MOST))
    if may_be_torn and (len(length) < _LENGTH_BYTES or len(data) != size):
        return None
    try:
        if len(length) < _LENGTH_BYTES or len(data) != size:
            raise msgspec.DecodeError("the file ends too early")
        frame: CounterFileHeader | CounterRows | BanRows = _decoder.decode(data)
    except msgspec.DecodeError as problem:
        raise InvalidSnapshot(f"{name} is damaged ({problem}): move it away, and counters begin anew") from None
    return frame
