"""`wharf flow`: lists, the steps of a run, gates, cancellation, retry and backfill."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import CommandResult, Terminal, open_terminal, write_file
from wharf.cli.flow.lists import SORTS, STATES
from wharf.contract.wire.flows import RunSort, RunState

CHAIN = """
ID: release
Type: batch
TaskGroups:
  - Name: build
    RestartPolicy: {Attempts: 0, Mode: fail}
    ReschedulePolicy: {Attempts: 0, Unlimited: false}
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 2s}, Resources: {CPU: 100, MemoryMB: 32}}
  - Name: test
    Depends: [{On: build}]
    Array: {Size: 4, MaxRunning: 2}
    RestartPolicy: {Attempts: 0, Mode: fail}
    ReschedulePolicy: {Attempts: 0, Unlimited: false}
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 2s}, Resources: {CPU: 100, MemoryMB: 32}}
  - Name: ship
    Depends: [{On: test}]
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 2s}, Resources: {CPU: 100, MemoryMB: 32}}
"""
FAILING = CHAIN.replace("Config: {run_for: 2s}", "Config: {run_for: 2s, exit_code: 7}", 1)
GATED = CHAIN.replace("    Depends: [{On: test}]\n", "    Depends: [{On: test}]\n    Gate: {Ask: release now?}\n")
NIGHTLY = """
ID: nightly
Type: batch
Periodic: {Specs: ["0 3 * * *"]}
Flow: {Overlap: queue}
TaskGroups:
  - Name: build
    Tasks:
      - {Name: main, Driver: mock, Config: {run_for: 60s}, Resources: {CPU: 100, MemoryMB: 32}}
"""


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


def submit(terminal: Terminal, folder: Path, text: str) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(folder, text))


def list_steps(result: CommandResult | str) -> dict[str, list[str]]:
    """Return the words of each row of the table of steps, by the name of the step."""
    text = result if isinstance(result, str) else result.out
    lines = text.partition("Step ")[2].splitlines()[1:]
    rows = [line.split() for line in lines[: next((at for at, line in enumerate(lines) if not line.strip()), None)]]
    return {row[1] if row[0].isdigit() else row[0]: row for row in rows}


# -- the steps of a run


def test_the_status_of_a_run_shows_its_steps_in_layers(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.wait(1)

    text = terminal.run_ok("flow", "status", "release")

    rows = list_steps(text)
    assert [row[0] for row in rows.values()] == ["1", "2", "3"]
    assert "build is waiting" not in text
    assert rows["test"][-5:] == ["waits", "for", "build", "to", "succeed"]
    assert rows["ship"][-5:] == ["waits", "for", "test", "to", "succeed"]


def test_a_followed_run_prints_each_change_and_exits_with_0_when_it_succeeded(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, CHAIN)

    result = terminal.run("flow", "status", "release", "--follow")

    assert (result.code, result.lines[-1]) == (0, "✓ release: succeeded")
    changes = [line.split(maxsplit=1)[1] for line in result.lines[:-1]]
    assert "build is running: its task runs" in changes
    assert changes.index("build succeeded") < changes.index("ship is running: its task runs")


def test_the_exit_code_of_a_followed_run_is_that_of_the_first_step_that_failed(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, FAILING)

    result = terminal.run("flow", "status", "release", "--follow")

    assert result.code == 7
    assert result.lines[-1] == ("✗ release: failed: build failed; `wharf flow retry release` runs it again from there")
    assert any(line.endswith("test was skipped: because build failed") for line in result.lines)


def test_a_followed_run_that_a_job_skipped_says_what_has_to_succeed_before_a_retry(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, FAILING)
    terminal.run("flow", "status", "release", "--follow")
    submit(terminal, tmp_path, CHAIN.replace("ID: release", "ID: report\nDepends: [{On: release}]"))

    result = terminal.run("flow", "status", "report", "--follow")

    assert result.code == 1
    assert result.lines[-1] == (
        "✗ report: skipped: build was skipped, because the job release failed; a retry is skipped again until release ended as Depends requires: "
        "run that first, then `wharf flow retry report`"
    )


def test_a_followed_job_with_steps_succeeds_although_a_step_was_skipped(terminal: Terminal, tmp_path: Path) -> None:
    skipping = CHAIN.replace("    Depends: [{On: test}]\n", "    Depends: [{On: test, When: failed}]\n")

    result = terminal.run("job", "run", "--follow", write_file(tmp_path, skipping))
    status = terminal.run_ok("job", "status", "release")

    assert result.code == 0, result.err
    assert "succeeded" in result.out
    assert list_steps(status)["ship"][2:5] == ["skipped", "-", "because"]


def test_a_followed_job_with_steps_fails_with_the_code_of_the_first_failed_step(
    terminal: Terminal, tmp_path: Path
) -> None:
    result = terminal.run("job", "run", "--follow", write_file(tmp_path, FAILING))

    assert result.code == 7
    assert "`wharf flow retry release` runs it again from there" in result.out + result.err


def test_the_status_of_a_run_as_json_is_the_view_of_the_api(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.run("flow", "status", "release", "--follow")

    run = json.loads(terminal.run_ok("flow", "status", "release", "--json"))

    assert (run["Status"], run["CriticalPath"]) == ("succeeded", ["build", "test", "ship"])
    assert [step["Counts"]["Succeeded"] for step in run["Steps"]] == [1, 4, 1]


def test_the_critical_path_has_the_time_of_each_step(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.run("flow", "status", "release", "--follow")

    text = terminal.run_ok("flow", "status", "release")

    path = next(line for line in text.splitlines() if line.startswith("Critical path"))
    assert [part.split()[-2] for part in path.split(" → ")] == ["build", "test", "ship"]
    assert "build *" in text


def test_a_job_without_steps_is_no_run(terminal: Terminal, tmp_path: Path) -> None:
    plain = "ID: web\nType: batch\nTaskGroups: [{Name: main, Tasks: [{Name: main, Driver: mock}]}]\n"
    submit(terminal, tmp_path, plain)

    assert 'job "web" has no steps' in terminal.run("flow", "status", "web").err


# -- gates


def test_a_gate_names_the_command_that_approves_it(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    text = terminal.run_ok("flow", "status", "release")
    assert "ship asks: release now?  `wharf flow approve release ship`" in text

    assert (
        terminal.run_ok("flow", "approve", "release", "ship", "--text", "fine") == "approved step ship of run release\n"
    )
    result = terminal.run("flow", "status", "release", "--follow")
    assert result.lines[-1] == "✓ release: succeeded"


def test_the_list_of_jobs_names_a_run_that_waits_for_a_person_and_counts_elements(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    for command in (("job", "status"), ("status",)):
        listed = terminal.run_ok(*command)
        words = next(line for line in listed.splitlines() if line.startswith("release")).split()
        assert words[1:7] == ["batch", "45", "gated", "0/1", "5", "0"]


def test_a_rejected_gate_fails_its_step(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    terminal.run_ok("flow", "approve", "release", "ship", "--reject", "--text", "not on Friday")

    text = terminal.run_ok("flow", "status", "release")
    assert "rejected by anonymous: not on Friday" in text


def test_a_gate_that_is_not_open_is_not_answered(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, GATED)

    assert "is not open yet" in terminal.run("flow", "approve", "release", "ship").err
    assert terminal.run("flow", "approve", "release").err == (
        "wharf: missing step: `wharf flow status release` shows which step waits for approval\n"
    )


# -- cancel and retry


def test_a_canceled_run_stops_its_tasks(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.wait(1)

    assert terminal.run_ok("flow", "cancel", "release", "--text", "wrong input") == "canceled run release\n"

    result = terminal.run("flow", "status", "release", "--follow")
    assert result.code == 1
    assert result.lines[-1].startswith("✗ release: canceled by anonymous: wrong input; ")


def test_a_retry_says_what_it_would_run_and_what_it_keeps(terminal: Terminal, tmp_path: Path) -> None:
    submit(
        terminal,
        tmp_path,
        FAILING.replace("exit_code: 7", "exit_code: 0").replace("{run_for: 2s}", "{run_for: 2s, exit_code: 1}", 1),
    )
    terminal.run("flow", "status", "release", "--follow")

    plan = terminal.run_ok("flow", "retry", "release", "--plan")

    lines = [line.split(maxsplit=2) for line in plan.splitlines()]
    assert plan.startswith("would run 2 of 3 steps of release again:")
    assert ["test", "runs", "it failed"] in lines
    assert ["ship", "runs", "it follows test"] in lines
    assert ["build", "kept", "it succeeded"] in lines
    assert "Attempt" not in terminal.run_ok("flow", "status", "release")


def test_a_retry_from_a_step_runs_it_and_what_follows_as_a_new_attempt(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.run("flow", "status", "release", "--follow")

    result = terminal.run("flow", "retry", "release", "--from", "ship", "--follow")

    assert result.code == 0
    assert result.lines[0] == "running 1 of 3 steps of release again, as attempt 2:"
    assert result.lines[-1] == "✓ release: succeeded"
    text = terminal.run_ok("flow", "status", "release")
    assert "kept from attempt 1" in text
    assert "2, which runs 1 of 3 steps again" in text


def test_a_run_that_succeeded_has_nothing_to_retry(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.run("flow", "status", "release", "--follow")

    assert "nothing to run again (--from STEP selects a step)" in terminal.run_ok("flow", "retry", "release")


def test_a_run_that_is_submitted_again_names_the_command_that_repeats_it(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    file = write_file(tmp_path, CHAIN)
    while_running = terminal.run_ok("job", "run", "--detach", file)
    terminal.run("flow", "status", "release", "--follow")

    ended = terminal.run_ok("job", "run", "--detach", file)

    assert while_running.splitlines()[0] == "no change: release is already at this version"
    assert ended.splitlines()[0] == (
        "no change: release is already at this version; it has ended: `wharf flow retry release --from build` runs it again"
    )


def test_an_array_that_is_submitted_again_names_the_command_that_repeats_it(terminal: Terminal, tmp_path: Path) -> None:
    array = "ID: sweep\nType: batch\nTaskGroups: [{Name: a, Array: {Size: 3}, Tasks: [{Name: main, Driver: mock}]}]\n"
    submit(terminal, tmp_path, array)
    terminal.wait(30)

    ended = terminal.run_ok("job", "run", "--detach", write_file(tmp_path, array))

    assert "it has ended: `wharf job rerun sweep --index 0-2` runs it again" in ended


def test_the_status_of_a_job_shows_gates_and_skips_as_such(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    open_gate = terminal.run_ok("job", "status", "release")
    terminal.run_ok("flow", "approve", "release", "ship", "--reject", "--text", "no")
    rejected = terminal.run_ok("job", "status", "release")

    assert "Status       gated\n" in open_gate
    assert "Status       failed\n" in rejected
    assert list_steps(open_gate)["ship"][2] == "gated"
    assert "ship asks: release now?" in open_gate
    assert list_steps(rejected)["ship"][2] == "failed"
    assert "rejected by anonymous: no" in rejected


def test_the_status_of_a_flow_has_no_table_of_arrays_and_remains_readable_when_it_is_stopped(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, NIGHTLY)

    assert "Arrays" not in terminal.run_ok("job", "status", "nightly")
    terminal.run_ok("job", "stop", "nightly", "--detach")
    assert "stopped" in terminal.run_ok("job", "status", "nightly")


def test_a_run_that_waits_for_approval_has_nothing_to_retry_and_says_what_it_waits_for(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    text = terminal.run_ok("flow", "retry", "release")

    assert text.startswith("release has not ended: ship waits for approval; ")


def test_a_run_whose_steps_run_says_so_instead_of_running_them_again(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.wait(1)

    text = terminal.run_ok("flow", "retry", "release", "--plan")

    assert text.startswith("release has not ended: build runs, test waits for others, ship waits for others; ")


# -- flows, backfill


def test_flows_and_runs_are_listed_with_their_states(terminal: Terminal, tmp_path: Path) -> None:
    assert "No flows and no runs yet" in terminal.run_ok("flow", "list")
    submit(terminal, tmp_path, NIGHTLY)
    submit(terminal, tmp_path, CHAIN)
    terminal.run_ok("job", "periodic", "force", "--detach", "nightly")
    terminal.wait(1)

    text = terminal.run_ok("flow", "list")
    assert next(line for line in text.splitlines() if line.startswith("nightly ")).split()[:5] == [
        "nightly", "by", "schedule", "queue", "0",
    ]  # fmt: skip
    assert any(line.startswith("release ") for line in text.splitlines())
    runs = terminal.run_ok("flow", "list", "nightly").splitlines()
    assert len(runs) == 2
    assert runs[1].startswith("nightly/periodic-")


def test_the_status_of_a_flow_is_that_of_its_newest_run(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    assert (
        "nightly has no runs yet; `wharf job periodic force nightly` launches one"
        in terminal.run("flow", "status", "nightly").err
    )
    terminal.run_ok("job", "periodic", "force", "--detach", "nightly")

    result = terminal.run("flow", "status", "nightly")

    assert (result.code, "the run with the latest slot of nightly is nightly/periodic-" in result.err) == (0, True)


def test_a_backfill_creates_each_run_once_and_they_wait_for_each_other(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    words = ("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-04T03:00Z")

    assert terminal.run_ok(*words, "--plan").startswith("would create 3 runs of nightly:")
    assert terminal.run_ok(*words).startswith("created 3 runs of nightly:")
    again = terminal.run_ok(*words)
    assert again.startswith("created 0 runs of nightly:")
    assert again.count("exists") == 3

    terminal.wait(5)
    states = [line.split()[1] for line in terminal.run_ok("flow", "list", "nightly").splitlines()[1:]]
    assert sorted(states) == ["running", "waiting", "waiting"]
    terminal.wait(300)
    states = [line.split()[1] for line in terminal.run_ok("flow", "list", "nightly").splitlines()[1:]]
    assert states == ["succeeded"] * 3


def test_runs_are_listed_by_when_they_began_and_a_flow_shows_the_run_of_its_latest_slot(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("job", "periodic", "force", "--detach", "nightly")
    (forced,) = list_run_ids(terminal)
    terminal.wait(5)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")

    assert list_run_ids(terminal) == [*map(name_run, ("2025-11-02", "2025-11-01")), forced]
    assert terminal.run("flow", "status", "nightly").err == f"the run with the latest slot of nightly is {forced}\n"


def test_runs_are_listed_in_the_order_that_the_user_chooses(terminal: Terminal, tmp_path: Path) -> None:
    assert tuple(RunSort) == tuple(each for each in SORTS.values() if each)
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")
    terminal.wait(5)
    terminal.run_ok("job", "periodic", "force", "--detach", "nightly")
    terminal.wait(5)
    newest = list_run_ids(terminal)
    changed = name_run("2025-11-02")
    terminal.run_ok(
        "flow", "cancel", "--yes", changed
    )  # It waits for the run of the day before, so no other run begins.

    assert list_run_ids(terminal, "--sort", "newest") == newest
    assert list_run_ids(terminal, "--sort", "name") == sorted(newest)
    assert newest[0] != changed == list_run_ids(terminal, "--sort", "changed")[0]


def name_run(day: str) -> str:
    """Return the ID of the run of a day of the flow `nightly`, which is launched at 3:00."""
    slot = datetime.datetime.fromisoformat(f"{day}T03:00:00+00:00")
    return f"nightly/periodic-{int(slot.timestamp())}"


def test_runs_are_selected_by_their_state(terminal: Terminal, tmp_path: Path) -> None:
    assert tuple(RunState) == STATES
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("job", "periodic", "force", "--detach", "nightly")
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    gated = terminal.run_ok("flow", "list", "--state", "gated").splitlines()

    assert [line.split()[0] for line in gated[1:]] == ["release"]
    assert "ship waits for approval" in gated[1]
    assert terminal.run_ok("flow", "list", "--state", "failed") == "No such runs.\n"
    assert list_run_ids(terminal, "--filter", 'ID contains "periodic"', "--state", "active") == list_run_ids(terminal)


def list_run_ids(terminal: Terminal, *options: str) -> list[str]:
    return [line.split()[0] for line in terminal.run_ok("flow", "list", "nightly", *options).splitlines()[1:]]


# -- the run that a change concerns


def test_a_change_of_a_flow_with_several_fitting_runs_is_refused_with_the_candidates(
    terminal: Terminal, tmp_path: Path
) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")
    runs = list_run_ids(terminal)

    result = terminal.run("flow", "cancel", "nightly")

    assert result.code == 1
    head, *lines = result.err.splitlines()
    assert head == "wharf: 2 runs of nightly fit; name the one to cancel:"
    assert [line.split()[1] for line in lines] == runs


def test_a_change_of_a_flow_concerns_the_only_run_that_fits(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")
    queued, running = list_run_ids(terminal)
    terminal.run_ok("flow", "cancel", queued)

    result = terminal.run("flow", "cancel", "nightly")

    assert result.out == f"canceled run {running}\n"
    assert result.err == f"the only run of nightly that waits or runs is {running}\n"
    terminal.wait(20)
    assert terminal.run("flow", "cancel", "nightly").err == (
        "wharf: no run of nightly waits or runs; `wharf flow list nightly` lists its runs\n"
    )


def test_a_gate_of_a_flow_is_that_of_the_only_run_that_waits_at_it(terminal: Terminal, tmp_path: Path) -> None:
    gated = NIGHTLY.replace("    Tasks:", "    Gate: {Ask: Now?}\n    Tasks:")
    submit(terminal, tmp_path, gated)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")
    terminal.wait(2)
    gated_run = list_run_ids(terminal)[-1]

    assert terminal.run("flow", "approve", "nightly", "build").out == f"approved step build of run {gated_run}\n"
    assert (
        "no run of nightly waits for the approval of build" in terminal.run("flow", "approve", "nightly", "build").err
    )


def test_a_retry_of_a_flow_concerns_the_only_run_that_failed(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)
    terminal.run_ok("flow", "backfill", "nightly", "--from", "2025-11-01", "--to", "2025-11-03")
    queued, canceled = list_run_ids(terminal)
    terminal.run_ok("flow", "cancel", canceled)
    terminal.wait(200)

    result = terminal.run("flow", "retry", "nightly", "--plan")

    assert result.out.startswith(f"would run 1 of 1 steps of {canceled} again")
    assert "no run of nightly waits or runs" in terminal.run("flow", "cancel", "nightly").err, queued


@pytest.mark.parametrize(
    "words",
    [("cancel", "rel"), ("approve", "rel", "ship"), ("approve", "rel", "ship", "--reject"), ("retry", "rel")],
)
def test_a_prefix_of_an_id_changes_no_run_without_yes(
    terminal: Terminal, tmp_path: Path, words: tuple[str, ...]
) -> None:
    submit(terminal, tmp_path, GATED)
    terminal.wait(20)

    result = terminal.run("flow", *words)

    assert (result.code, result.err) == (1, "wharf: rel is only a prefix of release: give the whole ID, or --yes\n")
    assert "ship asks: release now?" in terminal.run_ok("flow", "status", "release")


def test_a_confirmed_prefix_changes_the_run(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)

    assert terminal.run_ok("flow", "cancel", "rel", "--yes") == "canceled run release\n"


def test_a_backfill_that_begins_in_the_future_says_so(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)

    assert "--from lies in the future" in terminal.run("flow", "backfill", "nightly", "--from", "2099-01-01").err


def test_a_skipped_run_says_in_the_list_which_step_was_skipped_and_why(terminal: Terminal, tmp_path: Path) -> None:
    condition = CHAIN.replace("  - Name: build\n", "  - Name: build\n    If: meta.env == prod\n").replace(
        "Type: batch\n", "Type: batch\nMeta: {env: test}\n"
    )
    submit(terminal, tmp_path, condition)
    terminal.wait(5)

    assert "build was skipped, because its condition is false" in terminal.run_ok("flow", "list")


def test_a_retry_of_one_element_is_no_run_of_all_steps(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, CHAIN)
    terminal.wait(3)
    terminal.run_ok("job", "stop", "release", "--index", "1", "--group", "test", "--detach")
    terminal.run("flow", "status", "release", "--follow")
    terminal.run_ok("flow", "retry", "release")

    text = terminal.run_ok("flow", "status", "release")

    assert "2, which runs 2 of 3 steps again, but only some elements of test" in text


def test_a_time_that_is_none_is_refused_with_an_example(terminal: Terminal, tmp_path: Path) -> None:
    submit(terminal, tmp_path, NIGHTLY)

    assert (
        '"yesterday" is not a time: write it like 2026-11-20'
        in terminal.run("flow", "backfill", "nightly", "--from", "yesterday").err
    )
