"""The page about the language of job files is correct: its example, expressions, functions and limits."""

import json
import re
from pathlib import Path

import pytest

from tests.languages.hcl.evaluations import evaluate, find_errors, read_job
from wharf.job_files.hcl.warnings import MAX_WARNINGS
from wharf.languages.hcl.budget import MAX_RESULT_BYTES, MAX_STEPS, MAX_VALUE_DEPTH
from wharf.languages.hcl.call_nodes import SPECIAL_FORMS
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS
from wharf.languages.hcl.documents import MAX_FILE_BYTES
from wharf.languages.hcl.expression_parser import MAX_EXPRESSION_PARTS
from wharf.languages.hcl.functions import FUNCTIONS
from wharf.languages.hcl.functions.hashes import BCRYPT_STEPS
from wharf.languages.hcl.functions.lists import MAX_RANGE_ITEMS
from wharf.languages.hcl.numerals import MAX_LITERAL_CHARS
from wharf.languages.hcl.reader import MAX_NESTING, MAX_NODES

PAGE = (Path(__file__).parents[3] / "docs" / "hcl.md").read_text()
EXPRESSIONS = re.findall(
    r"^\| `(.+)` \| `(.+)` \|$", PAGE.partition("## Expressions")[2].partition("## Variables")[0], re.MULTILINE
)
EXAMPLE = PAGE.partition("```hcl\n")[2].partition("```")[0]


def test_the_page_has_expressions() -> None:
    assert 19 == len(EXPRESSIONS)


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS)
def test_an_expression_of_the_page_has_the_documented_value(expression: str, value: str) -> None:
    assert json.loads(value) == evaluate(expression)


def test_the_example_is_a_job_file() -> None:
    assert {
        "datacenters": ["dc1"],
        "group": [("web", {"count": 2, "network": [({"port": [("admin", {"to": 9000}), ("http", {"to": 8080})]},)]})],
    } == read_job(EXAMPLE)


def test_the_error_is_as_documented() -> None:
    error = PAGE.partition("job.hcl:3:5")[2].partition("```")[0]

    assert f"job.hcl:3:5{error}".strip() == find_errors('job "x" {\n  group "g" {\n    cuont = 2\n  }\n}\n')


def test_the_page_lists_all_functions() -> None:
    section = PAGE.partition("## Functions")[2].partition("## Jobs")[0]
    names = [name for row in re.findall(r"^\| \w.*$", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]

    assert sorted([*FUNCTIONS, *SPECIAL_FORMS]) == sorted(names)


def test_the_page_states_the_limits() -> None:
    section = PAGE.partition("## Limits")[2].partition("## Differences")[0]
    numbers = [
        int(number.replace(",", ""))
        for number in re.findall(r"^\| .+ \| ([\d,]+)(?: [a-z ]+)? \|$", section, re.MULTILINE)
    ]

    assert [
        MAX_FILE_BYTES,
        MAX_NODES,
        MAX_NESTING,
        MAX_EXPRESSION_PARTS,
        MAX_LITERAL_CHARS,
        MAX_STEPS,
        MAX_RESULT_BYTES,
        MAX_VALUE_DEPTH,
        MAX_RANGE_ITEMS,
        MAX_DIAGNOSTICS,
        MAX_RESULT_BYTES,
        MAX_WARNINGS,
    ] == numbers
    assert BCRYPT_STEPS << 13 <= MAX_STEPS < BCRYPT_STEPS << 14
