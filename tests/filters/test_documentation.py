"""The page about filters says what is so."""

import re
from pathlib import Path

import msgspec
import pytest

from wharf.filters import FilterError, compile_filter
from wharf.filters.compiling import PATTERNS_MAX
from wharf.filters.parser import DEPTH_MAX, LENGTH_MAX, TERMS_MAX
from wharf.filters.pattern import LENGTH_MAX as PATTERN_LENGTH_MAX
from wharf.filters.scope import STEPS_MAX
from wharf.model.job import Job

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
JOB = msgspec.json.decode(PAGE.partition("```json")[2].partition("```")[0], type=Job)
RESULTS = re.findall(r"^\| `(.+)` \| (true|false) \|$", PAGE, re.MULTILINE)
ERRORS = re.findall(r"^\| `(.+?)` \| `(.+)` \|$", PAGE.partition("## Errors")[2], re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert (len(RESULTS), len(ERRORS)) == (25, 9)


@pytest.mark.parametrize(("expression", "result"), RESULTS)
def test_an_example_of_the_page_has_the_result_that_it_tells(expression: str, result: str) -> None:
    assert (result == "true") is compile_filter(expression, Job).accepts(JOB)


@pytest.mark.parametrize(("expression", "error"), ERRORS)
def test_an_error_of_the_page_is_told_in_these_words(expression: str, error: str) -> None:
    with pytest.raises(FilterError) as told:
        compile_filter(expression, Job).accepts(JOB)

    assert error == told.value.text


def test_the_page_tells_the_bounds() -> None:
    bounds = " ".join(PAGE.partition("## Bounds")[2].split())

    assert (
        f"An expression has at most {LENGTH_MAX:,} characters, {TERMS_MAX} terms, {PATTERNS_MAX} regular expressions of"
        f" {PATTERN_LENGTH_MAX:,} characters each, and a depth of {DEPTH_MAX}. The bodies of `any` and `all` run at most"
        f" {STEPS_MAX:,} times for one record."
    ) == bounds
