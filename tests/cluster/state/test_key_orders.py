"""The ordered sets of keys: every prefix, start and direction gives the keys that a sorted list gives."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

from wharf.cluster.state.ordering import BLOCK_BITS, CreationOrder, SortedKeys, find_prefix_end
from wharf.cluster.state.sharded_dict import ShardedDict

LAST = "\U0010ffff"
KEYS = ["", "0", "0a", "0a1", "0a12", "0a2", "0b", "0b1", "1a1", "1a1" + LAST, "1b", LAST, LAST + LAST, LAST + "x"]
PREFIXES = ["", "0", "0a", "0a1", "0a12", "0a3", "1a1", LAST, "2"]
STARTS = [None, "", "0a", "0a1", "0a15", "0b", "1", "1a1", LAST, LAST + LAST + "x"]
BLOCK = 1 << BLOCK_BITS


class Entry(msgspec.Struct):
    """A record of these tests."""

    name: str


def make_sorted_keys() -> SortedKeys:
    keys = SortedKeys()
    keys.add_many(KEYS[::2])
    for key in [*KEYS[1::2], "gone"]:
        keys.add(key)
    keys.remove("gone")
    return keys


def make_sharded_dict(shard_key_chars: int) -> ShardedDict[Entry]:
    records: ShardedDict[Entry] = ShardedDict(shard_key_chars=shard_key_chars)
    records.add_records({key: Entry(key) for key in KEYS[::2]})
    records.add_records({key: Entry(key) for key in [*KEYS[1::2], "gone", "0a-gone"]})
    assert [records.pop(key) for key in ("gone", "0a-gone")] == [Entry("gone"), Entry("0a-gone")]
    return records


SETS: dict[str, Callable[[], Any]] = {
    "sorted": make_sorted_keys,
    "in one shard": lambda: make_sharded_dict(0),
    "in shards": lambda: make_sharded_dict(2),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("make", SETS.values(), ids=SETS.keys())
def test_keys_with_a_prefix_are_listed_in_order_from_any_start(make: Callable[[], Any], reverse: bool) -> None:
    keys = make()

    for prefix, start in product(PREFIXES, STARTS):
        expected = sorted(
            (
                key
                for key in KEYS
                if key.startswith(prefix) and (start is None or (key <= start if reverse else key >= start))
            ),
            reverse=reverse,
        )
        assert list(keys.iter_prefix(prefix, start=start, reverse=reverse)) == expected, (prefix, start)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("", None), ("a", "b"), ("ab", "ac"), ("a" + LAST, "b"), ("a" + LAST + LAST, "b"), (LAST, None), (LAST * 3, None)],
)
def test_the_end_of_a_prefix_is_the_smallest_text_above_all_texts_with_it(prefix: str, end: str | None) -> None:
    assert find_prefix_end(prefix) == end


@pytest.mark.parametrize("shard_key_chars", [0, 2])
def test_a_sharded_dict_reads_like_a_dict(shard_key_chars: int) -> None:
    records = make_sharded_dict(shard_key_chars)

    assert sorted(records) == sorted(KEYS)
    assert len(records) == len(KEYS)
    for key in KEYS:
        assert (records[key], records.get(key), key in records) == (Entry(key), Entry(key), True)
    for key in ("0a9", "gone", "0a-gone", "x"):
        assert (records.get(key), key in records, records.pop(key)) == (None, False, None)


def test_a_shard_exists_while_it_has_records() -> None:
    records: ShardedDict[Entry] = ShardedDict(shard_key_chars=2)
    records.add_records({key: Entry(key) for key in ("aa1", "aa2", "bb1")})

    records.pop("aa1")
    assert sorted(records.shards) == ["aa", "bb"]
    records.pop("aa2")
    assert sorted(records.shards) == ["bb"]


def list_created(entries: set[tuple[int, str]], start: tuple[int, str] | None, *, reverse: bool) -> Iterator[str]:
    for entry in sorted(entries, reverse=reverse):
        if start is None or (entry <= start if reverse else entry >= start):
            yield entry[1]


@pytest.mark.parametrize("reverse", [False, True])
def test_keys_are_listed_by_creation_from_any_start(reverse: bool) -> None:
    indexes = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7]
    entries = {(index, f"{name}{index}") for index in indexes for name in "abc"}
    order = CreationOrder()
    for index, key in sorted(entries, key=lambda entry: (entry[1][0], entry[0])):
        order.add(index, key)
    starts = [None, *((index + shift, name) for index in indexes for shift in (-1, 0, 1) for name in ("", "b5", "z"))]

    for start in [*starts, *entries]:
        expected = list(list_created(entries, start, reverse=reverse))
        assert list(order.iter_keys(start=start, reverse=reverse)) == expected, start


def test_keys_that_are_removed_from_the_order_of_creation_are_not_listed_and_may_return() -> None:
    order, entries = CreationOrder(), set[tuple[int, str]]()

    def change(method: Callable[[int, str], None], index: int, key: str) -> None:
        method(index, key)
        (entries.add if method == order.add else entries.discard)((index, key))
        for reverse in (False, True):
            assert list(order.iter_keys(start=None, reverse=reverse)) == list(
                list_created(entries, None, reverse=reverse)
            )

    for index, key in ((5, "a"), (5, "b"), (9, "c"), (BLOCK + 5, "d"), (BLOCK + 5, "e")):
        change(order.add, index, key)
    for index, key in ((BLOCK + 5, "e"), (BLOCK + 5, "d"), (9, "c"), (5, "a")):
        change(order.remove, index, key)
    # The newest index was emptied, and is used again.
    change(order.add, BLOCK + 5, "f")
    change(order.remove, BLOCK + 5, "f")
    change(order.add, BLOCK + 5, "g")
    change(order.add, 9, "h")
    change(order.remove, 5, "b")
    change(order.add, 9, "i")
    change(order.remove, 9, "h")
    change(order.remove, 9, "i")
    change(order.remove, BLOCK + 5, "g")
    assert entries == set()
