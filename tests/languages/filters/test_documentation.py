"""The examples, errors and limits on the page about filters are correct."""

import re
from pathlib import Path

import msgspec
import pytest

from wharf.contract.model.jobs.job import Job
from wharf.languages.filters import FilterError, compile_filter
from wharf.languages.filters.compiler import MAX_PATTERNS
from wharf.languages.filters.parser import MAX_FILTER_CHARS, MAX_FILTER_DEPTH, MAX_FILTER_TERMS
from wharf.languages.filters.scope import MAX_STEPS
from wharf.languages.patterns import MAX_PATTERN_CHARS

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
JOB = msgspec.json.decode(PAGE.partition("```json")[2].partition("```")[0], type=Job)
RESULTS = re.findall(r"^\| `(.+)` \| (true|false) \|$", PAGE, re.MULTILINE)
ERRORS = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", PAGE.partition("## Errors")[2], re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert (len(RESULTS), len(ERRORS)) == (25, 9)


@pytest.mark.parametrize(("expression", "result"), RESULTS)
def test_an_example_of_the_page_has_the_documented_result(expression: str, result: str) -> None:
    assert (result == "true") is compile_filter(expression, Job).accepts(JOB)


@pytest.mark.parametrize(("expression", "error"), ERRORS)
def test_an_error_of_the_page_has_the_documented_text(expression: str, error: str) -> None:
    with pytest.raises(FilterError) as raised:
        compile_filter(expression, Job).accepts(JOB)

    assert error == raised.value.text


def test_the_page_states_the_limits() -> None:
    bounds = " ".join(PAGE.partition("## Bounds")[2].split())

    assert (
        f"An expression has at most {MAX_FILTER_CHARS:,} characters, {MAX_FILTER_TERMS} terms, {MAX_PATTERNS} regular expressions of"
        f" {MAX_PATTERN_CHARS:,} characters each, and a depth of {MAX_FILTER_DEPTH}. It takes at most {MAX_STEPS:,} steps for one"
        " record."
    ) in bounds
