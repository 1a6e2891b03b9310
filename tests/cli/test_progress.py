"""The progress display of a followed job."""

from pathlib import Path
from typing import Any

import click
import pytest

from tests.builders import a_group, a_job
from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.common.server_commands import Session
from wharf.cli.job.progress import ExitCode, JobProgress, describe_way_back, fetch_progress, find_outcome
from wharf.cli.job.progress_view import LineProgressView, find_nonempty_columns, render_progress
from wharf.contract.client import read_settings
from wharf.contract.model.jobs.array_views import ArrayCounts, ArrayView
from wharf.contract.model.times import SECOND


def capture_progress(terminal: Terminal, job: str, version: int, *, max_steps: int = 10) -> list[str]:
    session = Session(terminal, read_settings({}), is_json=False, template="", is_verbose=False)
    progress = fetch_progress(session, job, "default", version)
    output = render_progress(
        progress, 5_000_000_000, session, max_allocations=max_steps, columns=find_nonempty_columns(progress)
    )
    return click.unstyle(output).splitlines()


def test_progress_shows_groups_allocations_and_health(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_terminal(capsys, nodes=2) as terminal:
        terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

        lines = capture_progress(terminal, "web", 0)

    assert lines[0] == "web  service, version 0, for 5s"
    assert lines[1].endswith("2/2 healthy")
    assert "successful  Deployment completed successfully" in lines[2]
    assert [line.split() for line in lines[4:6]] == [["Group", "Desired", "Running", "Healthy"], ["api", "2", "2", "2"]]
    assert [line.split()[4:6] for line in lines[8:10]] == [["running", "healthy"]] * 2


def test_progress_shows_unplaced_groups_and_canaries_that_await_promotion(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with open_terminal(capsys, nodes=2) as terminal:
        terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
        canary = WEB.replace("MinHealthyTime", "Canary: 1, MinHealthyTime").replace("CPU: 100", "CPU: 120")
        terminal.run_ok("job", "run", write_file(tmp_path, canary))
        terminal.wait(5)
        waiting = capture_progress(terminal, "web", 1)
        large = WEB.replace("ID: web", "ID: large").replace("CPU: 100", "CPU: 900000")
        terminal.run("job", "run", write_file(tmp_path, large))
        unplaced = capture_progress(terminal, "large", 0)

    assert waiting[1].split()[1:] == ["1/1", "canaries", "healthy", *waiting[1].split()[4:]]
    assert waiting[-1].startswith("The canaries are healthy. Promote them with: wharf deployment promote ")
    assert unplaced[-4:-1] == [
        "Not placed, waiting for capacity:",
        "  api: 2 not placed",
        "    · too little cpu on 2 nodes, at least 896,100 MHz missing (node-1, node-2)",
    ]


def test_progress_shows_only_as_many_allocations_as_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with open_terminal(capsys, nodes=2) as terminal:
        job_of_six = WEB.replace("Count: 2", "Count: 6").replace("CPU: 100", "CPU: 20")
        terminal.run_ok("job", "run", "--follow", write_file(tmp_path, job_of_six))

        assert "… and 4 more" in capture_progress(terminal, "web", 0, max_steps=2)


def test_a_version_replaced_by_a_newer_one_is_not_a_success(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_terminal(capsys, nodes=2) as terminal:
        terminal.run_ok("job", "run", write_file(tmp_path, WEB))
        terminal.run_ok("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
        session = Session(terminal, read_settings({}), is_json=False, template="", is_verbose=False)

        end = find_outcome(fetch_progress(session, "web", "default", 0))

    assert end is not None
    assert (end.exit, end.text) == (ExitCode.FAILED, "deployment canceled: Cancelled due to newer version of job")


@pytest.mark.parametrize("request_number", range(1, 6))
def test_an_update_that_is_rolled_back_between_two_requests_names_no_way_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, request_number: int
) -> None:
    deadlines = "AutoRevert: true, ProgressDeadline: 20s, HealthyDeadline: 15s, MinHealthyTime"
    stable = WEB.replace("MinHealthyTime", deadlines)
    broken = stable.replace("Driver: mock", "Driver: mock, Config: {start_error: broken}")
    with open_terminal(capsys, nodes=2) as terminal:
        terminal.run_ok("job", "run", "--follow", write_file(tmp_path, stable))
        terminal.run_ok("job", "run", "--detach", write_file(tmp_path, broken))
        session = Session(terminal, read_settings({}), is_json=False, template="", is_verbose=False)
        paths: list[str] = []

        def roll_back_before_one_request(path: str) -> None:
            paths.append(path)
            if len(paths) == request_number:
                terminal.before_request = lambda _path: None
                terminal.wait(60)

        terminal.before_request = roll_back_before_one_request
        first = find_outcome(fetch_progress(session, "web", "default", 1))
        outcome = find_outcome(fetch_progress(session, "web", "default", 1))

    assert outcome is not None
    assert "rolling back to job version 0" in outcome.text
    assert "wharf job revert" not in outcome.text
    assert first in (None, outcome)


def test_an_update_that_fails_names_the_way_back_if_there_is_one() -> None:
    progress = make_progress(version=1)._replace(has_stable_version=True)

    assert describe_way_back(progress) == "; `wharf job revert web` returns to the last stable version"
    assert describe_way_back(progress._replace(version=0)) == ""
    assert describe_way_back(progress._replace(has_stable_version=False)) == ""


def test_an_update_that_fails_names_no_way_back_if_no_version_was_stable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    deadlines = "ProgressDeadline: 20s, HealthyDeadline: 15s, MinHealthyTime"
    broken = WEB.replace("MinHealthyTime", deadlines).replace(
        "Driver: mock", "Driver: mock, Config: {start_error: broken}"
    )
    with open_terminal(capsys, nodes=2) as terminal:
        terminal.run("job", "run", "--follow", write_file(tmp_path, broken))
        second = terminal.run("job", "run", "--follow", write_file(tmp_path, broken.replace("CPU: 100", "CPU: 120")))

    assert "deployment failed" in second.out
    assert "wharf job revert" not in second.out


def make_progress(**fields: Any) -> JobProgress:
    job = a_job("web", a_group("api"), **fields)
    return JobProgress(job, job.version, (), (), None, {}, {}, 0)


def test_without_a_terminal_the_counts_of_an_array_are_printed_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with open_terminal(capsys) as terminal:
        session = Session(terminal, read_settings({}), is_json=False, template="", is_verbose=False)
        view = LineProgressView(session)
        for second in range(100):
            counts = ArrayCounts(succeeded=second, waiting=100 - second)
            array = ArrayView(group="train", size=100, states="", counts=counts)
            progress = make_progress(type="batch")._replace(arrays=(array,))
            view.update(progress, second * SECOND, f"waits for {100 - second} MHz" if second else "")
        view.report_outcome(is_success=True, text="sweep: 100 of 100 elements succeeded")

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "waits" in line] == ["waits for 99 MHz", "waits for 39 MHz"]
    assert len(lines) == 14
    assert lines[-2].endswith("99 succeeded, 1 waiting")
