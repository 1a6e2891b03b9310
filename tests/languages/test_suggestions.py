"""The name that a user probably meant."""

import pytest

from wharf.languages.suggestions import MAX_COMPARED_NAMES, MAX_SUGGESTION_CHARS, find_nearest_name

KNOWN = ["count", "Constraint", "affinity"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cuont", "count"), ("COUNT", "count"), ("constrain", "Constraint"), ("afinity", "affinity"), ("zzz", None), ("", None)],
)  # fmt: skip
def test_the_nearest_name_is_suggested_if_it_is_similar_enough(name: str, expected: str | None) -> None:
    assert find_nearest_name(name, KNOWN) == expected


def test_the_required_similarity_can_be_lower() -> None:
    assert find_nearest_name("cnstr", KNOWN) is None
    assert find_nearest_name("cnstr", KNOWN, min_similarity=0.5) == "Constraint"


def test_a_very_long_name_is_not_searched() -> None:
    long_name = "a" * (MAX_SUGGESTION_CHARS + 1)
    assert find_nearest_name(long_name, [long_name]) is None


def test_nothing_is_suggested_if_nothing_is_known() -> None:
    assert find_nearest_name("count", []) is None


def test_of_many_known_names_only_those_with_swapped_letters_or_another_case_are_found() -> None:
    known = [f"name{number}" for number in range(MAX_COMPARED_NAMES + 1)]

    assert find_nearest_name("naem7", known) == "name7"
    assert find_nearest_name("NAME7", known) == "name7"
    assert find_nearest_name("nam7", known) is None
