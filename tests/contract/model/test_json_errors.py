"""What an error text says about a JSON body that cannot be decoded: the problem, the field and the position."""

import msgspec
import pytest

from wharf.contract.model.json_errors import MAX_INTEGER_DIGITS, MAX_SEARCHED_BYTES, JsonProblem, find_json_problem

HUGE = b"9" * (MAX_INTEGER_DIGITS + 1)


def find_problem(body: bytes) -> JsonProblem:
    """Return the problem of a text that msgspec refuses."""
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as refused:
        msgspec.json.decode(body)
    found = find_json_problem(body, str(refused.value))
    return JsonProblem(list(found.path), found.message)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"Job": {"Priority": 1e999}}', ["Job", "Priority"]),
        (b'{"Job": {"TaskGroups": [{"Count": 1}, {"Count": -1e999}]}}', ["Job", "TaskGroups", 1, "Count"]),
        (b'[1, [2, [3, 1e999]], "x"]', [1, 1, 1]),
        (b"1e999", []),
    ],
)
def test_a_number_that_is_too_large_is_named_by_its_path(body: bytes, path: list[str | int]) -> None:
    assert find_problem(body) == JsonProblem(path, "the number is too large")


def test_an_integer_with_too_many_digits_is_named_without_converting_it() -> None:
    found = find_json_problem(b'{"a": {"b": [0, ' + HUGE + b"]}}", "JSON is malformed: number out of range")

    assert (list(found.path), found.message) == (["a", "b", 1], "the number is too large")


@pytest.mark.parametrize(
    ("body", "path", "message"),
    [
        (b'{"a": "\xff"}', ["a"], "the text is not UTF-8 (line 1, column 8)"),
        (b'{"a": ["ok",\n "b\xc3"]}', ["a", 1], "the text is not UTF-8 (line 2, column 4)"),
        (b'{"a": {"\xfe": 1}}', ["a"], "the name of a field is not UTF-8 (line 1, column 9)"),
        ('{"é": {"b": "'.encode() + b'\xf0"}}', ["é", "b"], "the text is not UTF-8 (line 1, column 14)"),
    ],
)
def test_bad_utf8_is_named_by_its_path_and_position(body: bytes, path: list[str | int], message: str) -> None:
    assert find_problem(body) == JsonProblem(path, message)


def test_half_of_an_escaped_pair_is_named_by_its_path() -> None:
    found = find_problem(b'{"a": [{"b": "\\ud800"}]}')

    assert found == JsonProblem(["a", 0, "b"], "the text is not UTF-8")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the JSON is empty"),
        (b" \n ", "the JSON is empty"),
        (b'{"a": [1,\n 2', "the JSON ends too early (line 2, column 3)"),
        (b'{"a" 1}', "the JSON is malformed: expecting ':' delimiter (line 1, column 6)"),
        (b'{"a": \xff}', "the JSON is not UTF-8 (line 1, column 7)"),
        (b"[" * 100_000 + b"]" * 100_000, "the JSON is nested too deeply"),
    ],
    ids=["nothing", "white space", "cut", "malformed", "bad byte outside of a text", "nested"],
)
def test_a_text_that_is_no_json_has_a_position_and_no_path(body: bytes, message: str) -> None:
    found = find_json_problem(body, _read_message(body))

    assert (list(found.path), found.message) == ([], message)


def test_a_large_text_is_not_searched_for_the_field() -> None:
    padding = b'{"padding": "' + b"x" * MAX_SEARCHED_BYTES + b'", "a": '

    bad_byte, number = find_problem(padding + b'"\xff"}'), find_problem(padding + b"1e999}")

    assert bad_byte == JsonProblem([], f"the JSON is not UTF-8 (line 1, column {len(padding) + 2})")
    assert (number.path, number.message.partition(":")[0]) == ([], "the JSON is malformed")


def _read_message(body: bytes) -> str:
    """Return msgspec's error text."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return str(error)
    raise AssertionError("the text is valid")
