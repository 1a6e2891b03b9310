"""Limits of an evaluation: size, nesting, steps, built bytes, numbers. No input exhausts the stack."""

import tracemalloc
import unicodedata
from contextlib import nullcontext

import pytest

from tests.attempts import limited_cpu
from tests.languages.hcl.evaluations import (
    FREE_SCHEMA,
    Failure,
    evaluate,
    evaluate_value,
    find_errors,
    find_failure,
    list_errors,
    read_body,
)
from wharf.languages.hcl.budget import Budget, BudgetExceeded
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import MAX_FILE_BYTES, parse_document
from wharf.languages.hcl.reader import MAX_NESTING, MAX_NODES
from wharf.languages.hcl.values import MAX_ACCENTS, normalize_text


def test_a_file_has_at_most_a_megabyte() -> None:
    parse_document("#" * MAX_FILE_BYTES)

    for text in ("#" * (MAX_FILE_BYTES + 1), "é" * (MAX_FILE_BYTES // 2 + 1), b"#" * (MAX_FILE_BYTES + 1)):
        with pytest.raises(DocumentErrors, match="more than 1,000,000"):
            parse_document(text)


@pytest.mark.parametrize(
    ("start", "part", "nodes_of_part"),
    [("a = [", "[],", 1), ('a = "', "${x}", 2), ("", "b {\n}\n", 1), ('{"a": [', "[],", 1)],
)
def test_a_file_has_a_limit_of_blocks_and_expressions(start: str, part: str, nodes_of_part: int) -> None:
    with pytest.raises(DocumentErrors) as raised:
        parse_document(start + part * (MAX_NODES + 10))

    (error,) = raised.value.diagnostics
    assert error.message == "the file has more than 100,000 blocks and expressions"
    assert abs(error.place.start - len(start) - MAX_NODES // nodes_of_part * len(part)) <= 3 * len(part)


def test_plain_literals_in_lists_and_arguments_have_no_limit() -> None:
    body = read_body("a = [" + "1, " * 150_000 + "]\n" + "".join(f"b{at} = 1\n" for at in range(50_000)))

    assert len(body["a"]) == 150_000


def test_long_sequences_of_accents_are_normalized_in_linear_time() -> None:
    text = "e" + "\u0301\u0323" * 250_000

    with limited_cpu(5.0, "normalizing"):
        normalized = normalize_text(text)

    assert normalized.startswith("\u1eb9" + "\u0323")
    assert len(normalized) == len(text) - 1


def test_accents_up_to_the_limit_are_normalized_together() -> None:
    text = ("e" + "\u0323\u0301" * (MAX_ACCENTS // 2)) * 5

    assert normalize_text(text) == unicodedata.normalize("NFC", text)


NESTED = [
    ("a = " + "(" * 100, "1", ")" * 100 + "\n"),
    ("a = " + "[" * 99, "1", "]" * 99 + "\n"),
    ("a = " + "{ a = " * 99, "1", "}" * 99 + "\n"),
    ("a = " + "{\n a = " * 99, "1", "\n}" * 99 + "\n"),
    ("a = " + "upper(" * 100, "1", ")" * 100 + "\n"),
    ("a = " + "try(" * 100, "1", ")" * 100 + "\n"),
    ('a = "' + '${"' * 100, "x", '"}' * 100 + '"\n'),
    ('a = "x' + '${"x' * 99, "x", '"}' * 99 + '"\n'),
    ("a = " + "true ? " * 100, "1", " : 2" * 100 + "\n"),
    ('a = "' + "%{ if true }" * 100, "x", "%{ endif }" * 100 + '"\n'),
    ("a = <<E\n" + "%{ for x in [1] }" * 49, "x", "%{ endfor }" * 49 + "\nE\n"),
    ("a = " + "[for x in [1] : " * 49, "1", "]" * 49 + "\n"),
    ("a = " + "[0][" * 50, "0", "]" * 50 + "\n"),
    ("a {\n" * 100, "b = 1\n", "}\n" * 100),
    ("a {\n" * 99 + "b = (", "1", ")\n" + "}\n" * 99),
    ("a = " + "-(" * 100, "1", ")" * 100 + "\n"),
    ("a = b" + "[*]" * 100, "", "\n"),
    ('{"a":' + "[" * 98, "1", "]" * 98 + "}"),
    ('{"a":' + '{"a":' * 98, "1", "}" * 98 + "}"),
]


@pytest.mark.parametrize(("start", "middle", "end"), NESTED, ids=[nested[0][:20] for nested in NESTED])
def test_everything_may_nest_up_to_the_limit_without_a_recursion_error(start: str, middle: str, end: str) -> None:
    # Splats of a reference have no value.
    allowed = pytest.raises(DocumentErrors, match="replaced on the node") if "[*]" in start else nullcontext()

    with allowed:
        assert read_body(start + middle + end)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + bracket * 5_000
        for bracket in ("(", "[", "{a=", "upper(", '"${', "true ? ", "[for x in ", "-(", "[1][", "!(")
    ]
    + ["a {\n" * 5_000, 'a = "' + "%{ if true }" * 5_000, "a = b" + "[*]" * 5_000, '{"a":' + "[" * 5_000],
)
def test_deeper_nesting_is_an_error(text: str) -> None:
    errors = list_errors(text, FREE_SCHEMA)

    assert f"more than {MAX_NESTING}" in errors[0]


def test_many_heredocs_without_an_end_are_one_error() -> None:
    assert 1 == len(list_errors("a = <<E\n" + "${<<E\n" * 5_000, FREE_SCHEMA))


# -- time


@pytest.mark.parametrize(
    "text",
    [
        "[for a in range(1000) : [for b in range(1000) : [for c in range(1000) : a]]]",
        '"%{ for a in range(1000) }%{ for b in range(1000) }${a * b}%{ endfor }%{ endfor }"',
        "[for a in range(1000) : sort([for b in range(1000) : b])]",
        "{for a in range(1000) : a => [for b in range(1000) : a / 7]...}",
        "[for a in range(1000) : distinct(range(1000))]",
        "[for a in range(1000) : range(1000)[*]]",
        "[for a in range(1000) : range(1000) == range(999)]",
        "[for a in range(1000) : true ? range(1000) : []]",
        '[for a in range(1000) : bcrypt("x", 4)]',
        '[for a in range(1000) : yamldecode(join("", [for b in range(500) : "- a\\n"]))]',
        '[for a in range(1000) : regex_replace(format("%1000d", a), "(a?){40}b", "")]',
        '[for a in range(1000) : try(regex_replace("x", "(\\\\pL{9}){${a}}", ""), 1)]',
        '[for a in range(1000) : try(regex_replace("x", "(ab|cd|ef){0,500}${a}", ""), 1)]',
        "[for a in range(1000) : setproduct(range(100), range(100))]",
        "setproduct(range(1000), range(1000), range(1000), range(1000), range(1000))",
        "[for a in range(1000) : pow(1.000001, 1000)]",
        "[for a in range(1000) : keys({for b in range(100) : b => b})]",
    ],
)
def test_an_evaluation_that_takes_too_long_is_stopped(text: str) -> None:
    with pytest.raises(BudgetExceeded, match=r"takes more than 1,000,000 steps|builds more than 10 MB"):
        evaluate(text)


@pytest.mark.parametrize(
    ("declarations", "place"),
    [
        ("locals {\n  a = 1\n  b = [for x in range(1024) : range(1024)]\n}\n", "job.hcl:3:7"),
        ("variables {\n  a = 1\n  b = 2\n}\nlocals {\n  c = [for x in range(1024) : range(1024)]\n}\n", "job.hcl:6:7"),
        (
            'variable "a" {\n  default = 1\n  validation {\n    error_message = "no"\n'
            "    condition = var.a == [for x in range(1024) : range(1024)]\n  }\n}\n",
            "job.hcl:1:10",
        ),
    ],
)
def test_a_stopped_declaration_is_named(declarations: str, place: str) -> None:
    errors = list_errors(f'{declarations}job "j" {{\n}}\n')

    assert [error.partition(": ")[0] for error in errors] == [place]


def test_a_stopped_evaluation_names_the_expression() -> None:
    text = "b = 1\na = [for x in range(1000) : [for y in range(1000) : x * y]]\n"

    assert ["job.hcl:2:5: the evaluation takes more than 1,000,000 steps"] == list_errors(text, FREE_SCHEMA)


# -- size

BIG = 'join("", [for x in range(1000) : "0123456789"])'


@pytest.mark.parametrize(
    "text",
    [
        f"join({BIG}, range(1024))",
        f'replace({BIG}, "0", {BIG})',
        f'indent(10000, replace({BIG}, "0", "\\n"))',
        f'regex_replace({BIG}, "[0-9]", {BIG})',
        'format("%9999999d%9999999d", 1, 2)',
        '[for x in range(1000) : format("%99999d", x)]',
        f'"%{{ for x in range(1024) }}${{{BIG}}}%{{ endfor }}"',
        f"[for x in range(1024) : {BIG}]",
        f"jsonencode([for x in range(1024) : {BIG}])",
        f'formatlist("%s%s", {BIG}, range(1024))',
        f'urlencode(join("", [for x in range(1000) : replace({BIG}, "1", "%")]))',
        f'split("", join("", [for x in range(200) : {BIG}]))',
    ],
)
def test_a_value_that_is_too_large_is_stopped(text: str) -> None:
    with pytest.raises(BudgetExceeded):
        evaluate(text)


def test_the_size_of_a_product_is_known_before_its_rows_are_built() -> None:
    names = '[for i in range(280) : "${i}"]'
    texts = f'[for i in range(280) : "${{i}}{"x" * 5_000}"]'
    tracemalloc.start()
    try:
        with pytest.raises(BudgetExceeded, match="larger than 10 MB"):
            evaluate(f"setproduct(convert({names}, set(string)), {texts})")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 50_000_000


def test_a_heredoc_with_a_loop_is_stopped() -> None:
    text = (
        "a = <<EOF\n%{ for x in range(1000) }\n%{ for y in range(1000) }\n"
        + "x" * 100_000
        + "\n%{ endfor }\n%{ endfor }\nEOF\n"
    )

    assert "job.hcl:1:5: the evaluation builds more than 10 MB" in find_errors(text, FREE_SCHEMA)


def test_values_that_share_parts_count_each_time() -> None:
    lines = ["l0 = [1, 2, 3, 4, 5, 6, 7, 8]", *(f"l{n} = [local.l{n - 1}, local.l{n - 1}]" for n in range(1, 40))]
    text = "locals {\n" + "\n".join(lines) + '\n}\njob "x" {\n a = local.l39\n}\n'

    assert "the value is larger than 10 MB" in find_errors(text)


def test_the_same_large_value_counts_for_each_argument() -> None:
    lines = "".join(f" k{number} = local.big\n" for number in range(2_000))
    text = f'locals {{\n big = {BIG}\n}}\njob "x" {{\n meta {{\n{lines} }}\n}}\n'

    assert "the result is larger than 10 MB" in find_errors(text)


def test_values_nest_up_to_a_limit() -> None:
    lines = ["l0 = 1", *(f"l{n} = [local.l{n - 1}]" for n in range(1, 200))]
    text = "locals {\n" + "\n".join(lines) + '\n}\njob "x" {\n a = local.l199\n}\n'

    assert "lists and maps are nested more than 100 deep" in find_errors(text)


def test_dynamic_blocks_are_limited() -> None:
    text = 'a = ""\n'
    for name in ("port", "network", "group"):
        text = f'dynamic "{name}" {{\nfor_each = range(1000)\n{"" if name == "network" else "labels = [1]"}\ncontent {{\n{text if name != "port" else ""}}}\n}}\n'
    errors = find_errors(f'job "x" {{\n{text}}}\n')

    assert "the evaluation builds more than 10 MB" in errors or "the evaluation takes more than" in errors


def test_aliases_of_yaml_count_each_time() -> None:
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(BudgetExceeded):
        evaluate("yamldecode(var.s)", s="\n".join(lines))


@pytest.mark.parametrize("function", ["jsondecode", "yamldecode"])
def test_decoded_values_nest_up_to_a_limit(function: str) -> None:
    text = "[" * 90 + "]" * 90
    assert isinstance(evaluate(f"{function}(var.s)", s=text), list)

    for deep in ("[" * 5_000, "[" * 150 + "]" * 150):
        with pytest.raises((Failure, BudgetExceeded)):
            evaluate(f"{function}(var.s)", s=deep)


# -- numbers


@pytest.mark.parametrize(
    "text", ["1e999999999", "1e-999999999", "9" * 1_001, "1" + "0" * 500, "1e309", "1e-500", "0." + "0" * 999 + "1"]
)
def test_a_number_beyond_the_limits_is_refused_at_once(text: str) -> None:
    assert find_failure(text).messages
    assert find_failure(f'convert("{text}", number)').messages


def test_fractions_are_rounded_when_they_become_long() -> None:
    value = evaluate("+".join(f"1 / {number}" for number in range(1, 4_000)))

    assert 8.871 == round(value, 3)


def test_a_limit_can_be_lowered() -> None:
    with pytest.raises(BudgetExceeded):
        evaluate_value("[for x in range(100) : x]", budget=Budget(max_steps=10))
