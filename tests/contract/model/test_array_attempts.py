"""Results of elements: layers of attempts, short forms of states, and lists of indexes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wharf.contract.model.jobs.array_attempts import (
    CHUNK_ELEMENTS,
    ArrayAttempt,
    ArrayResults,
    CancelCause,
    ElementStates,
    GroupAttempt,
    IndexesError,
    decode_runs,
    encode_runs,
    format_indexes,
    parse_indexes,
    select_attempts,
)

layers = st.lists(st.tuples(st.text("-.sf", min_size=7, max_size=7), st.booleans()), max_size=4)


def build_states(base: str, overlays: list[tuple[str, bool]], *, is_canceled: bool = False) -> ElementStates:
    """Return the states of an array whose elements have these results in its attempts."""
    results, attempts = {}, []
    for number, (states, canceled) in enumerate([(base, is_canceled), *overlays], start=1):
        cause = CancelCause.STOPPED if canceled else CancelCause.NONE
        group = GroupAttempt(size=len(base), element_count=1, is_full=number == 1, cancel_cause=cause)
        attempts.append(ArrayAttempt(namespace="n", job_id="j", attempt=number, groups={"g": group}))
        results[number] = ArrayResults(
            namespace="n", job_id="j", attempt=number, group="g", chunk=0, results=states.encode()
        )
    return ElementStates("g", attempts, lambda attempt, _group, chunk: results.get(attempt) if chunk == 0 else None)


@given(st.text(".sf", min_size=7, max_size=7), layers, st.booleans())
def test_the_newest_attempt_with_an_element_decides_its_state(
    base: str, overlays: list[tuple[str, bool]], is_canceled: bool
) -> None:
    states = build_states(base, overlays, is_canceled=is_canceled)
    everything = [(base, is_canceled), *overlays]

    for index in range(7):
        owner = max(at for at, (text, _) in enumerate(everything) if text[index] != "-")
        state = everything[owner][0][index]
        if state == "." and any(canceled for _, canceled in everything[owner:]):
            state = "c"
        assert states.states[index : index + 1].decode() == state
        found = states.find_owner(index)
        assert found is not None
        assert found.attempt == owner + 1
    assert [*states.iter_open()] == [at for at in range(7) if states.is_open(at)]


def test_an_element_without_stored_results_is_open() -> None:
    size = CHUNK_ELEMENTS + 3
    group = GroupAttempt(size=size, element_count=size)
    attempt = ArrayAttempt(namespace="n", job_id="j", attempt=1, groups={"g": group})

    assert ElementStates("g", [attempt], lambda *_: None).states == b"." * size
    assert ElementStates("g", [], lambda *_: None).states == b""


def test_attempts_before_the_newest_full_one_do_not_count() -> None:
    full = GroupAttempt(size=1, element_count=1)
    partial = GroupAttempt(size=1, element_count=1, is_full=False)
    attempts = [
        ArrayAttempt(namespace="n", job_id="j", attempt=number, job_create_index=created, groups={name: group})
        for number, created, name, group in (
            (5, 9, "g", partial), (4, 9, "other", full), (3, 9, "g", full), (2, 9, "g", partial), (1, 1, "g", full),
        )
    ]  # fmt: skip

    assert [each.attempt for each in select_attempts(attempts, 9, "g")] == [3, 5]
    assert select_attempts(attempts, 2, "g") == []


@given(st.text("-.sfcrp", max_size=30))
def test_states_have_a_short_form(states: str) -> None:
    assert decode_runs(encode_runs(states.encode())) == states.encode()


def test_the_short_form_counts_equal_states() -> None:
    assert encode_runs(b"sss.f") == "3s1.1f"


@pytest.mark.parametrize(
    ("text", "ranges"),
    [("3", [(3, 3)]), ("7-9, 3", [(3, 3), (7, 9)]), ("0-5,2-7", [(0, 7)]), ("1,1", [(1, 1)])],
)
def test_indexes_are_a_list_of_numbers_and_ranges(text: str, ranges: list[tuple[int, int]]) -> None:
    assert parse_indexes(text, 10) == ranges


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "10", "1,,2", "1" * 10, "0," * 40_000])
def test_other_texts_are_no_indexes(text: str) -> None:
    with pytest.raises(IndexesError):
        parse_indexes(text, 10)


def test_indexes_are_written_as_ranges() -> None:
    assert format_indexes([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
