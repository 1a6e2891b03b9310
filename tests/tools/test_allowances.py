"""Exceptions to the rules of the checks."""

import pytest

from tools.allowances import Allowance, apply_allowances, print_remaining_findings, read_allowances
from tools.findings import Finding

FINDING = Finding("src/wharf/node/shim.py", 3, "clock", "time.time is not used here")


@pytest.mark.parametrize("file", ["src/wharf/node/shim.py", "src/wharf/node/*.py"])
def test_a_listed_file_or_pattern_of_files_is_allowed(file: str) -> None:
    allowances = read_allowances(f'[[allowed]]\nfile = "{file}"\nrule = "clock"\nbecause = "it has no World"')

    assert apply_allowances([FINDING], allowances) == []


@pytest.mark.parametrize(("file", "rule"), [("src/wharf/node/agent.py", "clock"), ("src/wharf/node/shim.py", "ids")])
def test_an_entry_for_another_file_or_rule_allows_nothing_and_is_reported_as_unused(file: str, rule: str) -> None:
    remaining, unused = apply_allowances([FINDING], [Allowance(file=file, rule=rule, because="it has no World")])

    assert remaining == FINDING
    assert unused.message == f"nothing in {file} needs its allowance for {rule} any more: remove the entry"


def test_a_check_ignores_entries_for_rules_of_other_checks() -> None:
    assert print_remaining_findings([], {"a-rule-without-entries"}) == 0


def test_a_remaining_finding_is_printed_and_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_remaining_findings([FINDING], {"a-rule-without-entries"}) == 1
    assert capsys.readouterr().out == "src/wharf/node/shim.py:3: time.time is not used here [clock]\n"
