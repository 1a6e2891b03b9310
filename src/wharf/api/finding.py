"""Finding the record that a write is about, before it is asked whether the caller may write it."""

from typing import TypeVar

import msgspec

from wharf.model.refusal import unknown
from wharf.server.server import Server
from wharf.state import Table

R = TypeVar("R", bound=msgspec.Struct)


async def found_or_unknown(server: Server, table: Table[R], *key: str, unknown_text: str) -> R:
    """The record under the key. One that was made elsewhere just now is known after a barrier."""
    record = server.replica.get(table, *key)
    if record is None:
        await server.reader.catch_up()
        record = server.replica.get(table, *key)
    if record is None:
        raise unknown(unknown_text)
    return record
