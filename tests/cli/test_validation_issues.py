"""Splitting the validation errors of servers into single problems."""

from pathlib import Path

import pytest

from tests.cli.terminal import WEB, open_terminal, write_file
from wharf.job_files.validation_issues import ValidationIssue, format_validation_issues, parse_validation_issues


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
        (
            "1 error occurred:\n\t* old (Periodic.Spec): use crons (Specs)\n\n",
            [ValidationIssue("Periodic.Spec", "old: use crons (Specs)")],
        ),
        ("1 error occurred:\n\t* too large (at most 9)\n\n", [ValidationIssue("", "too large (at most 9)")]),
    ],
)
def test_nested_lists_become_one_list(text: str, found: list[ValidationIssue]) -> None:
    assert parse_validation_issues(text) == found


def test_text_that_is_not_a_list_becomes_one_line() -> None:
    assert format_validation_issues("no path\n  to node (Ready)\n") == "no path to node (Ready)"
    assert format_validation_issues("policy 0 invalid: 2 errors occurred:\n\t* a\n\t* b (Name)\n\n") == "a\nName: b"


@pytest.mark.parametrize(
    ("block", "field", "problem"),
    [
        ("MinHealthyTime: 5x", "MinHealthyTime", 'expected a duration such as 30s or 1h30m, got "5x"'),
        ('MinHealthyTime: ""', "MinHealthyTime", 'expected a duration such as 30s or 1h30m, got ""'),
        ("MaxParallel: -1", "MaxParallel", "Max parallel can not be less than zero: -1 < 0"),
        ("Canary: -1", "Canary", "Canary count can not be less than zero: -1 < 0"),
    ],
)
def test_an_inherited_policy_is_reported_once_and_where_the_file_has_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, block: str, field: str, problem: str
) -> None:
    group = "\n  - Name: other\n" + WEB.split("Name: api\n")[1].replace("    Update: {MinHealthyTime: 1s}\n", "")
    text = WEB.replace("\nID: web\n", f"ID: web\nUpdate: {{{block}}}\n").replace(
        "    Update: {MinHealthyTime: 1s}\n", ""
    )
    file = write_file(tmp_path, text + group)

    with open_terminal(capsys, nodes=1) as terminal:
        errors = terminal.run("job", "run", file).errors

    assert len(errors) == 1
    column = len(f"Update: {{{field}: ") + 1
    assert errors[0].startswith(f"wharf: {file}:2:{column}: Update.{field}: {problem}")


def test_a_problem_of_a_task_that_inherits_its_group_restarts_is_reported_at_the_group(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_file(tmp_path, WEB.replace("Count: 2", "Count: 2\n    RestartPolicy: {Delay: 5x}"))

    with open_terminal(capsys, nodes=1) as terminal:
        errors = terminal.run("job", "run", file).errors

    assert errors == [
        f'wharf: {file}:6:28: TaskGroups[0].RestartPolicy.Delay: expected a duration such as 30s or 1h30m, got "5x"'
    ]


def test_unknown_fields_and_values_of_a_wrong_type_are_reported_together(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_file(tmp_path, WEB.replace("Count: 2", "Cuont: 2").replace("CPU: 100", "CPU: fast"))

    with open_terminal(capsys, nodes=1) as terminal:
        errors = [terminal.run("job", word, file).errors for word in ("run", "plan", "validate")]

    assert (
        errors
        == [
            [
                f"wharf: {file}:5:5: TaskGroups[0].Cuont is not a known field",
                f"wharf: {file}:8:53: TaskGroups[0].Tasks[0].Resources.CPU: expected a whole number, got text",
            ]
        ]
        * 3
    )
