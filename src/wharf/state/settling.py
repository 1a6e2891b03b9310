"""Rows made ready for another log: the markers in them become the numbers that they stand for.

A restore writes every row again, at an index of its own. A marker that went along would stand for that one, while what
other records hold of it says the old number: a job would be another life of itself.
"""

from collections.abc import Iterable
from typing import Any, Final

from wharf.model.log import Row
from wharf.state.codec import Decoder, encoder_in_form, form_of
from wharf.state.table import Table

_MARKED: Final = b"\xff"
"""How msgpack writes THIS. It may stand for something else too; where it is nowhere, no marker is."""


class Settling:
    """Keeps what it needs to read each table."""

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self._decoders = {table.name: Decoder(table) for table in tables}

    def settled(self, row: Row) -> Row:
        """The same row in the same form, with no marker in it. Raises `Damaged` and `NewerFormat` of `codec`.

        One of an unknown table is left as it is, for whoever reads it to refuse.
        """
        decoder = self._decoders.get(row.table)
        if decoder is None or _MARKED not in row.data:
            return row
        record = decoder.record(row.key, row.data, row.version, row.written_at)
        encode = encoder_in_form(decoder.table, form_of(row.data))
        return Row(row.table, row.key, row.version, encode(record), row.written)
