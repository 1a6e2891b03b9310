"""The form in which counters are kept in a file: a header, then frames of rows, so that no step is long.

A newer program reads older forms; a file of a newer form is refused with a sentence. Slots of running requests are
not kept: the requests end with the process.
"""

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, Final

import msgspec

from wharf.limits.core.ban import BanRecord
from wharf.limits.core.counters import Counters

FORM: Final = 1
ROWS_AT_ONCE: Final = 2_000
_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MOST: Final = 1 << 26


class SavedRefused(Exception):
    """A file of counters that cannot be read. Its text says why, and what to do."""


class Header(msgspec.Struct, tag="counters"):
    form: int


class Rows(msgspec.Struct, tag="rows"):
    """Counters of one rule: key and numbers. No numbers: it was begun anew."""

    rule: str
    rows: list[tuple[str, tuple[int, ...]]]

    def load_into(self, counters: Counters) -> None:
        for key, numbers in self.rows if self.rule in counters.tables else ():
            if numbers:
                counters.load(self.rule, key, numbers)
            else:
                counters.begin_anew(self.rule, key)


class BanRows(msgspec.Struct, tag="bans"):
    rows: list[tuple[str, BanRecord]]

    def load_into(self, counters: Counters) -> None:
        counters.bans.update(self.rows)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Header | Rows | BanRows)


def write_frames(counters: Counters) -> Iterator[bytes]:
    """All counters, some rows at a time. Between two frames they may change: each row is right when it is written."""
    yield frame_of(Header(FORM))
    for name, table in list(counters.tables.items()):
        keys = iter(list(table.keys()))
        while some := list(islice(keys, ROWS_AT_ONCE)):
            found = ((key, table.saved(key)) for key in some)
            rows = [(key, numbers) for key, numbers in found if numbers is not None]
            if rows:
                yield frame_of(Rows(name, rows))
    subjects = iter(list(counters.bans))
    while some := list(islice(subjects, ROWS_AT_ONCE)):
        yield frame_of(BanRows([(subject, counters.bans[subject]) for subject in some if subject in counters.bans]))


def frame_of(value: Header | Rows | BanRows) -> bytes:
    data = _encoder.encode(value)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


def read_frames(file: BinaryIO, name: str, *, may_be_torn: bool = False) -> Iterator[Rows | BanRows]:
    """`may_be_torn`: the last frame, be it the first, may be cut off, as whoever wrote it was killed; nobody was told of it."""
    first = _read_frame(file, name, may_be_torn=may_be_torn)
    if first is None and may_be_torn:
        return
    if not isinstance(first, Header):
        raise SavedRefused(f"{name} holds no counters of a limiter: move it away, or name another file")
    if first.form > FORM:
        raise SavedRefused(f"{name} was written by a newer version (form {first.form}; this one reads up to {FORM})")
    while (frame := _read_frame(file, name, may_be_torn=may_be_torn)) is not None:
        if not isinstance(frame, Header):
            yield frame


def _read_frame(file: BinaryIO, name: str, *, may_be_torn: bool = False) -> Header | Rows | BanRows | None:
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
        frame: Header | Rows | BanRows = _decoder.decode(data)
    except msgspec.DecodeError as problem:
        raise SavedRefused(f"{name} is damaged ({problem}): move it away, and counters begin anew") from None
    return frame
