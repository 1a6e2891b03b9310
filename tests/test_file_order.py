"""The order of test files in a run."""

from pathlib import Path

import pytest

from tests.file_order import FIRST_FILES, distribute_evenly, order_files

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("some", "others", "expected"),
    [
        ("", "", ""),
        ("ab", "", "ab"),
        ("", "ab", "ab"),
        ("AB", "abcdef", "aAbcdBef"),
        ("ABCD", "ab", "AaBCbD"),
    ],
)
def test_two_groups_of_files_are_distributed_evenly_and_keep_their_order(some: str, others: str, expected: str) -> None:
    assert expected == "".join(distribute_evenly(some, others))


def test_long_files_come_first_and_files_of_agents_between_files_that_compute() -> None:
    files = ["agent/test_a.py", "agent/test_b.py", "contract/test_c.py", "spec/test_d.py", "simulation/test_seeds.py"]

    ordered = order_files([TESTS / file for file in files])

    assert [TESTS / files[number] for number in (4, 0, 2, 1, 3)] == ordered


def test_the_files_that_come_first_exist() -> None:
    assert [] == [file for file in FIRST_FILES if not (TESTS / file).exists()]
