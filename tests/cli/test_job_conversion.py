"""`wharf job convert` and `wharf job fmt`: what they print, which files they change, and their exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file

HCL = '# web\njob "web" {\n  type="batch"\n}\n'
FORMATTED = '# web\njob "web" {\n  type = "batch"\n}\n'


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


@pytest.mark.parametrize("language", ["hcl", "yaml", "json", "toml"])
def test_a_converted_file_runs_as_the_same_job(terminal: Terminal, tmp_path: Path, language: str) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    converted = terminal.run_ok("job", "convert", write_file(tmp_path, WEB), "--to", language)

    again = terminal.run_ok("job", "run", "--detach", write_file(tmp_path, converted, f"web.{language}"))

    assert again.startswith("no change: web is already at this version")


def test_a_stored_job_is_converted_to_a_job_file(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, WEB))
    stored = write_file(tmp_path, terminal.run_ok("job", "inspect", "--json", "web"), "web.json")

    converted = terminal.run_ok("job", "convert", stored, "--to", "hcl")

    assert terminal.run("job", "plan", write_file(tmp_path, converted, "web.hcl")).code == 0


def test_notes_say_what_the_result_does_not_have(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, f'variable "x" {{\n  default = 1\n}}\n{HCL}', "web.hcl")

    result = terminal.run("job", "convert", "-to", "json", "--evaluate", file)

    assert json.loads(result.out) == {"ID": "web", "Type": "batch"}
    assert result.err == (
        f"note: {file}: comments are left out\nnote: {file}: variables and local values are replaced by their values\n"
    )


def test_a_conversion_needs_no_values_of_variables(terminal: Terminal, tmp_path: Path) -> None:
    text = 'variable "token" {\n  type = string\n}\njob "web" {\n  meta {\n    a = var.token\n  }\n}\n'
    file = write_file(tmp_path, text, "web.hcl")

    result = terminal.run("job", "convert", file, "--to", "yaml")

    assert (result.code, result.err) == (0, "")
    assert result.out == "variables:\n  token:\n    type: string\nID: web\nMeta:\n  a: ${var.token}\n"


def test_fmt_changes_files_and_prints_their_names(terminal: Terminal, tmp_path: Path) -> None:
    unformatted = write_file(tmp_path, HCL, "a.hcl")
    formatted = write_file(tmp_path, FORMATTED, "b.hcl")
    yaml = write_file(tmp_path, "ID:  a # x\nMeta:\n    b: c\n", "c.yaml")

    first = terminal.run_ok("job", "fmt", unformatted, formatted, yaml)
    second = terminal.run_ok("fmt", unformatted, formatted, yaml)

    assert first.splitlines() == [unformatted, yaml]
    assert second == ""
    assert Path(unformatted).read_text() == FORMATTED
    assert Path(yaml).read_text() == "ID: a  # x\nMeta:\n  b: c\n"


def test_check_changes_no_file_and_fails_if_one_would_change(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, HCL, "a.hcl")

    result = terminal.run("job", "fmt", "--check", file, write_file(tmp_path, FORMATTED, "b.hcl"))

    assert (result.code, result.out, result.err) == (1, f"{file}\n", "")
    assert Path(file).read_text() == HCL


def test_fmt_reports_the_errors_of_all_files_and_formats_the_others(terminal: Terminal, tmp_path: Path) -> None:
    wrong = write_file(tmp_path, "job {", "a.hcl")
    data = write_file(tmp_path, "{}", "b.json")
    right = write_file(tmp_path, HCL, "c.hcl")

    result = terminal.run("job", "fmt", wrong, data, right)

    assert (result.code, result.out) == (1, f"{right}\n")
    assert result.errors == [
        f"wharf: {wrong}:1:1: the block job has no closing brace",
        f"wharf: {data}: only HCL and YAML are formatted: use the formatter of your editor for JSON",
    ]


def test_fmt_prints_standard_input_with_its_format_normalized(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(write_file(tmp_path, HCL, "input")).open() as stream:
        monkeypatch.setattr("sys.stdin", stream)

        assert terminal.run_ok("job", "fmt", "-") == FORMATTED


TEMPLATE_FRAGMENT = 'template {\n    data = "a"\n  destination="b"\n}\n'


def test_fmt_knows_a_part_of_a_job_in_hcl_without_an_ending(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, TEMPLATE_FRAGMENT, "fragment")

    terminal.run_ok("job", "fmt", file)

    assert Path(file).read_text() == 'template {\n  data        = "a"\n  destination = "b"\n}\n'


@pytest.mark.parametrize(
    "text",
    [
        "first notes\nof a meeting\n",
        "one line",
        "- a\n-   b\n",
        "Note:   the meeting\n  is at ten\n",
        "apiVersion:   v1\nkind: Pod\n",
        "\n",
    ],
)
@pytest.mark.parametrize("name", ["notes", "notes.yaml"])
def test_fmt_refuses_and_keeps_a_file_that_is_no_job(terminal: Terminal, tmp_path: Path, text: str, name: str) -> None:
    file = write_file(tmp_path, text, name)

    result = terminal.run("job", "fmt", file)

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"wharf: {file}:")
    assert Path(file).read_text() == text


@pytest.mark.parametrize(
    "text", ["locals:\n  a:  1\n", "Job:\n  ID:  a\n", "task_groups:  []\n", "x-base:  {a: 1}\nname: a\n"]
)
def test_fmt_formats_a_file_with_any_part_of_a_job(terminal: Terminal, tmp_path: Path, text: str) -> None:
    file = write_file(tmp_path, text, "web.yaml")

    assert terminal.run_ok("job", "fmt", file) == f"{file}\n"


def test_a_missing_language_is_reported_in_one_line(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "convert", write_file(tmp_path, HCL, "a.hcl"))

    assert result.err == (
        "wharf: Missing option '--to'. Choose from: hcl, yaml, json, toml; see `wharf job convert --help`\n"
    )


@pytest.mark.parametrize(("language", "expected"), [("hcl", False), ("toml", False), ("yaml", True)])
def test_a_comment_for_editors_of_yaml_stays_only_in_yaml(
    terminal: Terminal, tmp_path: Path, language: str, expected: bool
) -> None:
    file = write_file(tmp_path, f"# yaml-language-server: $schema=http://127.0.0.1/x\n{WEB.lstrip()}", "a.yaml")

    assert ("yaml-language-server" in terminal.run_ok("job", "convert", file, "--to", language)) is expected
