"""The commands `submit`, `sbatch`, `squeue`, `scancel` and `sacct`: pure parts, and calls of a server in memory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.cli.terminal import Terminal, open_terminal, write_file
from wharf.cli.common.errors import CliError
from wharf.cli.slurm.formats import (
    SACCT_FIELDS,
    FormatError,
    format_elapsed,
    format_whole_elapsed,
    parse_named_format,
    parse_squeue_format,
    render_columns,
    render_parsable,
)
from wharf.cli.slurm.rows import Row, build_rows, find_index
from wharf.cli.slurm.selection import (
    JobSelector,
    RowFilter,
    parse_job_names,
    parse_states,
    parse_time_ns,
    resolve_job_name,
)
from wharf.cli.slurm.squeue import expand_rows
from wharf.cli.submission.submit import describe_misplaced_options, submit
from wharf.contract.model.allocations.allocation import AllocationStub, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import TaskEventView, TaskStateView, TaskStatus
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.array_views import ArrayView
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.jobs.run_views import StepStatus, StepView
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind
from wharf.contract.model.times import HOUR, MINUTE, SECOND

DAY = 24 * HOUR
SCRIPT = "#!/bin/sh\n#SBATCH --mem=64M\necho\n"


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


# -- pure parts


def a_batch_job(*, array: dict[str, object] | None = None, **fields: object) -> Job:
    group = {
        "Name": "main",
        "Tasks": [{"Name": "main", "Driver": "raw_exec", "Resources": {"Cores": 2, "MemoryMB": 64}}],
    }
    document = {"ID": "4711", "Name": "train", "Type": "batch", "Meta": {"submit_user": "mia"}, "NodePool": "gpu"}
    job = convert_object(Job, {**document, "TaskGroups": [group | ({"Array": array} if array else {})]}).value
    return msgspec.structs.replace(job, **fields)


def an_allocation(
    index: int,
    status: str,
    *,
    desired: str = "run",
    description: str = "",
    events: tuple[TaskEventView, ...] = (),
) -> AllocationStub:
    return AllocationStub(
        id=f"alloc-{index}",
        name=f"4711.main[{index}]",
        job_id="4711",
        job_type="batch",
        task_group="main",
        node_name="" if status == "pending" else "n1",
        client_status=ClientStatus(status),
        client_description=description,
        desired_status=DesiredStatus(desired),
        task_states={"main": TaskStateView(state=TaskStatus.DEAD, events=events)},
    )


OUT_OF_MEMORY = (
    TaskEventView(
        type="Terminated",
        exit_code=137,
        signal=9,
        display_message="Exit Code: 137, Signal: 9",
        details={"exit_code": "137", "signal": "9", "oom_killed": "true"},
    ),
    TaskEventView(type="Not Restarting", display_message="Policy allows no restarts"),
)
"""The events of a program that the kernel killed for lack of memory, as servers return them."""
SIGNALED = (
    TaskEventView(type="Signaling", details={"signal": "SIGTERM"}),
    TaskEventView(type="Terminated", exit_code=143, signal=15),
)
KILLED = (
    TaskEventView(type="Killing"),
    TaskEventView(type="Terminated", exit_code=0, signal=15),
    TaskEventView(type="Killed"),
)


@pytest.mark.parametrize(
    ("allocation", "state", "exit_code"),
    [
        (an_allocation(0, "pending"), "CONFIGURING", "0:0"),
        (an_allocation(0, "running"), "RUNNING", "0:0"),
        (an_allocation(0, "running", desired="stop"), "COMPLETING", "0:0"),
        (an_allocation(0, "complete", events=(TaskEventView(type="Terminated"),)), "COMPLETED", "0:0"),
        (an_allocation(0, "failed", events=(TaskEventView(type="Terminated", exit_code=3),)), "FAILED", "3:0"),
        (an_allocation(0, "complete", desired="stop", events=KILLED), "CANCELLED", "0:15"),
        (an_allocation(0, "failed", events=SIGNALED), "CANCELLED", "0:15"),
        (an_allocation(0, "complete", desired="evict", events=KILLED), "PREEMPTED", "0:15"),
        (an_allocation(0, "failed", description="allocation exceeded max_run_duration"), "TIMEOUT", "0:0"),
        (
            an_allocation(0, "failed", events=OUT_OF_MEMORY),
            "OUT_OF_MEMORY",
            "0:9",
        ),
        (an_allocation(0, "lost"), "NODE_FAIL", "0:0"),
        (an_allocation(0, "unknown"), "RUNNING", "0:0"),
    ],
)
def test_states_of_allocations_in_the_words_of_slurm(allocation: AllocationStub, state: str, exit_code: str) -> None:
    (row,) = build_rows(a_batch_job(), [allocation])

    assert (row.id, row.state, row.exit_code, row.cores, row.partition, row.user) == (
        "4711",
        state,
        exit_code,
        2,
        "gpu",
        "mia",
    )


@pytest.mark.parametrize(
    ("array", "begun", "rows"),
    [
        (None, (), [("4711", "PENDING")]),
        ({"Size": 4}, (), [("4711_[0-3]", "PENDING")]),
        (
            {"Size": 4, "MaxRunning": 2},
            (0, 1),
            [("4711_[2-3%2]", "PENDING"), ("4711_0", "RUNNING"), ("4711_1", "RUNNING")],
        ),
        ({"Items": ["5", "7", "9"]}, (1,), [("4711_[5,9]", "PENDING"), ("4711_7", "RUNNING")]),
        ({"Items": ["a.csv", "b.csv"]}, (1,), [("4711_[0]", "PENDING"), ("4711_1", "RUNNING")]),
        ({"Size": 1}, (0,), [("4711_0", "RUNNING")]),
    ],
)
def test_runs_that_have_not_begun_share_a_line(
    array: dict[str, object] | None, begun: tuple[int, ...], rows: list[tuple[str, str]]
) -> None:
    found = build_rows(a_batch_job(array=array), [an_allocation(index, "running") for index in begun])

    assert [(row.id, row.state) for row in found] == rows


def test_elements_without_an_allocation_have_the_state_that_servers_keep() -> None:
    array = ArrayView(group="main", states="2s1f1c2r4.")
    allocations = [an_allocation(4, "running"), an_allocation(5, "running"), an_allocation(6, "failed")]

    rows = build_rows(a_batch_job(array={"Size": 10}), allocations, (array,))

    assert [(row.label, row.state) for row in rows] == [
        ("[6-9]", "PENDING"),
        ("4", "RUNNING"),
        ("5", "RUNNING"),
        ("[0-1]", "COMPLETED"),
        ("[2]", "FAILED"),
        ("[3]", "CANCELLED"),
    ]


def a_run(*steps: str) -> Job:
    """Return a job whose steps wait for the first one. A step `NAME:SIZE` is an array."""
    first = steps[0].partition(":")[0]
    groups = []
    for step in steps:
        name, _, size = step.partition(":")
        group: dict[str, object] = {"Name": name, "Tasks": [{"Name": "main", "Driver": "raw_exec"}]}
        group |= {"Array": {"Size": int(size or 1)}}
        groups.append(group | ({"Depends": [{"On": first}]} if name != first else {}))
    return convert_object(Job, {"ID": "4711", "Type": "batch", "TaskGroups": groups}).value


@pytest.mark.parametrize(("letter", "state"), [("x", "CANCELLED"), ("c", "CANCELLED"), ("f", "FAILED")])
def test_a_step_that_never_began_has_a_line_with_its_state(letter: str, state: str) -> None:
    views = (ArrayView(group="build", states="s"), ArrayView(group="ship", states=letter))
    job = msgspec.structs.replace(a_run("build", "ship"), status=JobStatus.DEAD)

    rows = build_rows(job, [], views)

    assert [(row.id, row.state) for row in rows] == [("4711_build[0]", "COMPLETED"), ("4711_ship[0]", state)]


def test_skipped_elements_of_an_array_are_canceled_in_the_words_of_slurm() -> None:
    rows = build_rows(a_batch_job(array={"Size": 3}), [], (ArrayView(group="main", states="2s1x"),))

    assert [(row.label, row.state) for row in rows] == [("[0-1]", "COMPLETED"), ("[2]", "CANCELLED")]


def test_steps_that_wait_have_lines_with_their_names() -> None:
    rows = build_rows(a_run("build", "test:3", "ship"), [])

    assert [row.id for row in rows] == ["4711_build[0]", "4711_test[0-2]", "4711_ship[0]"]
    assert [row.id for row in expand_rows(rows)] == [
        "4711_build[0]",
        "4711_test[0]",
        "4711_test[1]",
        "4711_test[2]",
        "4711_ship[0]",
    ]


ASKING: Final = "ID: ask\nType: batch\nTaskGroups: [{Name: ship, Gate: {Ask: 'Now?', Timeout: 1m}, Tasks: [{Name: main, Driver: mock}]}]\n"


def test_sacct_shows_a_step_whose_gate_was_rejected_as_failed_with_the_answer(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, ASKING))
    terminal.wait(2)
    assert terminal.run_ok("sacct", "-n", "-P", "-o", "State,Reason") == "PENDING|waits for approval\n"

    terminal.run_ok("flow", "approve", "ask", "ship", "--reject", "--text", "not on Friday")

    lines = terminal.run_ok("sacct", "-n", "-P", "-o", "JobID,State,Reason").splitlines()
    assert lines == ["ask|FAILED|rejected by anonymous: not on Friday"]


def test_squeue_says_of_each_step_what_it_waits_for(terminal: Terminal, tmp_path: Path) -> None:
    job = ASKING.replace("ask\n", "ask_me\n").replace(
        "}]\n", "}, {Name: mail, Depends: [ship], Tasks: [{Name: main, Driver: mock}]}]\n"
    )
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, job))
    terminal.wait(2)

    assert terminal.run_ok("squeue", "-h", "-o", "%i %r").splitlines() == [
        "ask_me_ship[0] waits for approval",
        "ask_me_mail[0] waits for ship to succeed",
    ]
    assert terminal.run_ok("squeue", "-h", "-o", "%i", "-j", "ask_me_mail[0]") == "ask_me_mail[0]\n"
    assert "cannot be stopped alone" in terminal.run("scancel", "ask_me_mail[0]").err
    assert terminal.run_ok("scancel", "ask_me_mail[7]") == (
        "job ask_me has no such element of a step that waits or runs: `wharf sacct -j ask_me` lists them\n"
    )


def test_sacct_shows_a_step_whose_gate_nobody_answered_as_over_its_deadline(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, ASKING))
    terminal.wait(90)

    lines = terminal.run_ok("sacct", "-n", "-P", "-s", "DL", "-o", "JobID,State,Reason").splitlines()
    assert lines == ["ask|DEADLINE|not approved: nobody answered in time"]


def test_sacct_shows_why_a_job_never_ran(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, ASKING))
    waiting = (
        "ID: next\nType: batch\nDepends: [{On: ask}]\nTaskGroups: [{Name: main, Tasks: [{Name: main, Driver: mock}]}]\n"
    )
    terminal.run_ok("job", "run", "--detach", write_file(tmp_path, waiting))
    terminal.wait(90)

    lines = terminal.run_ok("sacct", "-n", "-P", "-j", "next", "-o", "JobID,State,Reason").splitlines()
    assert lines == ["next|CANCELLED|skipped, because the job ask failed"]


def a_step_view(status: str, kind: StepCauseKind, **fields: Any) -> StepView:
    return StepView(
        name="ship", status=StepStatus(status), cause=StepCause(kind=kind, **fields), text="why", ended_at=7
    )


@pytest.mark.parametrize(
    ("step", "state"),
    [
        (a_step_view("failed", StepCauseKind.GATE, actor="mia"), "FAILED"),
        (a_step_view("failed", StepCauseKind.GATE), "DEADLINE"),
        (a_step_view("failed", StepCauseKind.CONDITION), "FAILED"),
        (a_step_view("canceled", StepCauseKind.DEADLINE), "DEADLINE"),
        (a_step_view("canceled", StepCauseKind.CANCEL, actor="mia"), "CANCELLED"),
        (a_step_view("skipped", StepCauseKind.NEED, step="build"), "CANCELLED"),
        (a_step_view("skipped", StepCauseKind.CONDITION), "CANCELLED"),
    ],
)
def test_a_step_that_never_began_has_the_state_of_its_cause(step: StepView, state: str) -> None:
    job = msgspec.structs.replace(a_run("ship"), status=JobStatus.DEAD)

    (row,) = build_rows(job, [], (ArrayView(group="ship", states="c"),), {"ship": step})

    assert (row.state, row.reason, row.end_ns) == (state, "why", 7)


def test_the_rest_of_a_large_array_is_one_line() -> None:
    job = a_batch_job(array={"Size": 100_000})

    waiting, _ = build_rows(job, [an_allocation(0, "running")])

    assert (waiting.label, len(waiting.members)) == ("[1-99999]", 99_999)
    assert JobSelector("4711", frozenset((99_999,))).matches(waiting)


def test_what_waited_when_a_job_was_stopped_is_canceled() -> None:
    job = a_batch_job(stop=True, status=JobStatus.DEAD)

    assert [row.state for row in build_rows(job, [])] == ["CANCELLED"]
    assert (
        len(
            build_rows(a_batch_job(array={"Size": 3}, stop=True, status=JobStatus.DEAD), [an_allocation(0, "complete")])
        )
        == 1
    )


@pytest.mark.parametrize(
    ("items", "label", "index"), [(["5", "7"], "7", 1), (["5", "7"], "1", None), (None, "2", 2), (None, "9", None)]
)
def test_runs_are_found_by_the_index_of_the_user(items: list[str] | None, label: str, index: int | None) -> None:
    group = a_batch_job(array={"Items": items} if items else {"Size": 3}).groups[0]

    assert find_index(group, label) == index


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("4711", [JobSelector("4711")]),
        ("4711,4712_3", [JobSelector("4711"), JobSelector("4712", frozenset((3,)))]),
        ("4711_[1-3,7]", [JobSelector("4711", frozenset((1, 2, 3, 7)))]),
        ("train-x_2", [JobSelector("train-x", frozenset((2,)))]),
        ("", []),
    ],
)
def test_names_of_jobs_and_runs(text: str, names: list[JobSelector]) -> None:
    assert parse_job_names(text) == names


def test_a_job_whose_id_ends_like_an_index_is_found_by_its_whole_id() -> None:
    (name,) = parse_job_names("run_3")

    assert resolve_job_name(name, ["run_3", "other"]) == JobSelector("run_3")
    assert resolve_job_name(name, ["run", "run_3"]) == name


def test_elements_of_a_step_are_named_as_squeue_prints_them() -> None:
    (name,) = parse_job_names("my_run_unit_test[0-2]")
    ids = ["my", "my_run", "my_run_unit", "other"]
    resolved = resolve_job_name(name, ids[:2])
    row = Row("my_run", label="unit_test[1]")

    assert resolved == JobSelector("my_run", frozenset((0, 1, 2)), "unit_test")
    assert [resolved.matches(each) for each in (
        row, row._replace(label="unit_test[3]"), row._replace(label="other[1]"), row._replace(label="unit_test[2-9]", members=(2, 9)),
        row._replace(label="unit_test[5-9]", members=(5, 9)),
    )] == [True, False, False, True, False]  # fmt: skip
    assert resolve_job_name(name, ids[3:]) == name


def test_a_run_of_a_range_matches_the_line_of_runs_that_have_not_begun() -> None:
    (name,) = parse_job_names("4711_[3-5]")

    assert [name.matches(Row("4711", label)) for label in ("3", "6", "")] == [True, False, False]
    assert name.matches(Row("4711", "[5-6%2]", members=(5, 6)))
    assert not name.matches(Row("4711", "[7-8]", members=(7, 8)))
    assert RowFilter(names=(name,), states=parse_states("r")).matches(Row("4711", "3", state="RUNNING"))


@pytest.mark.parametrize("text", ["4711_[1-", "4711_[]"])
def test_a_range_that_is_not_closed_names_a_job(text: str) -> None:
    assert parse_job_names(text)[0].indexes is None


def test_states_may_be_short() -> None:
    assert parse_states("PD,running") == {"PENDING", "RUNNING"}
    assert "TIMEOUT" in parse_states("all")
    with pytest.raises(CliError, match="unknown state XX"):
        parse_states("XX")


def test_times_of_the_options() -> None:
    noon = parse_time_ns("2026-11-29T12:00:00", 0)

    assert parse_time_ns("now-2hours", noon) == noon - 2 * HOUR
    assert parse_time_ns("today", noon) == noon - 12 * HOUR
    assert parse_time_ns("12:30", noon) == noon + 30 * MINUTE
    assert parse_time_ns("11/29/26-12:00", 0) == noon
    with pytest.raises(CliError, match="expected a time such as"):
        parse_time_ns("soon", noon)


def test_durations_are_written_as_slurm_writes_them() -> None:
    assert [format_elapsed(ns) for ns in (42 * SECOND, HOUR + 5 * MINUTE, 2 * DAY + HOUR)] == [
        "0:42",
        "1:05:00",
        "2-01:00:00",
    ]
    assert [format_whole_elapsed(ns) for ns in (42 * SECOND, 2 * DAY)] == ["00:00:42", "2-00:00:00"]


def test_formats_choose_columns_and_widths() -> None:
    row = Row("4711", "3", name="a-long-name", user="mia", state="RUNNING", node="n1", start_ns=SECOND)

    assert render_columns(parse_squeue_format("%.6i|%5j|%T %R", cuts=True), [row], 2 * SECOND, has_header=True) == [
        " JOBID|NAME |STATE NODELIST(REASON)",
        "4711_3|a-lon|RUNNING n1",
    ]
    named = parse_named_format("JobID%10,State%3,Elapsed", SACCT_FIELDS)
    assert render_columns(named, [row], 2 * SECOND, has_header=False) == ["    4711_3 RUN   00:00:01"]
    assert render_parsable(named, [row], 0, has_header=True, delimiter="|", ends_with_delimiter=True)[1].startswith(
        "4711_3|RUNNING|"
    )
    for text in ("%y", "x", "%"):
        with pytest.raises(FormatError):
            parse_squeue_format(text, cuts=True)
    with pytest.raises(FormatError, match="unknown column 'Nothing'"):
        parse_named_format("Nothing", SACCT_FIELDS)


# -- calls of a server

EVERY_OPTION = """#!/bin/sh
#SBATCH --array=2-8:2%2 --time=1:00:00 --signal=B:USR1@20 --mem-per-cpu=64M -c 2 -n 2 --nice=20 --requeue --tmp=500M
#SBATCH --account=bio --qos=long --comment='a text' --constraint=ib --exclude=n[1-3] --nodelist=n9 --gres=gpu:a100:1
#SBATCH --output=out-%A_%a.txt --error=err-%j.txt --open-mode=append --chdir=/data --export=NONE,A=1 --mail-type=ALL
"""


def test_servers_accept_a_job_with_every_option_without_a_warning(terminal: Terminal, tmp_path: Path) -> None:
    script = write_file(tmp_path, EVERY_OPTION, "a.sh")

    result = terminal.run("sbatch", script)

    assert result.out.startswith("Submitted batch job ")
    assert [line for line in result.err.splitlines() if not line.startswith(f"note: {script}:")] == []


def test_a_command_with_a_file_of_the_current_folder_is_submitted_with_a_note(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path, SCRIPT, "a.sh")
    monkeypatch.chdir(tmp_path)

    noted = terminal.run("submit", "--print", "--", "sh", "-u", "a.sh")
    shared = terminal.run("submit", "--print", "--chdir", str(tmp_path), "--", "sh", "a.sh")

    assert "note: a.sh is a file of this folder and does not travel with the job: `wharf submit a.sh`" in noted.err
    assert (noted.code, shared.err) == (0, "")


def test_a_job_that_waits_for_another_one_is_one_run_without_an_index(terminal: Terminal, tmp_path: Path) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")
    first = terminal.run("sbatch", "--parsable", script).out.strip()

    submitted = terminal.run("sbatch", "--parsable", f"--dependency=afterok:{first}", script)
    second = submitted.out.strip()

    assert f"begins when {first} has succeeded; it ends without having run if that becomes impossible" in submitted.err
    assert terminal.run_ok("squeue", "-h", "-j", second, "-o", "%i %t") == f"{second} PD\n"
    terminal.run_ok("scancel", first)
    assert "does not exist" in terminal.run("sbatch", "-d", "afterok:17", script).err


def test_a_submission_may_wait_for_other_jobs(terminal: Terminal) -> None:
    words = ("submit", "--print", "--after", "first", "--after", "second:failed", "--", "true")

    job = json.loads(terminal.run_ok(*words))["Job"]

    assert job["Depends"] == [{"On": "first", "When": "succeeded"}, {"On": "second", "When": "failed"}]


def test_printed_jobs_are_not_submitted(terminal: Terminal, tmp_path: Path) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")

    submitted = json.loads(terminal.run_ok("submit", "--print", "--array", "0-9%2", script, "--own", "x"))["Job"]
    command = json.loads(terminal.run_ok("submit", "--print", "--name", "n", "--env", "A=1", "--", script, "-x"))["Job"]
    batch = json.loads(terminal.run("sbatch", "--test-only", "-J", "b", script).out)["Job"]

    assert submitted["TaskGroups"][0]["Array"] == {"Size": 10, "MaxRunning": 2}
    assert submitted["TaskGroups"][0]["Tasks"][0]["Config"]["args"] == ["--own", "x"]
    assert "Templates" not in command["TaskGroups"][0]["Tasks"][0]
    assert (command["Name"], command["TaskGroups"][0]["Tasks"][0]["Config"]["command"]) == ("n", script)
    assert batch["ID"].isdecimal()
    assert terminal.run_ok("squeue", "-h") == ""


def test_each_submission_is_a_job_of_its_own_that_waits_runs_and_can_be_stopped(
    terminal: Terminal, tmp_path: Path
) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")

    first, second = (terminal.run("sbatch", "--parsable", "--array=0-3", script).out.strip() for _ in range(2))
    # Fake nodes have no whole cores, so jobs of Slurm wait.
    waiting = terminal.run_ok("squeue", "-h", "-o", "%i %t %j %r").splitlines()
    stopped = terminal.run_ok("scancel", first)
    one = terminal.run("scancel", f"{second}_2")

    assert int(second) > int(first)
    assert [line.split()[:2] for line in terminal.run_ok("job", "status").splitlines()] == [
        ["ID", "Name"], [first, "a.sh"], [second, "a.sh"],
    ]  # fmt: skip
    assert sorted(line.split()[0] for line in waiting) == [f"{first}_[0-3]", f"{second}_[0-3]"]
    assert all(line.split()[1:3] == ["PD", "a.sh"] and "core" in line for line in waiting)
    assert stopped == f"stopped job {first}\n"
    assert one.out == f"stopped {second}_2\n"
    assert terminal.run_ok("squeue", "-hr", "-o", "%i").split() == [f"{second}_{index}" for index in (0, 1, 3)]
    assert f"{second}_[2]|CANCELLED" in terminal.run_ok("sacct", "-nP", "-j", second, "--format=JobID,State")
    assert terminal.run_ok("sacct", "-nP", "-j", first, "--format=JobID,State") == f"{first}_[0-3]|CANCELLED\n"
    assert terminal.run_ok("scancel", first) == f"job {first} has ended already\n"


def test_a_stop_does_not_change_when_a_job_was_submitted(terminal: Terminal) -> None:
    job = terminal.run_ok("submit", "--cores", "0", "-t", "{{.JobID}}", "--", "sleep", "600").strip()
    terminal.wait(3_600)
    terminal.run_ok("job", "stop", "--detach", job)
    terminal.wait(60)

    assert "Submitted    1h1m ago\n" in terminal.run_ok("job", "status", job)
    assert terminal.run_ok("job", "status").splitlines()[1].endswith("1h1m ago")
    assert terminal.run_ok("sacct", "-nP", "-j", job, "--format=Submit") == "2026-01-01T00:00:00\n"


def test_sacct_shows_when_a_canceled_job_was_submitted_and_when_it_was_stopped(
    terminal: Terminal, tmp_path: Path
) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")
    job = terminal.run("sbatch", "--parsable", script).out.strip()
    before = terminal.run_ok("sacct", "-nP", "-j", job, "--format=Submit,End").strip()
    terminal.wait(60)

    terminal.run_ok("scancel", job)
    submit, end = terminal.run_ok("sacct", "-nP", "-j", job, "--format=Submit,End").strip().split("|")

    assert before == f"{submit}|Unknown"
    assert end > submit


def test_scancel_says_why_it_stops_no_element(terminal: Terminal, tmp_path: Path) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")
    array, single = (
        terminal.run("sbatch", "--parsable", *words, script).out.strip() for words in (("--array=0-3",), ())
    )
    terminal.run_ok("scancel", f"{array}_2")

    assert terminal.run_ok("scancel", f"{array}_2") == f"{array}_2 has ended already\n"
    assert terminal.run_ok("scancel", f"{array}_[7-8]") == (
        f"job {array} has no element 7-8: `wharf sacct -j {array}` lists its elements\n"
    )
    assert terminal.run_ok("scancel", f"{single}_1") == (
        f"job {single} is not an array, so it has no elements: `wharf scancel {single}` stops the whole job\n"
    )
    assert terminal.run_ok("scancel", "-t", "PD", "-n", "a.sh") == (f"stopped job {single}\nstopped job {array}\n")
    assert terminal.run("scancel", "-n", "b.sh").err == (
        "note: no job that waits or runs was selected, so nothing was stopped\n"
    )


def test_an_element_that_is_named_as_in_slurm_is_explained(terminal: Terminal, tmp_path: Path) -> None:
    script = write_file(tmp_path, SCRIPT, "a.sh")
    job = terminal.run("sbatch", "--parsable", "--array=1-4", script).out.strip()

    assert terminal.run("job", "logs", f"{job}_2").err == (
        f"wharf: {job}_2 is an element of the array {job}: write {job} --index 1\n"
    )
    assert terminal.run("job", "status", f"{job}_5").err == (
        f"wharf: job {job} has no element 5: `wharf sacct -j {job}` lists its elements\n"
    )
    assert terminal.run("job", "status", "nothing_5").err == (
        "wharf: job nothing_5 does not exist; `wharf job status` lists all\n"
    )


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--array", "0-3"), "--array is passed to train.py; options of submit stand before the script: `wharf submit --array … train.py`"),
        (("--mem=2G", "x", "--array=0-3"), "--mem, --array are passed to train.py; options of submit stand before the script: `wharf submit --mem … train.py`"),
        (("--epochs", "3", "array"), ""),
        (("--", "--array", "0-3"), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_options_of_submit_behind_the_script_are_noted(words: tuple[str, ...], note: str) -> None:
    assert describe_misplaced_options(("train.py", *words), submit) == note


ERRORS = (
    (("submit",), "missing script or command"),
    (("submit", "missing.sh"), "missing.sh: no such file"),
    (("submit", "--fail-fast", "--", "true"), "--fail-fast needs --array"),
    (
        ("submit", "--after", "first:fail", "--", "true"),
        '--after "first:fail": unknown word "fail" after the colon: did you mean "failed"?',
    ),
    (("submit", "--after", ":any", "--", "true"), '--after ":any" names no job'),
    (("submit", "--after", "a", "--after", "a:any", "--", "true"), "--after the job a is named twice: remove one"),
    (("submit", "--array", "x", "--", "true"), "expected indexes such as"),
    (("submit", "--mem", "x", "--", "true"), "expected an amount of memory"),
    (("submit", "--time", "90", "--", "true"), "expected a duration"),
    (("submit", "--chdir", "here", "--", "true"), "expected an absolute path"),
    (("submit", "--env", "NOT_IN_THE_SHELL", "--", "true"), "your shell has no variable"),
    (("submit", "--", "A=1", "true"), "set variables with --env A=1"),
    (("sbatch", "--hold", "missing.sh"), "missing.sh: no such file"),
    (("sbatch", "--hold", "--wrap", "true"), "--hold: not supported"),
    (("sbatch", "--wrap", "true", "x.sh"), "--wrap and a script exclude each other"),
    (("sbatch", "--nothing"), "unknown option --nothing"),
    (("squeue", "--start"), "start times are not estimated"),
    (("squeue", "-j", "17"), "no batch job 17"),
    (("squeue", "-o", "%y"), "unknown column %y"),
    (("squeue", "-t", "X"), "unknown state X"),
    (("sacct", "--format=X"), "unknown column 'X'"),
    (("scancel",), "missing job"),
    (("scancel", "-s", "X", "17"), "no batch job 17"),
    (("squeue", "--namespace", "nowhere"), "namespace nowhere does not exist"),
    (("sbatch", "-p", "gpu", "--wrap", "true"), 'node pool "gpu"; `wharf node pool list` lists all'),
    (("submit", "--namespace", "mia", "--", "true"), 'namespace "mia"; `wharf namespace list` lists all'),
    (("srun", "hostname"), "use `wharf submit --wait -- COMMAND`"),
    (("sinfo",), "use `wharf node status`"),
)


def test_errors_say_what_to_do(terminal: Terminal) -> None:
    results = {words: terminal.run(*words) for words, _ in ERRORS}

    assert {words: results[words].err for words, expected in ERRORS if expected not in results[words].err} == {}
    assert all(result.code for result in results.values())


def test_help_lists_the_options_of_slurm(terminal: Terminal) -> None:
    options, no_effect, refused = re.split("\n\nOptions .*:\n", terminal.run_ok("sbatch", "--help"))[1:4]

    assert "-c, --cpus-per-task" in options
    assert "--mail-type" in no_effect
    assert "-H, --hold" in refused
    assert "--noheader" in terminal.run_ok("squeue", "--help")
    assert "JobIDRaw" in terminal.run_ok("sacct", "-e")
    assert terminal.run_ok("sbatch", "--version").startswith("wharf ")
    assert "MaxRSS: not stored" in terminal.run("sacct", "--format=JobID,MaxRSS").err
