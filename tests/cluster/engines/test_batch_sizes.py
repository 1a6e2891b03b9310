"""The sizes of a log's batches: which ones to discard when they are too large together."""

from wharf.cluster.engines.batch_sizes import CHUNK_BYTES, BatchSizes


def count(*sizes: int) -> BatchSizes:
    """Return the counts of batches with these sizes and the indexes 1, 2, 3 and so on."""
    counted = BatchSizes()
    for index, size in enumerate(sizes, start=1):
        counted.add_batch(index, size)
    return counted


def test_no_batch_is_surplus_while_all_are_small_enough() -> None:
    assert count(CHUNK_BYTES, CHUNK_BYTES).find_surplus_index(2 * CHUNK_BYTES) == 0


def test_the_oldest_batches_are_surplus() -> None:
    assert count(*[CHUNK_BYTES] * 5).find_surplus_index(3 * CHUNK_BYTES) == 2


def test_the_newest_batch_is_retained_whatever_its_size() -> None:
    assert count(CHUNK_BYTES, 9 * CHUNK_BYTES).find_surplus_index(CHUNK_BYTES) == 1


def test_discarded_batches_are_not_counted() -> None:
    sizes = count(*[CHUNK_BYTES] * 5)

    sizes.remove_up_to(3)

    assert (sizes.total_bytes, sizes.find_surplus_index(CHUNK_BYTES)) == (2 * CHUNK_BYTES, 4)


def test_small_batches_are_counted_together() -> None:
    sizes = count(*[CHUNK_BYTES // 100] * 1_000)

    index = sizes.find_surplus_index(5 * CHUNK_BYTES)

    assert 490 <= index <= 610
