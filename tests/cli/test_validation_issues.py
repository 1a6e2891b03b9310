"""Splitting the validation errors of servers into single problems."""

import pytest

from wharf.cli.common.errors import ValidationIssue, format_validation_issues, parse_validation_issues


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Permission denied", [ValidationIssue("", "Permission denied")]),
        (
            "Job.ID: missing; Job.Type: no such type",
            [ValidationIssue("ID", "missing"), ValidationIssue("Type", "no such type")],
        ),
        ("Job: expected an object", [ValidationIssue("Job", "expected an object")]),
        (
            "1 error occurred:\n\t* Missing (TaskGroups[0].Tasks)\n\n",
            [ValidationIssue("TaskGroups[0].Tasks", "Missing")],
        ),
        (
            "2 errors occurred:\n\t* a (ID)\n\t* Task group x failed: 1 error occurred:\n\t* b (Name): fix it\n\n\n\n",
            [ValidationIssue("ID", "a"), ValidationIssue("Name", "b: fix it")],
        ),
        ("1 error occurred:\n\t* too large (at most 9)\n\n", [ValidationIssue("", "too large (at most 9)")]),
    ],
)
def test_nested_lists_become_one_list(text: str, found: list[ValidationIssue]) -> None:
    assert parse_validation_issues(text) == found


def test_text_that_is_not_a_list_becomes_one_line() -> None:
    assert format_validation_issues("no path\n  to node (Ready)\n") == "no path to node (Ready)"
    assert format_validation_issues("policy 0 invalid: 2 errors occurred:\n\t* a\n\t* b (Name)\n\n") == "a\nName: b"
