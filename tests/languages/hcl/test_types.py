"""Types and conversion (reference section 5)."""

from fractions import Fraction

import pytest

from tests.languages.hcl.evaluations import evaluate, evaluate_value, find_failure
from wharf.languages.hcl.values import HclList, HclMap, HclObject, HclSet, HclTuple, get_type


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Number and bool to string.
        ("convert(1.50, string)", "1.5"),
        ("convert(1e21, string)", "1000000000000000000000"),
        ("convert(-0.001, string)", "-0.001"),
        ("convert(true, string)", "true"),
        ("convert(false, string)", "false"),
        # String to number.
        ('convert("1.50", number)', 1.5),
        ('convert("-1", number)', -1),
        ('convert("+1", number)', 1),
        ('convert("1e3", number)', 1000),
        # String to bool.
        ('convert("true", bool)', True),
        ('convert("false", bool)', False),
        ('convert("1", bool)', True),
        ('convert("0", bool)', False),
        # Collections.
        ('convert([1, "a"], list(string))', ["1", "a"]),
        ('convert(["b", "a", "b"], set(string))', ["a", "b"]),
        ("convert([2, 1, 2], set(number))", [1, 2]),
        ("convert(convert([2, 1], set(number)), list(number))", [1, 2]),
        ('convert({a = 1, b = "x"}, map(string))', {"a": "1", "b": "x"}),
        ("convert({a = 1, b = 2}, object({a = string}))", {"a": "1"}),
        ('convert([1, "2"], tuple([string, number]))', ["1", 2]),
        ("convert([{a = 1}], list(object({ a = string })))", [{"a": "1"}]),
        # Any, and null.
        ("convert([1, true], any)", [1, True]),
        ('convert([1, "a"], list(any))', ["1", "a"]),
        ("convert({a = 1}, map(any))", {"a": 1}),
        ("convert(null, string)", None),
        ("convert([null], list(string))", [None]),
    ],
)
def test_a_value_converts_to_a_type(text: str, value: object) -> None:
    assert value == evaluate(text)


def test_the_text_of_a_third_has_155_digits() -> None:
    assert "0." + "3" * 155 == evaluate("convert(1 / 3, string)")
    assert "0." + "6" * 154 + "7" == evaluate("convert(2 / 3, string)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('convert(" 1", number)', "expected a number, got a text that is not a number"),
        ('convert("0x1", number)', "expected a number, got a text that is not a number"),
        ('convert("", number)', "expected a number, got a text that is not a number"),
        ("convert(true, number)", "expected a number, got a bool"),
        ("convert(1, bool)", "expected true or false, got a number"),
        ('convert("yes", bool)', "expected true or false, got another text"),
        ('convert("True", bool)', "expected true or false, got another text"),
        ('convert("a", list(string))', "expected a list, got a text"),
        ("convert({}, list(string))", "expected a list, got an object"),
        ("convert([], map(string))", "expected a map, got a list"),
        ("convert([[]], list(string))", "at item 0: expected a text, got a list"),
        ('convert({a = "x"}, map(number))', 'at key "a": expected a number, got a text that is not a number'),
        ("convert({}, object({a = string}))", 'expected an object with the attribute "a", which is missing'),
        ("convert([1], tuple([number, number]))", "expected a tuple of 2 items, got 1"),
        ("convert([1, []], list(any))", "the items have no common type"),
    ],
)
def test_a_value_that_does_not_convert_is_an_error(text: str, message: str) -> None:
    assert [f"convert: {message}"] == find_failure(text).messages


def test_a_bool_in_other_letters_gets_the_advice_to_use_lower_case() -> None:
    assert ["write true in lower case"] == find_failure('convert("True", bool)').fixes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("convert(1, list)", "the type list needs the type of its items"),
        ("convert(1, map)", "the type map needs the type of its items"),
        ('convert(1, "string")', "a type is written without quotes"),
        ("convert(1, object({a = optional(string)}))", "optional attributes are not offered"),
        ("convert(1, text)", 'no type "text" exists'),
        ("convert(1, listt(string))", 'no type "listt" exists'),
        ("convert(1, string(1))", "the type string takes no arguments"),
        ("convert(1, tuple(string))", "the type tuple takes a list of types"),
        ("convert(1, object(string))", "the type object takes its attributes"),
        ("convert(1, 5)", "expected a type"),
        ("convert(1)", "convert: argument 2 is missing"),
    ],
)
def test_a_wrong_type_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text).messages


@pytest.mark.parametrize(
    ("text", "kind", "type_text"),
    [
        ("[1]", HclTuple, "tuple([number])"),
        ("{a = 1}", HclObject, "object({a = number})"),
        ("convert([1], list(number))", HclList, "list(number)"),
        ("convert([1], set(number))", HclSet, "set(number)"),
        ("convert({a = 1}, map(number))", HclMap, "map(number)"),
        ("[for v in [1] : v]", HclTuple, "tuple([number])"),
    ],
)
def test_a_value_has_a_type(text: str, kind: type, type_text: str) -> None:
    value = evaluate_value(text)

    assert isinstance(value, kind)
    assert type_text == str(get_type(value))


def test_sets_are_equal_in_any_order() -> None:
    assert True is evaluate("convert([[1], [2]], set(list(number))) == convert([[2], [1]], set(list(number)))")
    assert True is evaluate("convert([true, null], set(bool)) == convert([null, true], set(bool))")


def test_list_literals_keep_mixed_types() -> None:
    assert [1, "a", True, None] == evaluate('[1, "a", true, null]')


def test_decimals_are_exact() -> None:
    assert Fraction(1, 10) == evaluate_value("0.1")
    assert 10**22 + 1 == evaluate_value("1e22 + 1")
