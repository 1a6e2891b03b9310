"""`wharf job explain-field`: what it prints, and what it says about unknown fields."""

import re

import pytest

from tests.cli.terminal import Terminal
from wharf.cli.job.explain_field import _render_spellings
from wharf.job_files.schema import iterate_fields
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import parse_document


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_field_is_explained_with_type_default_limits_and_both_spellings(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "group.task.resources.memory")

    assert (
        result.out
        == """\
TaskGroups.Tasks.Resources.MemoryMB

  The memory that is reserved for the task on its node.

  A task that uses more is killed by the kernel, unless MemoryMaxMB allows it.
  The event of its end then says out of memory.

  Type      whole number (MiB)
  Default   300
  Limits    10 to 1,000,000,000
  YAML      MemoryMB: 256
  HCL       memory = 256
            in job > group > task > resources
"""
    )


def test_a_block_is_explained_with_its_fields(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "logs")

    assert (
        result.out
        == """\
TaskGroups.Tasks.LogConfig

  How much output of the task the node retains.

  Type      block
  Default   the defaults of its fields
  YAML      LogConfig: ...
  HCL       logs { ... }
            in job > group > task

Fields
  MaxFiles (max_files)  whole number (files); default: 10
      How many files the node retains for each of stdout and stderr of the task.
  MaxFileSizeMB (max_file_size)  whole number (MB of 1,000,000 bytes)
      The size at which a log file is full and the next one begins.
  Disabled (disabled)  true or false; default: false
      Whether the output of the task is discarded.
  Enabled (enabled)  true or false; deprecated
      Whether the output of the task is stored.
"""
    )


def test_the_values_of_a_field_are_listed_with_their_meanings(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "restart.mode")

    assert "  Values    fail: the task fails, and its allocation with it; a reschedule\n" in result.out
    assert "            delay: the task is restarted when the interval has ended\n" in result.out


def test_an_option_of_a_driver_is_explained(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "docker.image")

    assert result.lines[0] == "TaskGroups.Tasks.Config.docker.image"
    assert "            in job > group > task > config" in result.lines


def test_config_lists_the_drivers(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "task.config")

    assert [line.strip() for line in result.lines if line.startswith("  ") and line.strip() in ("docker", "exec", "raw_exec", "mock")] == [
        "docker", "exec", "raw_exec", "mock",
    ]  # fmt: skip


def test_a_tree_of_all_fields_has_a_line_for_each(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "--recursive", "update")

    assert result.lines[:3] == [
        "Update",
        "  Stagger (stagger)  duration",
        "  MaxParallel (max_parallel)  whole number (allocations)",
    ]
    assert len(terminal.run("job", "explain-field", "--recursive").lines) > 500


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("gruop.count", "did you mean `wharf job explain-field group.count`?"),
        ("driver.docker", "did you mean `wharf job explain-field docker`?"),
        ("qqqqqqqq", "`wharf job explain-field` lists the fields of a job"),
    ],
)
def test_an_unknown_field_is_an_error_with_a_suggestion(terminal: Terminal, path: str, hint: str) -> None:
    result = terminal.run("job", "explain-field", path)

    assert (result.code, result.err) == (1, f'wharf: unknown field "{path}"; {hint}\n')


def test_a_path_that_begins_with_a_name_of_the_user_says_so(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "web.resources")

    assert result.err == "web is not a field: taking it for the name of a job, group or task\n"
    assert result.lines[0] == "TaskGroups.Tasks.Resources"


def test_a_part_of_a_variable_is_explained(terminal: Terminal) -> None:
    result = terminal.run("job", "explain-field", "variable.validation.condition")

    assert result.lines[-3:] == [
        '  YAML      condition: "var.count > 0"',
        "  HCL       condition = var.count > 0",
        "            in the file > variable > validation",
    ]


def test_the_examples_in_hcl_can_be_parsed() -> None:
    wrong: list[str] = []
    for field in iterate_fields():
        lines = [re.sub(r"\x1b\[\d*m", "", line) for line in _render_spellings(field, 10_000)]
        start = next((at for at, line in enumerate(lines) if line.startswith("  HCL ")), len(lines))
        example = "\n".join(line[12:] for line in lines[start:] if not line.strip().startswith("in ")).replace(
            "...", ""
        )
        if "=" in example and not example.endswith("= "):
            try:
                parse_document(f"{example}\n")
            except DocumentErrors as errors:
                wrong.append(errors.text)

    assert wrong == []


@pytest.mark.parametrize(
    "path", ["", "group", "task", "docker", "network", "service.check", "constraint.operand", "template"]
)
def test_no_line_is_wider_than_the_terminal(terminal: Terminal, path: str) -> None:
    result = terminal.run("job", "explain-field", path)

    assert [line for line in result.lines if len(line) > 80] == []
