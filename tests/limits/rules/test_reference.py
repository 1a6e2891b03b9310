"""The page about rules files: generated tables and valid examples."""

import re
import tomllib
from pathlib import Path

import pytest

from wharf.limits.rules import lint_rules, read_directory, read_rules
from wharf.limits.rules.reference import PAGE, render_page
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.rules.schema import DIRECTORY_TABLES, RULES_TABLES, TableSchema

WRITTEN = (Path(__file__).parents[3] / PAGE).read_text("utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", WRITTEN, re.DOTALL)


def test_the_page_is_generated_from_the_schema() -> None:
    assert render_page(WRITTEN) == WRITTEN


@pytest.mark.parametrize("table", [*RULES_TABLES, *DIRECTORY_TABLES], ids=lambda table: table.name or "file")
def test_every_key_of_every_table_is_on_the_page(table: TableSchema) -> None:
    assert [key.name for key in table.keys if f"| `{key.name}` | {key.description}" not in WRITTEN] == []


def test_every_rule_of_the_profile_is_on_the_page() -> None:
    assert [rule.name for rule in read_profile().rules if f"| `{rule.name}` |" not in WRITTEN] == []


def test_every_key_is_described_in_sentences() -> None:
    keys = [key for table in (*RULES_TABLES, *DIRECTORY_TABLES) for key in table.keys]

    assert [key.name for key in keys if not key.description.endswith(".")] == []


def is_directory(text: str) -> bool:
    """Return whether a TOML text is that of a directory file, by its tables."""
    return bool({table.name.partition(".")[0] for table in DIRECTORY_TABLES if table.name} & tomllib.loads(text).keys())


@pytest.mark.parametrize("text", [each for each in EXAMPLES if not is_directory(each)])
def test_the_examples_of_rules_are_valid_and_lint_finds_nothing(text: str) -> None:
    assert [str(finding) for finding in lint_rules(read_rules(text)) if finding.severity.value != "note"] == []


def test_the_examples_of_directories_are_read() -> None:
    registers = [read_directory(each) for each in EXAMPLES if is_directory(each)]

    assert [(len(each.tokens), [*each.installations]) for each in registers] == [(1, [11]), (2, [71])]


def test_the_example_of_problems_matches_the_reported_problems() -> None:
    text = '\n\n[[rule]]\nceilng = 3\n[[rule]]\nmatch = [\n  "/search",\n]'
    expected_lines = re.findall(r"```text\n(.*?)```", WRITTEN, re.DOTALL)[0].splitlines()
    with pytest.raises(Exception, match="is not known") as caught:
        read_rules(text)

    assert [line for line in expected_lines if line not in str(caught.value).splitlines()] == []
