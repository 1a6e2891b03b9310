"""Job files with steps in commands: mistakes with their lines, and plans."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, open_terminal, write_file

RUN = """job "nightly" {
  type    = "batch"

  group "build" {
    task "main" {
      driver = "mock"
    }
  }

  group "ship" {
    depends = ["build"]

    task "main" {
      driver = "mock"
    }
  }
}
"""


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


def test_a_misspelled_step_is_shown_in_its_line(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, RUN.replace('["build"]', '["biuld"]'), "run.hcl")

    result = terminal.run("job", "validate", file)

    assert result.code == 1
    assert f'{file}:11:16: group.depends.on: The job has no group "biuld": did you mean "build"?' in result.err


def test_mistakes_of_steps_are_in_the_order_of_their_lines(terminal: Terminal, tmp_path: Path) -> None:
    text = RUN.replace('["build"]', '["build", "biuld"]').replace(
        'group "build" {', 'group "build" {\n    depends = ["ship"]'
    )
    file = write_file(tmp_path, text, "run.hcl")

    errors = terminal.run("job", "validate", file).err.splitlines()
    places = [line.removeprefix("wharf: ").split(": ")[0] for line in errors if file in line]

    assert places == [f"{file}:12:16", f"{file}:12:25"]


def test_a_plan_says_what_a_step_waits_for(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, RUN, "run.hcl")

    lines = terminal.run("job", "plan", file).out.splitlines()

    assert "  build: 1 to place" in lines
    assert "  ship: none now: it waits for build" in lines


def test_a_plan_says_that_a_final_step_waits_for_all_others(terminal: Terminal, tmp_path: Path) -> None:
    final = """  group "tidy" {
    final = true
    task "main" { driver = "mock" }
  }
}
"""
    file = write_file(tmp_path, RUN.rstrip().removesuffix("}") + final, "run.hcl")

    assert (
        "  tidy: none now: it waits for all steps that are not final"
        in terminal.run("job", "plan", file).out.splitlines()
    )


def test_a_job_that_needs_an_unknown_job_is_refused_with_the_line_of_the_need(
    terminal: Terminal, tmp_path: Path
) -> None:
    file = write_file(tmp_path, RUN.replace('"batch"', '"batch"\n  depends = ["import"]'), "run.hcl")

    result = terminal.run("job", "validate", file)

    assert f'{file}:3:14: depends.on: The job "import" does not exist in namespace "default"' in result.err
