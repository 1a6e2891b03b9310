"""Arrays in commands: progress, status, explanation, logs by index, and reruns."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, open_terminal, write_file
from tests.cli.test_progress import capture_progress
from wharf.cli.common.errors import CliError
from wharf.cli.job.arrays import (
    describe_elements_without_logs,
    describe_results,
    list_indexes,
    render_arrays,
    render_outputs,
)
from wharf.contract.model.jobs.array_views import ArrayCounts, ArrayView
from wharf.contract.model.jobs.step_outputs import ElementOutputs, StepOutputsView

SWEEP = """
ID: sweep
Type: batch
TaskGroups:
  - Name: train
    Array: {Size: 5, MaxRunning: 2}
    RestartPolicy: {Attempts: 0, Mode: fail}
    ReschedulePolicy: {Attempts: 0, Unlimited: false}
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 2s}, Resources: {CPU: 100, MemoryMB: 32}}
"""
FAILING = SWEEP.replace("run_for: 2s", "run_for: 2s, exit_code: 3")


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


def test_an_array_is_followed_until_all_elements_have_ended(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "run", "--follow", write_file(tmp_path, SWEEP))

    assert (result.code, result.lines[-1]) == (0, "✓ sweep: 5 of 5 elements succeeded")
    assert any(line.endswith("2 succeeded, 2 running, 1 waiting") for line in result.lines)
    before, _, arrays = terminal.run_ok("job", "status", "sweep").partition("Arrays")
    assert "Groups" not in before  # It would count allocations of earlier attempts too.
    assert arrays.splitlines()[2].split() == ["train", "5", "0", "0", "5", "0", "2"]


def test_every_command_counts_all_elements_that_wait(terminal: Terminal, tmp_path: Path) -> None:
    file = SWEEP.replace("Size: 5, MaxRunning: 2", "Size: 2500").replace("CPU: 100", "CPU: 1000000")
    terminal.run("job", "run", "--detach", write_file(tmp_path, file))
    terminal.wait(1)

    assert terminal.run_ok("job", "status").splitlines()[-1].split()[4] == "0/2500"
    assert "train: 2500 elements wait\n" in terminal.run_ok("job", "status", "sweep")
    assert "train has 2500 waiting elements" in terminal.run_ok("job", "explain", "sweep")
    assert "2,500 elements" in terminal.run_ok("top", "--once")


def test_a_plan_counts_all_elements_that_would_wait(terminal: Terminal, tmp_path: Path) -> None:
    file = SWEEP.replace("Size: 5, MaxRunning: 2", "Size: 2500").replace("CPU: 100,", "CPU: 1500,")

    plan = terminal.run("job", "plan", write_file(tmp_path, file)).out

    placed = int(plan.partition("train: ")[2].partition(" of 2500 can be placed")[0])
    assert 0 < placed < 10
    assert f"train: {2500 - placed} elements wait\n" in plan


def test_the_display_of_a_followed_array_names_the_element_of_each_allocation(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, SWEEP))

    lines = [line.split() for line in capture_progress(terminal, "sweep", 0)]
    start = next(index for index, words in enumerate(lines) if words[:2] == ["Allocation", "Element"])

    assert sorted(words[1] for words in lines[start + 1 : start + 6]) == ["0", "1", "2", "3", "4"]


def test_failed_elements_are_listed_and_run_again(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("job", "run", "--follow", write_file(tmp_path, FAILING))
    assert result.code == 3  # All tasks failed with it.
    assert (
        result.lines[-1]
        == "✗ sweep: 0 of 5 elements succeeded, 5 failed; `wharf job rerun sweep --failed` runs these again"
    )
    assert "failed: 0-4" in terminal.run_ok("job", "status", "sweep")
    ended = terminal.run_ok("job", "explain", "sweep")
    assert "5 failed; `wharf job rerun sweep --failed` runs these again" in ended
    assert "all elements have ended\n" in ended

    rerun = json.loads(terminal.run("job", "rerun", "sweep", "--index", "1,3-4", "--detach", "--json").out)
    assert (rerun["Attempt"], rerun["ElementCount"]) == (2, 3)
    terminal.wait(1)
    refused = terminal.run("job", "rerun", "sweep", "--index", "3")
    assert "1 of the elements has not ended: 3" in refused.err
    running = terminal.run_ok("job", "explain", "sweep").splitlines()
    assert running[0] == "sweep runs 2 elements of train: element 4 waits for MaxRunning 2"
    assert "2 of 3 open elements running, 1 waiting" in running


def test_an_allocation_shows_its_element(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("job", "run", "--follow", write_file(tmp_path, FAILING.replace("Size: 5", "Items: [north, south]")))
    allocations = json.loads(terminal.run_ok("job", "allocs", "sweep", "--json"))
    south = next(each["ID"] for each in allocations if each["Name"] == "sweep.train[1]")

    shown = terminal.run_ok("alloc", "status", south)

    assert "1, attempt 1, failed" in shown
    assert "south" in shown
    rerun = terminal.run_ok("job", "rerun", "sweep", "--failed", "--detach")
    assert "they run the script or command that the job has stored" in " ".join(rerun.split())


def test_a_rerun_needs_elements(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, SWEEP))

    assert terminal.run_ok("job", "rerun", "sweep", "--failed") == (
        "no element of sweep failed or was canceled; nothing to run again\n"
    )
    assert "either by --failed or by --index" in terminal.run("job", "rerun", "sweep").err


def an_array(states: str, **counts: int) -> ArrayView:
    return ArrayView(group="train", size=500, states=states, counts=ArrayCounts(**counts))


def test_the_indexes_of_elements_are_shown_as_ranges() -> None:
    array = an_array("3s2f1r494.", succeeded=3, failed=2, running=1, waiting=494)

    assert list_indexes(array, "f") == "3-4"
    assert "failed: 3-4\nrunning: 5" in render_arrays([array])
    assert describe_results([array]) == "3 of 500 elements succeeded, 2 failed"


def test_results_count_skipped_elements_apart_from_canceled_ones() -> None:
    text = describe_results([an_array("2s3c4x", succeeded=2, canceled=3, skipped=4)])

    assert text == "2 of 500 elements succeeded, 3 were canceled, 4 were skipped"


def test_elements_that_start_are_not_listed_as_running() -> None:
    array = an_array("3r2p495.", waiting=495, starting=2, running=3)

    assert render_arrays([array]).splitlines()[-2:] == ["running: 0-2", "starting: 3-4"]


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        (0, "no logs: no selected element has an allocation"),
        (3, "no logs: no selected element began before it was canceled or skipped"),
        (499, "no logs yet: no selected element has begun"),
    ],
)
def test_missing_logs_of_an_element_have_a_reason(index: int, reason: str) -> None:
    assert describe_elements_without_logs([an_array("3s2c495.")], {index}) == reason


def test_logs_of_an_element_that_does_not_exist_are_refused() -> None:
    with pytest.raises(CliError, match="no element has this index: the indexes are 0 to 499"):
        describe_elements_without_logs([an_array("500.")], {500})


def test_a_long_list_of_indexes_is_cut() -> None:
    text = list_indexes(an_array("1f1s" * 250, failed=250), "f")

    assert text.startswith("0,2,4,")
    assert text.endswith(", …")
    assert len(text) < 210


def test_outputs_of_steps_are_shown_as_one_line_each() -> None:
    long = ElementOutputs(index=1, texts={"notes": "first\nsecond", "long": "x" * 200}, problem="line 3 is wrong")
    steps = [StepOutputsView(group="build", elements=(ElementOutputs(index=0, texts={"version": "1"}), long))]

    _, *rows = [line.split(maxsplit=2) for line in render_outputs(steps).splitlines()]

    assert rows == [
        ["build[0]", "version", "1"],
        ["build[1]", "notes", "first second"],
        ["build[1]", "long", "x" * 100 + "…"],
        ["build[1]", "-", "line 3 is wrong"],
    ]


def test_only_the_first_outputs_are_shown() -> None:
    elements = tuple(ElementOutputs(index=number, texts={"v": "1"}) for number in range(25))

    lines = render_outputs([StepOutputsView(group="train", elements=elements)]).splitlines()

    assert (len(lines), lines[-1]) == (22, "and 5 more")


def test_elements_are_stopped_alone(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, SWEEP.replace("run_for: 2s", "run_for: 60s")))

    stopped = terminal.run_ok("job", "stop", "sweep", "--index", "0,3-4")
    again = terminal.run_ok("job", "stop", "sweep", "--index", "3")
    wrong = terminal.run("job", "stop", "sweep", "--group", "train")

    assert stopped.splitlines()[0] == "stopped 3 elements of sweep"
    assert again == "all of these elements of sweep have ended; nothing to stop\n"
    assert "`wharf job stop JOB --index 3,7-9`" in wrong.err
    counts = terminal.run_ok("job", "status", "sweep").partition("Arrays")[2].splitlines()[2].split()
    assert counts[-3:] == ["0", "3", "2"]
