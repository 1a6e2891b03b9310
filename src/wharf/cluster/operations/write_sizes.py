"""How many records one write may store. A write that is too large for the log would be refused as a whole."""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from wharf.cluster.state.packed_map import encode_packed_as_raw

_encode: Final = msgspec.msgpack.Encoder(enc_hook=encode_packed_as_raw).encode

T = TypeVar("T")

MAX_PART_BYTES: Final = 1_000_000
"""Bytes of the records of one write of an operation that continues with a next write. A write to etcd has at most 1.4 MB."""


def take_part(items: Iterator[T], max_items: int, get_record: Callable[[T], msgspec.Struct | None]) -> Iterator[T]:
    """Yield the next items whose records fit in one write: at most `max_items`, and one at least. Takes no other item.

    `get_record` returns the record that an item stores; `None`: it stores none, such as a deletion.
    """
    size = 0
    for _ in range(max_items):
        if size >= MAX_PART_BYTES:
            return
        try:
            item = next(items)
        except StopIteration:
            return
        record = get_record(item)
        size += len(_encode(record)) if record is not None else 0
        yield item
