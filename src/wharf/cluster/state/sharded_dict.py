"""A dict of records that is split into small dicts, so that growing it never blocks the event loop for long.

A dict that is full is copied to a larger one, which takes 40 ms or more for a million records. Random ids are therefore
split by their first characters; a million ids give 256 shards of about 4,000. Names are fewer and often start alike, so
they use a single shard.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec

R = TypeVar("R", bound=msgspec.Struct)

ID_SHARD_KEY_CHARS: Final = 2
"""How many characters of a random id select its shard: 2 hexadecimal characters give 256 shards."""


class ShardedDict(Generic[R]):
    """Records by key. Hot loops may use `shards` directly: a record is at `shards[key[:shard_key_chars]][key]`."""

    __slots__ = ("shard_key_chars", "shards")

    def __init__(self, *, shard_key_chars: int) -> None:
        self.shards: dict[str, dict[str, R]] = {}
        self.shard_key_chars = shard_key_chars

    def get(self, key: str) -> R | None:
        shard = self.shards.get(key[: self.shard_key_chars])
        return None if shard is None else shard.get(key)

    def __getitem__(self, key: str) -> R:
        return self.shards[key[: self.shard_key_chars]][key]

    def __contains__(self, key: str) -> bool:
        shard = self.shards.get(key[: self.shard_key_chars])
        return shard is not None and key in shard

    def __len__(self) -> int:
        return sum(map(len, self.shards.values()))

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.shards.values())

    def pop(self, key: str) -> R | None:
        """Remove a record and return it, or `None` if there was none."""
        shard_name = key[: self.shard_key_chars]
        shard = self.shards.get(shard_name)
        if shard is None:
            return None
        removed = shard.pop(key, None)
        if not shard:
            del self.shards[shard_name]
        return removed

    def add_records(self, records: dict[str, R]) -> None:
        """Add records whose keys are all new."""
        shards, shard_key_chars = self.shards, self.shard_key_chars
        for key, record in records.items():
            shard = shards.get(key[:shard_key_chars])
            if shard is None:
                shards[key[:shard_key_chars]] = {key: record}
                continue
            assert key not in shard, f"{key!r} was added twice"
            shard[key] = record

    def iter_prefix(self, prefix: str, *, start: str | None, reverse: bool) -> Iterator[str]:
        """Yield keys with this prefix in order, from `start` (included) upwards, or downwards in reverse.

        Each shard is sorted when it is read, because ids are rarely listed by key.
        """
        for shard_name in sorted(self.shards, reverse=reverse):
            if not shard_name.startswith(prefix[: self.shard_key_chars]):
                continue
            if start is not None and (
                shard_name > start[: self.shard_key_chars] if reverse else shard_name < start[: self.shard_key_chars]
            ):
                continue  # The whole shard is before the start.
            keys: Iterable[str] = self.shards[shard_name]
            if len(prefix) > self.shard_key_chars:
                keys = [key for key in keys if key.startswith(prefix)]
            if start is None:
                yield from sorted(keys, reverse=reverse)
            elif reverse:
                yield from sorted((key for key in keys if key <= start), reverse=True)
            else:
                yield from sorted(key for key in keys if key >= start)
