"""Constraints and affinities: the plain form, and the short forms that set the operand."""

from typing import Any

import pytest

from tests.job_files.hcl.job_texts import list_errors, parse_body


def read_constraint(body: str) -> tuple[str, str, str]:
    """Return left value, operand and right value of a constraint with this body."""
    (constraint,) = parse_body(f"constraint {{\n{body}\n}}")["Constraints"]
    return constraint["LTarget"], constraint["Operand"], constraint["RTarget"]


def read_affinity(body: str) -> dict[str, Any]:
    (affinity,) = parse_body(f"affinity {{\n{body}\n}}")["Affinities"]
    return dict(affinity)


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("", ("", "=", "")),
        ('attribute = attr.kernel.name\nvalue = "linux"', ("${attr.kernel.name}", "=", "linux")),
        ('attribute = "${attr.cpu.numcores}"\noperator = ">="\nvalue = 4', ("${attr.cpu.numcores}", ">=", "4")),
        ('operator = ""\nvalue = true', ("", "=", "true")),
        ("operator = null", ("", "=", "")),
        ('operator = "anything"', ("", "anything", "")),
    ],
)
def test_the_plain_form_has_an_attribute_an_operator_and_a_value(body: str, result: tuple[str, str, str]) -> None:
    assert read_constraint(body) == result


@pytest.mark.parametrize(
    "operand", ["version", "semver", "regexp", "set_contains", "set_contains_any", "set_contains_all"]
)
def test_a_short_form_sets_the_operand(operand: str) -> None:
    assert read_constraint(f'attribute = "${{attr.x}}"\n{operand} = "v"') == ("${attr.x}", operand, "v")
    affinity = read_affinity(f'attribute = "${{attr.x}}"\n{operand} = "v"\nweight = 10')
    assert affinity == {"LTarget": "${attr.x}", "Operand": operand, "RTarget": "v", "Weight": 10}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("distinct_hosts = true", ("", "distinct_hosts", "true")),
        ("distinct_hosts = false", ("", "distinct_hosts", "false")),
        ('distinct_hosts = "true"', ("", "distinct_hosts", "true")),
        ('operator = "distinct_hosts"\nvalue = "true"', ("", "distinct_hosts", "true")),
        ('distinct_property = "${meta.rack}"', ("${meta.rack}", "distinct_property", "")),
        ('distinct_property = "${meta.rack}"\nvalue = "3"', ("${meta.rack}", "distinct_property", "3")),
        ('is_set = "${attr.x}"', ("${attr.x}", "is_set", "")),
        ('is_not_set = "${attr.x}"', ("${attr.x}", "is_not_set", "")),
    ],
)
def test_some_short_forms_exist_in_constraints_only(body: str, result: tuple[str, str, str]) -> None:
    assert read_constraint(body) == result


@pytest.mark.parametrize("name", ["distinct_hosts", "distinct_property", "is_set", "is_not_set"])
def test_an_affinity_has_no_such_short_form(name: str) -> None:
    (message,) = list_errors(f"affinity {{\n{name} = true\n}}")

    assert message == f'no argument "{name}" is allowed in affinity | {name} belongs to constraint'


def test_a_short_form_replaces_operator_and_value() -> None:
    assert read_constraint('attribute = "a"\noperator = ">"\nvalue = "1"\nversion = "2"') == ("a", "version", "2")


@pytest.mark.parametrize("body", ['version = ""', "version = null", "distinct_hosts = null", 'is_set = ""'])
def test_an_empty_short_form_counts_as_absent(body: str) -> None:
    assert read_constraint(f'attribute = "a"\nvalue = "b"\n{body}') == ("a", "=", "b")


def test_two_short_forms_are_an_error_that_names_both() -> None:
    assert list_errors('constraint {\n distinct_hosts = true\n version = "1"\n}') == [
        '"distinct_hosts" and "version" are two comparisons | write one block for each'
    ]


@pytest.mark.parametrize("name", ["constraint", "affinity"])
@pytest.mark.parametrize("value", ['"${attr.kernel.name} = linux"', '["${attr.kernel.name} = linux"]'])
def test_a_comparison_as_a_text_is_an_error_that_names_the_arguments(name: str, value: str) -> None:
    assert list_errors(f"{name} = {value}") == [
        f'"{name}" is a block, not an argument | write {name} {{ ... }} with attribute = "${{attr.kernel.name}}", '
        'operator = "=" and value = "linux" on lines of their own'
    ]


@pytest.mark.parametrize(
    ("text", "weight"), [("50", 50), ("-100", -100), ("50.9", 50), ("-0.5", 0), ("127", 127), ('"3"', 3)]
)
def test_a_fraction_of_a_weight_is_cut(text: str, weight: int) -> None:
    assert read_affinity(f"weight = {text}")["Weight"] == weight


def test_a_weight_out_of_range_is_an_error() -> None:
    assert list_errors("affinity { weight = 128 }") == ['"weight" takes a whole number from -128 to 127, not 128']
