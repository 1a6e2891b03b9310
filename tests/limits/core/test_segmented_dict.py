"""A segmented dict behaves like a dict, and no insertion copies more than one of its segments."""

from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.core.counting.segmented_dict import MAX_UNSPLIT_KEYS, SEGMENT_COUNT, SegmentedDict

KEY_COUNT = 3 * MAX_UNSPLIT_KEYS


def make_split_dict() -> SegmentedDict[str, int]:
    values: SegmentedDict[str, int] = SegmentedDict()
    for number in range(KEY_COUNT):
        values[f"user:{number}"] = number
    return values


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "delete", "get"]), st.sampled_from("abcde"), st.integers(0, 9)), max_size=40
    ),
    st.booleans(),
)
def test_every_sequence_of_changes_has_the_result_of_a_dict(
    changes: list[tuple[str, str, int]], is_split: bool
) -> None:
    values: SegmentedDict[str, int] = SPLIT_DICT if is_split else SegmentedDict()
    expected = {f"user:{number}": number for number in range(KEY_COUNT)} if is_split else {}
    found: list[tuple[int | None, int]] = []
    for change, key, number in changes:
        if change == "set":
            values[key] = expected[key] = number
        elif change == "delete" and key in expected:
            del values[key], expected[key]
        found.append((values.get(key), len(values)))
        assert found[-1] == (expected.get(key), len(expected))
    assert dict(values.items()) == expected
    for key in set(values) - {f"user:{number}" for number in range(KEY_COUNT)}:
        del values[key]


SPLIT_DICT = make_split_dict()


def test_a_large_dict_has_many_small_segments() -> None:
    longest = max(map(len, make_split_dict().segments))

    assert longest < 2 * KEY_COUNT / SEGMENT_COUNT


def test_an_iteration_that_began_before_the_split_yields_every_earlier_key() -> None:
    values: SegmentedDict[str, int] = SegmentedDict()
    earlier = [f"user:{number}" for number in range(MAX_UNSPLIT_KEYS)]
    for key in earlier:
        values[key] = 1
    keys = iter(values)
    first = next(keys)

    values["one more"] = 1
    was_split = len(values.segments) == SEGMENT_COUNT

    assert (was_split, [first, *keys]) == (True, earlier)
