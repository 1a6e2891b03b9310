"""Expressions (reference section 4): operators, equality, conditionals, collections, indexes, splats, for and calls."""

from fractions import Fraction

import pytest

from tests.languages.hcl.evaluations import evaluate, evaluate_value, find_errors, find_failure, read_body
from wharf.languages.hcl.values import STRING, HclList, HclMap, HclObject, HclSet

LIST = HclList((1, 2), STRING)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Precedence, from low to high.
        ("true || false && false", True),
        ("false && true || true", True),
        ("true && 1 == 1", True),
        ("1 == 1 && 2 != 3", True),
        ("1 < 2 == true", True),
        ("1 + 2 < 4", True),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("100 / 10 / 5", 2),
        ("2 * -3", -6),
        ("- -3", 3),
        ("-(3)", -3),
        ("!true == false", True),
        ("!!true", True),
        ("-[5][0]", -5),
        ("1 + 1 == 2 ? 3 : 4", 3),
        ("false ? 1 : false ? 2 : 3", 3),
        ("true ? false ? 1 : 2 : 3", 2),
        # Arithmetic.
        ('"3" + 4', 7),
        ("7 / 2", 3.5),
        ("-7 % 3", -1),
        ("7 % -3", 1),
        ("5.5 % 2", 1.5),
        ("1 / 3 * 3 == 1", True),
        ("0.1 + 0.2 == 0.3", True),
        ('-"3"', -3),
        # Comparison.
        ("1 < 1.5", True),
        ('"10" > 9', True),
        ("2 <= 2", True),
        ("2 >= 3", False),
        # Equality without conversion.
        ('1 == "1"', False),
        ("1 == 1.0", True),
        ('[1] == ["1"]', False),
        ("[1, [2]] == [1, [2]]", True),
        ("{a = 1} == {a = 1}", True),
        ("null == null", True),
        ("null == 1", False),
        ("true == 1", False),
        ('"a" != "b"', True),
        # Logic.
        ('"true" && true', True),
        ('"1" || "0"', True),
        ('!"false"', True),
    ],
)
def test_an_operator_has_its_result(text: str, value: object) -> None:
    assert value == evaluate(text)


def test_equality_is_false_between_a_list_and_a_tuple_of_equal_content() -> None:
    assert False is evaluate("var.l == [1, 2]", l=LIST)
    assert False is evaluate("var.m == {a = 1}", m=HclMap({"a": 1}, STRING))
    assert True is evaluate("var.l == var.l", l=LIST)


def test_a_third_is_exact() -> None:
    assert Fraction(1, 3) == evaluate_value("1 / 3")


@pytest.mark.parametrize(
    ("text", "message", "marked"),
    [
        ("0 / 0", "division by zero", "0 / 0"),
        ("1 / 0", "division by zero", "1 / 0"),
        ("1 % 0", "division by zero", "1 % 0"),
        ("1e308 * 10", "the number is larger than 1.8e308", "1e308 * 10"),
        ('"a" + 1', "operator +: expected a number, got a text that is not a number", '"a"'),
        ('1 + "a"', "operator +: expected a number, got a text that is not a number", '"a"'),
        ('"a" < "b"', "operator <: expected a number, got a text that is not a number", '"a"'),
        ("true + 1", "operator +: expected a number, got a bool", "true"),
        ("null + 1", "operator +: expected a number, got null", "null"),
        ("null && true", "operator &&: expected true or false, got null", "null"),
        ("!null", "operator !: expected true or false, got null", "null"),
        ("!1", "operator !: expected true or false, got a number", "1"),
        ('"yes" && true', "operator &&: expected true or false, got another text", '"yes"'),
        ("null ? 1 : 2", "a condition must not be null", "null"),
        ("1 ? 1 : 2", "condition: expected true or false, got a number", "1"),
        ("[1] < 2", "operator <: expected a number, got a list", "[1]"),
    ],
)
def test_a_wrong_operand_is_an_error_at_its_place(text: str, message: str, marked: str) -> None:
    failure = find_failure(text)

    assert ([message], [marked]) == (failure.messages, failure.marked)


@pytest.mark.parametrize("text", ["true || nope()", "false && nope()", "nope() || true"])
def test_both_sides_of_a_logical_operator_are_evaluated(text: str) -> None:
    assert ['no function "nope" exists'] == find_failure(text).messages


def test_errors_of_both_operands_are_reported() -> None:
    assert ["nope", "nada"] == find_failure("nope() + nada()").marked


# -- conditionals


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true ? 1 : local.nope", 1),
        ("false ? local.nope : 2", 2),
        ("true ? 1 : nope()", 1),
        ('true ? 1 : "a"', "1"),
        ('false ? true : "a"', "a"),
        ('true ? true : "a"', "true"),
        ('true ? [1] : ["a"]', ["1"]),
        ('true ? [1] : ["a", "b"]', ["1"]),
        ('true ? [] : ["a"]', []),
        ("true ? null : 1", None),
        ("false ? null : 1", 1),
        ("true ? {a = 1} : {b = 2}", {"a": 1}),
        ('true ? {a = 1} : {a = "x"}', {"a": "1"}),
        ('true ? [{a = 1}] : [{a = "x"}, {a = "y"}]', [{"a": "1"}]),
        ("true ? [{a = 1}] : [{b = 2}]", [{"a": 1}]),
        ('"true" ? 1 : 2', 1),
    ],
)
def test_a_conditional_has_the_type_of_both_sides(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("true ? [1] : 2", "tuple([number]) and number"),
        ("true ? 1 : true", "number and bool"),
        ("true ? {} : []", "object({}) and tuple([])"),
        ("true ? {a = 1} : {a = [1]}", "object({a = number}) and object({a = tuple([number])})"),
    ],
)
def test_sides_without_a_common_type_are_an_error_that_names_both(text: str, kinds: str) -> None:
    message = f"the values of a conditional need one type, but they are {kinds}"

    assert [message] == find_failure(text).messages


# -- lists and objects


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[]", []),
        ('[1, "a", null, [true],]', [1, "a", None, [True]]),
        ("[\n 1,\n 2,\n]", [1, 2]),
        ("{}", {}),
        ("{ a = 1, b = 2 }", {"a": 1, "b": 2}),
        ("{ a : 1, b : 2, }", {"a": 1, "b": 2}),
        ("{\n a = 1\n b = 2 # comment\n\n c = 3,\n d = 4\n}", {"a": 1, "b": 2, "c": 3, "d": 4}),
        ("{ true = 1, null = 2, 1 = 3, a-b = 4, 1.50 = 5 }", {"true": 1, "null": 2, "1": 3, "a-b": 4, "1.5": 5}),
        ('{ (1 + 1) = 1, "x${1}" = 2, "a.b" = 3, (var.k) = 4 }', {"2": 1, "x1": 2, "a.b": 3, "key": 4}),
        ("{ a = 1, a = 2 }", {"a": 2}),
        ('{ "a" = 1, a = 2 }', {"a": 2}),
        ("{ a = <<EOF\nx\nEOF\n b = 2 }", {"a": "x\n", "b": 2}),
        ("{ for = 1 }", {"for": 1}),
    ],
)
def test_a_list_or_object_holds_its_items(text: str, value: object) -> None:
    assert value == evaluate(text, k="key")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1 2]", "a comma is missing before this item of the list"),
        ("[1\n2]", "a comma is missing before this item of the list"),
        ("[,]", 'expected a value, found ","'),
        ("{ a = 1 b = 2 }", "a comma is missing before this item of the object"),
        ("{ a.b = 1 }", "a key is a name, a text or an expression in parentheses"),
        ("{ a }", 'expected "=" or ":" after the key, found "}"'),
        ("{ a == 1 }", 'expected "=" or ":" after the key, found "="'),
        ("{ (null) = 1 }", "a key must not be null"),
        ("{ ([]) = 1 }", "a key: expected a text, got a list"),
        ("[1, 2", 'expected "," or "]", found the end of the file'),
    ],
)
def test_another_form_of_a_list_or_object_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text).messages


def test_a_dotted_key_gets_the_advice_to_use_parentheses_or_quotes() -> None:
    assert ["write (a.b) for its value, or put it in quotes"] == find_failure("{ a.b = 1 }").fixes


# -- indexes and splats

OBJECTS = "[{a = 1, l = [10, 11]}, {a = 2, l = [20, 21]}]"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[5, 6][0]", 5),
        ('[5, 6]["1"]', 6),
        ("[5, 6].0", 5),
        ("[[1, 2], [3, 4]].1.0", 3),
        ('{ a = 1 }["a"]', 1),
        ("{ a = 1 }.a", 1),
        ("{ a = { b = 2 } }.a.b", 2),
        ('{ "1" = 2 }[1]', 2),
        ("[5, 6][1 - 1]", 5),
        ("var.l[1]", 2),
        (f"{OBJECTS}[*].a", [1, 2]),
        (f"{OBJECTS}.*.a", [1, 2]),
        (f"{OBJECTS}[*].l[0]", [10, 20]),
        (f"{OBJECTS}.*.l[0]", [10, 11]),
        (f"{OBJECTS}.*.a[0]", 1),
        (f"{OBJECTS}[*].l[*]", [[10, 11], [20, 21]]),
        ("{a = 1}[*].a", [1]),
        ('"x"[*]', ["x"]),
        ("null[*]", []),
        ("null.*.a", []),
        ("[][*].a", []),
        ("(null)[*]", []),
    ],
)
def test_an_index_or_splat_reads_items(text: str, value: object) -> None:
    assert value == evaluate(text, l=LIST)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[5][1]", "index 1 is outside the list, which has 1 item"),
        ("[5][-1]", "index -1 is outside the list, which has 1 item"),
        ("[5][0.5]", "index: expected a whole number, got a fraction"),
        ('[5]["x"]', "index: expected a number, got a text that is not a number"),
        ("[5][null]", "an index must not be null"),
        ('{ a = 1 }["b"]', 'no key "b" exists here'),
        ("{ a = 1 }.b", 'no key "b" exists here'),
        ('"abc"[0]', "a text has no items to index"),
        ('"abc".a', 'a text has no attribute "a"'),
        ("[1].a", 'a list has no attribute "a"'),
        ("null.a", 'null has no attribute "a"'),
        ("var.s[0]", "a set has no items to index"),
    ],
)
def test_a_missing_item_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text, s=HclSet(("a",), STRING)).messages


def test_a_missing_key_gets_the_nearest_key() -> None:
    assert ['did you mean "http"?'] == find_failure("{ http = 1, admin = 2 }.htpp").fixes


# -- for


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[for v in [1, 2, 3] : v * 2]", [2, 4, 6]),
        ("[for v in [1, 2, 3] : v if v > 1]", [2, 3]),
        ('[for k, v in ["a", "b"] : "${k}${v}"]', ["0a", "1b"]),
        ('[for k, v in {b = 1, a = 2} : "${k}${v}"]', ["a2", "b1"]),
        ("[for v in {b = 1, a = 2} : v]", [2, 1]),
        ("[for k, v in var.s : [k, v]]", [["a", "a"], ["b", "b"]]),
        ("[for v in [] : nope()]", []),
        ("[for v in [1] : [for w in [2] : v + w]]", [[3]]),
        ("{for k, v in {a = 1, b = 2} : v => k}", {"1": "a", "2": "b"}),
        ('{for v in ["a", "b"] : v => upper(v) if v != "a"}', {"b": "B"}),
        ('{for v in ["x1", "y", "x2"] : substr(v, 0, 1) => v...}', {"x": ["x1", "x2"], "y": ["y"]}),
        ("[\n for v in [1] :\n v\n]", [1]),
        ("{\n for v in [1] :\n v => v\n}", {"1": 1}),
        ('[for k in sort(["é", "z", "a"]) : k]', ["a", "z", "é"]),
        ('[for k, v in {"é" = 1, "z" = 2, "Z" = 3} : k]', ["Z", "z", "é"]),
        # A name of for hides other names.
        ("[for attr in [{x = 1}] : attr.x]", [1]),
        ("[for var in [1] : var]", [1]),
    ],
)
def test_a_for_builds_a_list_or_object(text: str, value: object) -> None:
    assert value == evaluate(text, s=HclSet(("a", "b"), STRING))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[for v in "abc" : v]', "for needs a list, set, map or object, got a text"),
        ("[for v in null : v]", "for needs a list, set, map or object, got null"),
        ("[for v in 1 : v]", "for needs a list, set, map or object, got a number"),
        ('{for v in ["a", "a"] : v => 1}', 'the key "a" occurs twice'),
        ("{for v in [null] : v => 1}", "a key must not be null"),
        ("[for v in [1] : v if null]", "a condition must not be null"),
        ("[for v in [1] : v => v]", "a for in [ ] gives a list, without keys"),
        ("{for v in [1] : v}", 'expected "=>" and a value, found "}"'),
        ("[for v [1] : v]", 'expected "in" and a collection, found "["'),
        ("[for v in [1] v]", 'expected ":" after the collection, found "v"'),
    ],
)
def test_a_wrong_for_is_an_error(text: str, message: str) -> None:
    assert [message] == find_failure(text).messages


# -- calls


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max(1, 2)", 2),
        ("max(1, 2,)", 2),
        ("max(\n1,\n2\n)", 2),
        ("max([1, 2]...)", 2),
        ("max(3, [1, 2]...)", 3),
        ("max ( 1 )", 1),
        ('upper(lower(upper("a")))', "A"),
        ('["a", "b"][max(0, 1)]', "b"),
        ('split(",", "a,b")[1]', "b"),
    ],
)
def test_a_call_has_the_result_of_its_function(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ('replace("a", "b")', "replace: argument 3 (to) is missing", "write replace(s, from, to)"),
        ("upper()", "upper: argument 1 (s) is missing", "write upper(s)"),
        ('upper("a", "b")', 'upper: too many arguments: it takes 1; the last is "s"', "write upper(s)"),
        ("uper(1)", 'no function "uper" exists', 'did you mean "upper"?'),
        ("max([1]..., 2)", 'expected ")", because ... ends the arguments, found "2"', ""),
        ("max(1...)", "expected a list before ..., got a number", ""),
        ("max(null)", "max: n must not be null", ""),
        ("max(1 2)", 'expected "," or ")", found "2"', ""),
    ],
)
def test_a_wrong_call_is_an_error(text: str, message: str, fix: str) -> None:
    failure = find_failure(text)

    assert ([message], [fix]) == (failure.messages, failure.fixes)


def test_a_long_chain_of_operators_uses_no_stack() -> None:
    assert 9_001 == evaluate("+".join(["1"] * 9_001))
    assert 1 == evaluate("-" * 10_000 + "1")
    assert {"a": 2} == read_body("a = " + "false ? 1 : " * 5_000 + "2\n")


def test_brackets_nest_up_to_a_limit() -> None:
    assert 1 == evaluate("(" * 100 + "1" + ")" * 100)
    assert ["nested more than 100 deep"] == find_failure("(" * 101 + "1" + ")" * 101).messages
    assert "nested more than 100 deep" in find_errors("a {\n" * 101 + "}\n" * 101)


def test_a_value_of_an_object_may_be_an_object() -> None:
    assert isinstance(evaluate_value("{a = {b = 1}}"), HclObject)
