"""The cache with a limited number of entries."""

import pytest

from wharf.limits.core.caches import REMOVED_ENTRIES, BoundedCache


@pytest.mark.parametrize("max_entries", [REMOVED_ENTRIES + 1, 2 * REMOVED_ENTRIES])
def test_a_full_cache_loses_its_oldest_entries_before_the_next_one_is_stored(max_entries: int) -> None:
    cache: BoundedCache[int, str] = BoundedCache(max_entries)
    for number in range(max_entries):
        cache.store(number, "value")
    full = list(cache)
    cache.store(-1, "value")

    assert (full, list(cache)) == ([*range(max_entries)], [*range(REMOVED_ENTRIES, max_entries), -1])


@pytest.mark.parametrize("max_entries", [1, REMOVED_ENTRIES - 1, REMOVED_ENTRIES])
def test_a_small_full_cache_loses_all_entries(max_entries: int) -> None:
    cache: BoundedCache[int, str] = BoundedCache(max_entries)
    for number in range(max_entries + 1):
        cache.store(number, "value")

    assert list(cache) == [max_entries]


def test_a_stored_value_is_returned_and_found_and_replaces_the_former_one() -> None:
    cache: BoundedCache[str, int] = BoundedCache(2)

    assert [cache.store("a", 1), cache.get("a"), cache.store("a", 2), cache.get("a"), cache.get("b")] == [
        1,
        1,
        2,
        2,
        None,
    ]
