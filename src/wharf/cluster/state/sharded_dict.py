"""The records of one table under their keys, in dicts that stay small.

A dict that is full is made anew, twice as large, while everybody waits: 40 ms and more for a million records. So random
ids, of which there are many, lie on shelves by their first characters, 4,000 of a million on each, and it is a shelf
that grows. Names are fewer and begin alike: they lie on one shelf.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)

ID_SHARD_KEY_CHARS: Final = 2
"""Characters of an id that name its shelf: 256 shelves of random ids."""


class ShardedDict(Generic[R]):
    """Reads like a dict. `shelves` is for the hottest loops: a record lies at `shelves[key[:width]][key]`."""

    __slots__ = ("shard_key_chars", "shards")

    def __init__(self, *, shard_key_chars: int) -> None:
        self.shards: dict[str, dict[str, R]] = {}
        self.shard_key_chars = shard_key_chars

    def get(self, key: str) -> R | None:
        shelf = self.shards.get(key[: self.shard_key_chars])
        return None if shelf is None else shelf.get(key)

    def __getitem__(self, key: str) -> R:
        return self.shards[key[: self.shard_key_chars]][key]

    def __contains__(self, key: str) -> bool:
        shelf = self.shards.get(key[: self.shard_key_chars])
        return shelf is not None and key in shelf

    def __len__(self) -> int:
        return sum(map(len, self.shards.values()))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.shards.values())

    def pop(self, key: str) -> R | None:
        name = key[: self.shard_key_chars]
        shelf = self.shards.get(name)
        if shelf is None:
            return None
        old = shelf.pop(key, None)
        if not shelf:
            del self.shards[name]
        return old

    def add_records(self, records: dict[str, R]) -> None:
        """Records whose keys are all new."""
        shelves, width = self.shards, self.shard_key_chars
        for key, record in records.items():
            shelf = shelves.get(key[:width])
            if shelf is None:
                shelves[key[:width]] = {key: record}
                continue
            assert key not in shelf, f"{key!r} was given twice"
            shelf[key] = record

    def iter_prefix(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        """Keys in order, those that begin with `prefix`, from `start` on (down from it, in reverse), `start` included.

        Shelves are put in order when they are read: who asks for ids by prefix asks now and then.
        """
        for name in sorted(self.shards, reverse=reverse):
            if not name.startswith(prefix[: self.shard_key_chars]):
                continue
            if start is not None and (
                name > start[: self.shard_key_chars] if reverse else name < start[: self.shard_key_chars]
            ):
                continue  # A whole shelf before the start.
            keys: Iterable[str] = self.shards[name]
            if len(prefix) > self.shard_key_chars:
                keys = [key for key in keys if key.startswith(prefix)]
            if start is None:
                yield from sorted(keys, reverse=reverse)
            elif reverse:
                yield from sorted((key for key in keys if key <= start), reverse=True)
            else:
                yield from sorted(key for key in keys if key >= start)
