"""The original index of a record in etcd, after later epochs."""

import pytest

from wharf.cluster.engines.etcd.layout import Epoch, EpochHistory, PastEpoch

NOW = Epoch(number=3, generation="0", base=3_000_000, since=300, fence=300)
OVER = [PastEpoch(since=100, base=1_000_000), PastEpoch(since=200, base=2_000_000)]


@pytest.mark.parametrize(
    ("revision", "index"),
    [
        (99, 1_000_099),  # Written before the first recorded epoch: the index has the base of that epoch.
        (100, 1_000_100),
        (199, 1_000_199),
        (200, 2_000_200),
        (299, 2_000_299),
        (300, 0),  # Its version is its index.
    ],
)
def test_the_index_of_a_row_depends_on_the_epoch_of_its_write(revision: int, index: int) -> None:
    assert index == EpochHistory(NOW, OVER).find_write_index(revision)


def test_without_records_of_epochs_the_index_of_a_row_is_its_version() -> None:
    assert EpochHistory(NOW, []).find_write_index(50) == 0
