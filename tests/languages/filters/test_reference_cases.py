"""Section 2 of the reference: its table of cases, the operators of each kind, and missing values."""

import pytest

from tests.languages.filters.datum import Datum, accepts
from wharf.languages.filters import (
    FilterError,
    FilterEvaluationError,
    FilterSyntaxError,
    FilterTypeError,
    compile_filter,
)

SYNTAX = "syntax error"
TYPE = "type error"
RECORD = "evaluation error of a record"

# Table 2.7, row by row. Where it says "evaluation error", Wharf raises a type error if the type shows the problem.
CASES: tuple[tuple[str, bool | str], ...] = (
    *(("Name == web", True), ('Name=="web"', True), ("Name == `web`", True)),
    ("Name == abc-1", SYNTAX),
    *(('N == "0x32"', True), ("N == 0x32", SYNTAX)),
    *(("N == 50.0", TYPE), ("U == -1", TYPE), ("B == yes", TYPE)),
    *(("B == t", True), ("B == 1", True)),
    *(("N == 05", SYNTAX), ("N == +5", SYNTAX), ("N == 1e3", SYNTAX), ("N == 5x", SYNTAX)),
    *(('Name matches "^w.b$"', True), ('Name matches "\\\\w"', True), ('Name matches "\\w"', SYNTAX)),
    *(('Name matches "("', TYPE), ('N matches "5"', TYPE)),
    *(("dc1 in DCs", True), ("DCs contains dc3", False), ("dc3 not in DCs", True)),
    *(('"e" in Name', True), ('Name contains "eb"', True)),
    *(("a in Meta", True), ("b in Meta", False)),
    *(("1 in Ints", True), ("x in Ints", TYPE)),
    *(('"s0" in Subs', TYPE), ("3 in N", TYPE)),
    *(("Meta.a == b", True), ('Meta["x.y"] == z', True), ('"/Meta/x.y" == z', True)),
    ("Meta.x.y == z", TYPE),
    *(("Meta.zzz == b", False), ("Meta.zzz != b", True), ("Meta.zzz is empty", True), ("Meta.zzz is nil", True)),
    *(("NilMap.a != b", True), ("NilMap is nil", True), ("NilSlice is empty", True)),
    *(("Meta.a.b != c", TYPE), ("NilPtr.Name == p", RECORD), ("NilPtr is empty", TYPE)),
    *(("NilPtr is nil", True), ("Sub is nil", False), ("N is nil", TYPE)),
    *(("Name is empty", False), ("N is empty", TYPE)),
    *(("Subs.0.Name == s0", True), ('Subs["0"].Name == s0', True)),
    *(("Subs[0].Name == s0", SYNTAX), ("Subs.9.Name == s0", RECORD)),
    *(("Nope == 1", TYPE), ("name == web", TYPE)),
    *(('any DCs as d { d == "dc2" }', True), ('all DCs as d { d matches "^dc" }', True)),
    ('any Subs as s { s.Name == "s1" and s.Port == 2 }', True),
    # A syntax error in the reference; rule 5 of the specification, which outranks it, makes white space free.
    ('any Subs as s { s.Name == "s1" and s.Port == 2}', True),
    ('any Subs as i, s { i == 0 and s.Name == "s0" }', True),
    ('any Subs as _, s { s.Name == "s1" }', True),
    *(('any Meta as k { k == "a" }', True), ('any Meta as k, v { k == "a" and v == "b" }', True)),
    *(('all Meta.zzz as x { x == "a" }', True), ('any Meta.zzz as x { x == "a" }', False)),
    ("any Subs as s { any s.Tags as t { t == blue } }", True),
    ('Name == zzz or any DCs as d { d == "dc2" }', True),
    ("Name == web and any DCs as d { d == dc2 }", SYNTAX),
    ("not any DCs as d { d == x }", SYNTAX),
    ("Name == web and (any DCs as d { d == dc2 })", True),
    ("not (any DCs as d { d == dc9 })", True),
    *(("Name == web or Name == x and N == 1", True), ("(Name == web or Name == x) and N == 1", False)),
    *(("not Name == x and N == 1", False), ("not not Name == web", True)),
    *(("(Name == web", SYNTAX), ("Name == web)", SYNTAX), ("Name == 'web'", SYNTAX), ("Name = web", SYNTAX)),
    *(("N > 3", SYNTAX), ("B", SYNTAX), ('Name in ["web"]', SYNTAX), ("", SYNTAX), (" ", SYNTAX)),
)


def outcome(text: str) -> bool | str:
    try:
        return accepts(text)
    except FilterSyntaxError:
        return SYNTAX
    except FilterTypeError:
        return TYPE
    except FilterEvaluationError:
        return RECORD


@pytest.mark.parametrize(("text", "result"), CASES, ids=[text or "blank" for text, _ in CASES])
def test_a_case_of_the_reference_has_its_result(text: str, result: bool | str) -> None:
    assert result == outcome(text)


# Table 2.4: the operators of each kind in the order == , contains, matches, is empty, is nil. `E` is an error.
E = TYPE
BY_KIND = {
    "string": ("Name", "web", (True, True, True, False, E)),
    "enum of text": ("Colour", "blue", (True, True, True, False, E)),
    "enum that is no text itself": ("Mood", "calm", (True, True, True, False, E)),
    "bool": ("B", "true", (True, E, E, E, E)),
    "signed int": ("N", "50", (True, E, E, E, E)),
    "unsigned int": ("U", "7", (True, E, E, E, E)),
    "float": ("F", "1.5", (True, E, E, E, E)),
    "list of text": ("DCs", "dc1", (E, True, E, False, False)),
    "list of ints": ("Ints", "2", (E, True, E, False, False)),
    "list of floats": ("Floats", "2", (E, True, E, False, False)),
    "list of bools": ("Bools", "t", (E, True, E, False, False)),
    "set": ("Members", "x", (E, True, E, False, False)),
    "list that is null": ("NilSlice", "a", (E, False, E, True, True)),
    "list of structs": ("Subs", "s0", (E, E, E, False, False)),
    "bytes": ("Data", "71", (E, True, False, False, False)),
    "untyped list": ("AnyList", "two", (E, True, E, False, False)),
    "map": ("Meta", "a", (E, True, E, False, False)),
    "map that is null": ("NilMap", "a", (E, False, E, True, True)),
    "pointer to a scalar": ("Number", "4", (True, E, E, E, False)),
    "null pointer to a scalar": ("NoNumber", "4", (RECORD, E, E, E, True)),
    "null pointer to text": ("NoText", "a", (RECORD, RECORD, RECORD, RECORD, True)),
    "pointer to a struct": ("Ptr", "a", (E, E, E, E, False)),
    "null pointer to a struct": ("NilPtr", "a", (E, E, E, E, True)),
    "unset pointer to a struct": ("Unset", "a", (E, E, E, E, True)),
    "struct": ("Sub", "a", (E, E, E, E, False)),
}
FORMS = (
    ('{} == "{}"', '{} != "{}"'),
    ('"{1}" in {0}', '"{1}" not in {0}'),
    ('{} matches "{}"', '{} not matches "{}"'),
    ("{} is empty", "{} is not empty"),
    ("{} is nil", "{} is not nil"),
)


@pytest.mark.parametrize("kind", BY_KIND)
def test_a_kind_has_the_operators_of_the_reference_and_their_negations(kind: str) -> None:
    selector, value, results = BY_KIND[kind]
    positive = tuple(outcome(form.format(selector, value)) for form, _ in FORMS)
    negative = tuple(outcome(form.format(selector, value)) for _, form in FORMS)

    assert results == positive
    assert tuple(not result if isinstance(result, bool) else result for result in results) == negative


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(('N == "0x32"', True), ('N == "0X32"', True), ('N == "0b110010"', True), ('N == "0o62"', True)),
        *(('N == "062"', True), ('N == "5_0"', True), ('N == "0x_32"', True), ('N == "+50"', True)),
        *(('N == "5__0"', TYPE), ('N == "_50"', TYPE), ('N == "50_"', TYPE), ('N == "08"', TYPE), ('N == ""', TYPE)),
        *(('N == " 50"', TYPE), ('N == "٥٠"', TYPE), ('N == "5e1"', TYPE), ('N == "99999999999999999999"', TYPE)),
        *(('N == "' + "9" * 5_000 + '"', TYPE), ('N == "18446744073709551615"', False), ("N == -50", False)),
        *(('U == "+7"', TYPE), ('U == "0x7"', True)),
        *(
            ('F == "1.5"', True),
            ('F == "15e-1"', True),
            ('F == "1e999"', TYPE),
            ('F == "inf"', TYPE),
            ("F == 1", False),
        ),
        *(('F == "nan"', TYPE), ('F == "1_5"', TYPE), ("N == 50", True), ('N == "50"', True), ("Name == 50", False)),
        *(("B == " + word, True) for word in ("1", "t", "T", "TRUE", "true", "True")),
        *(("B == " + word, False) for word in ("0", "f", "F", "FALSE", "false", "False")),
        *(("B == tRUE", TYPE), ("256 in Data", TYPE), ("255 in Data", True), ('"G" in Data', TYPE)),
        *(('Data matches "^GET"', True), ('Data matches "POST"', False)),
    ],
)
def test_a_literal_is_coerced_to_the_kind_of_the_field(text: str, result: bool | str) -> None:
    assert result == outcome(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(("Meta.zzz == b", False), ("b in Meta.zzz", False), ("Meta.zzz contains b", False)),
        *(("Meta.zzz matches b", False), ("Meta.zzz is not empty", False), ("Meta.zzz is not nil", False)),
        *(("any Meta.zzz as x { x == b }", False), ("Meta.zzz != b", True), ("b not in Meta.zzz", True)),
        *(("Meta.zzz not contains b", True), ("Meta.zzz not matches b", True), ("Meta.zzz is empty", True)),
        *(("Meta.zzz is nil", True), ("all Meta.zzz as x { x == b }", True)),
        # On a null map it is the same, and in untyped JSON.
        *(("NilMap.a == b", False), ("NilMap.a is nil", True), ("all NilMap.a as x { x == b }", True)),
        *(("Any.zzz == b", False), ("Any.zzz is nil", True), ("Any.zzz is empty", True), ("Any.zzz != b", True)),
        *(("any NilSlice as x { x == b }", False), ("all NilSlice as x { x == b }", True)),
        *(("any NilMap as x { x == b }", False), ("all Any.empty as x { x == b }", True)),
        # For an existing key, an operator that its kind lacks is an error of the record.
        *(("Meta.a is nil", RECORD), ("any Meta.a as x { x == b }", RECORD), ("Meta.a is not empty", True)),
        # In the middle it is an error.
        *(("ByName.zzz.Name == s0", RECORD), ("ByName.none.Name == s0", RECORD), ("ByName.one.Name == s0", True)),
        *(("Any.zzz.x == b", RECORD), ("ByName.none is nil", True), ("ByName.zzz is nil", True)),
    ],
)
def test_a_missing_last_key_is_not_present(text: str, result: bool | str) -> None:
    assert result == outcome(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(('Any.image == "redis:7"', True), ('Any.image matches "^redis"', True), ("Any.image contains dis", True)),
        *(("Any.port == 6379", True), ('Any.port == "6379.0"', True), ('Any.port == "0x18EB"', True)),
        *(("Any.port == http", RECORD), ("Any.port != http", RECORD), ("Any.on == yes", RECORD), ("Any.ratio == 0.5", True), ("Any.on == t", True)),
        *(("Any.on == 1", True), ("Any.null is nil", True), ("Any.image is nil", False), ("Any.null == 1", RECORD)),
        *(("Any.null is empty", RECORD), ("Any.port is empty", RECORD), ("Any.empty is empty", True)),
        *(("Any.port matches 6", RECORD), ("6 in Any.port", RECORD), ("Any.args == x", RECORD)),
        *(("Any.args contains 2", True), ("in in Any.args", False), ("x in Any.args", False), ("Any.deep contains key", True)),
        *(("a in Any.holed", True), ("b in Any.holed", RECORD), ("Any.args.0 == `-v`", True), ("Any.args.2.0 == in", True)),
        *(("Any.args.9 == x", RECORD), ("Any.args.x == x", RECORD), ("Any.image.x == x", RECORD), ("Any.null.x == x", RECORD)),
        *(("Any.deep.key.x == 1", True), ("any Any.args as a { a == 2 }", True), ("any Any.deep as k { k == key }", True)),
        *(("any Any.deep as k, v { k == key and v.x == 1 }", True), ("any Any.args as i, a { i == 1 and a == 2 }", True)),
        *(("any Any.image as x { x == 1 }", RECORD), ("any Any.null as x { x == 1 }", RECORD)),
        *(('Any.image matches "("', TYPE), ("two in AnyList", True), ("3.5 in AnyList", True), ("x in AnyList", False)),
        *(('Any.ratio == "0x1p-1"', True), ('Any.ratio == "0x1"', False), ('Any.port == "6_379"', True)),
        *(('Any.ratio == "inf"', RECORD), ('Any.ratio == "1e999"', RECORD), ('Any.ratio == "0x1.8"', RECORD)),
        ('Any is nil', False),
    ],
)  # fmt: skip
def test_untyped_json_is_evaluated_by_the_type_in_each_record(text: str, result: bool | str) -> None:
    assert result == outcome(text)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(('Time == "2026-11-21T10:30:00Z"', True), ('Time matches "^2026-11"', True), ('"T10:" in Time', True)),
        *(("Time is empty", False), ("Time is nil", False), ("NoTime is empty", True), ("NoTime is nil", True)),
        *(("NoTime == x", False), ("NoTime != x", True), ("NoTime not matches x", True), ("x in NoTime", False)),
        ("any NoTime as x { x == y }", TYPE),
    ],
)
def test_a_time_is_compared_as_its_wire_text_and_a_null_time_is_missing(text: str, result: bool | str) -> None:
    assert result == outcome(text)


# 2.3: selectors.


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(('"/Name" == web', True), ('"/Subs/0/Name" == s0', True), ('Meta[""] == empty', True)),
        *(("Meta[`x.y`] == z", True), ("DCs.0 == dc1", True), ("DCs.00 == dc1", True), ("DCs.2 == dc1", RECORD)),
        *(('DCs["x"] == dc1', TYPE), ("NilSlice.0 == x", RECORD), ("Members.0 == x", TYPE), ("Name.x == y", TYPE)),
        *(("DCs.99999999999999999999999 == x", TYPE), ("Unset.Name == x", RECORD)),
        # Bound names shadow fields; outer fields stay in reach.
        ("any Subs as Name { Name.Name == s1 }", True),
        ("any Subs as s { s.Port == 9 or Name == web }", True),
        # A word on the right is a value and never a selector: `N` is no port.
        ("any Subs as s { s.Port == N or Name == web }", TYPE),
        ("any Subs as s { any DCs as d { d == dc2 and s.Name == s1 and Name == web and s.Port == 2 } }", True),
        ("any Subs as s { any DCs as d { any Ints as s { s == 3 and d == dc2 } } }", True),
        ("any Subs as x, x { x.Name == s0 }", TYPE),
        ("any Subs as i, _ { i == 1 }", True),
        ("any Subs as i, _ { i == 2 }", False),
        ("any Subs as i, s { i == -1 }", TYPE),
        ("any N as x { x == 1 }", TYPE),
        ("all Subs as s { s.Nope == 1 }", TYPE),
    ],
)
def test_a_selector_selects_the_value_in_the_reference(text: str, result: bool | str) -> None:
    assert result == outcome(text)


# 2.2: precedence and keywords.


def test_the_right_operand_is_not_evaluated_if_the_left_one_decides() -> None:
    assert accepts("Name == web or Subs.9.Name == x")
    assert not accepts("Name == x and Subs.9.Name == x")


def test_an_unknown_field_on_the_right_is_always_an_error() -> None:
    assert outcome("Name == web or Nope == x") == TYPE


def test_a_type_error_is_raised_without_any_record() -> None:
    with pytest.raises(FilterTypeError):
        compile_filter("Nope == 1", Datum)


@pytest.mark.parametrize("text", ["Name == web AND N == 50", "Name == web && N == 50", "! Name == web", "N < 60"])
def test_operators_of_other_languages_are_syntax_errors(text: str) -> None:
    assert outcome(text) == SYNTAX


def test_not_before_a_parenthesis_needs_no_space() -> None:
    # The reference requires a space; rule 5 of the specification, which outranks it, does not.
    assert (outcome("not(Name == web)"), outcome("not (Name == web)")) == (False, False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        # 2.6.2: the reference's texts, with the location in front if they are type errors.
        ("A == 1", 'error finding value in datum: /A at part 0: couldn\'t find key: struct field with name "A"'),
        ("ByName.k.Name == x", 'error finding value in datum: /ByName/k/Name at part 1: couldn\'t find key "k"'),
        ("DCs.9 == x", "error finding value in datum: /DCs/9 at part 1: index 9 is out of range (length = 2)"),
        ("NilPtr.Name == x", "error finding value in datum: /NilPtr/Name: at part 1, invalid value kind: invalid"),
        ("N == x", "error getting match value in expression: "),
        ("DCs == x", "unable to find suitable primitive comparison function for matching"),
        ("x in Subs", 'unable to find suitable primitive comparison function for "in" comparison'),
        ("x in N", 'cannot perform in/contains operations on type int for selector: "N"'),
        ("N is empty", "cannot perform is-empty operations on type int"),
        ("N is nil", "cannot perform is-nil operations on type int"),
        ("N matches x", "value of type int is not convertible to []byte"),
        ('Name matches "("', 'failed to compile regular expression "(": '),
        ("any N as x { x == 1 }", "N is not a list or a map"),
    ],
)
def test_an_error_has_the_text_of_the_reference(text: str, error: str) -> None:
    with pytest.raises(FilterError) as raised:
        accepts(text)

    assert error in raised.value.text
