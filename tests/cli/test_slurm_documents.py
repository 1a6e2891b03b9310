"""`squeue --json`, `sacct --json` and `seff`: the fields of Slurm, and what is unknown."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.terminal import Terminal, open_terminal
from wharf.cli.slurm.documents import build_sacct_document, build_squeue_document
from wharf.cli.slurm.rows import Row
from wharf.cli.slurm.seff import build_document, read_measurement, render_run
from wharf.contract.model.times import SECOND

CLIENT = {"user": "mia", "command": "squeue"}
ENDED = Row(
    "4711",
    "3",
    name="train",
    user="mia",
    account="lab",
    partition="gpu",
    state="FAILED",
    exit_code="7:0",
    node="node-1",
    cores=4,
    memory_mb=2_048,
    time_limit_ns=90 * 60 * SECOND,
    priority=50,
    submit_ns=1_000 * SECOND,
    start_ns=1_010 * SECOND,
    end_ns=1_070 * SECOND,
    region="global",
    namespace="default",
)
WAITING = Row("4711", "[4-9%2]", members=(4, 5, 6, 7, 8, 9), reason="waits for resources", submit_ns=1_000 * SECOND)
RUNNING = Row("train-3e", state="RUNNING", node="node-1", cores=2, memory_mb=100, start_ns=1_010 * SECOND)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=1) as terminal:
        yield terminal


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def queue(*rows: Row) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = build_squeue_document(rows, 2_000 * SECOND, client=CLIENT, release="1")["jobs"]
    return jobs


def test_squeue_has_the_fields_of_slurm() -> None:
    (job,) = queue(ENDED)

    assert (job["job_id"], job["array_job_id"], job["array_task_id"]) == (4711, number(4711), number(3))
    assert (job["job_state"], job["state_reason"], job["user_name"]) == (["FAILED"], "None", "mia")
    assert (job["submit_time"], job["start_time"], job["end_time"]) == (number(1_000), number(1_010), number(1_070))
    assert (job["time_limit"], job["cpus"], job["memory_per_node"]) == (number(90), number(4), number(2_048))
    assert job["exit_code"]["status"] == ["ERROR"]
    assert job["exit_code"]["return_code"] == number(7)
    assert job["tres_req_str"] == "cpu=4,mem=2048M,node=1"


def test_runs_of_an_array_that_wait_have_their_indexes_as_text() -> None:
    (job,) = queue(WAITING)

    assert (job["array_task_id"]["set"], job["array_task_string"], job["array_max_tasks"]) == (
        False,
        "4-9%2",
        number(2),
    )
    assert (job["state_reason"], job["start_time"]["set"], job["nodes"]) == ("waits for resources", False, "")
    assert job["time_limit"] == {"set": False, "infinite": True, "number": 0}


def test_a_job_without_a_number_keeps_its_name_as_id() -> None:
    (job,) = queue(RUNNING)

    assert (job["job_id"], job["array_job_id"], job["wharf"]["id"]) == ("train-3e", number(0), "train-3e")


def test_sacct_has_the_fields_of_slurm_and_none_that_is_not_stored() -> None:
    document = build_sacct_document([ENDED], 2_000 * SECOND, client=CLIENT, release="1", warnings=["one is missing"])
    (job,) = document["jobs"]

    assert job["state"] == {"current": ["FAILED"], "reason": "None"}
    assert job["time"] == {"elapsed": 60, "submission": 1_000, "start": 1_010, "end": 1_070, "limit": number(90)}
    assert job["array"] == {
        "job_id": 4711, "limits": {"max": {"running": {"tasks": 0}}}, "task_id": number(3), "task": "",
    }  # fmt: skip
    assert job["association"] == {"account": "lab", "cluster": "global", "partition": "gpu", "user": "mia"}
    assert job["required"]["memory_per_node"] == number(2_048)
    assert job["tres"]["allocated"][0] == {"type": "cpu", "name": "", "id": 1, "count": 4}
    assert document["warnings"] == [{"description": "one is missing", "source": "wharf"}]


def test_the_commands_print_one_document(terminal: Terminal) -> None:
    terminal.run("sbatch", "--array=0-3", "--wrap", "true")

    (waiting,) = json.loads(terminal.run_ok("squeue", "--json"))["jobs"]
    (accounted,) = json.loads(terminal.run_ok("sacct", "--json=v0.0.40"))["jobs"]

    assert (waiting["job_state"], waiting["array_task_string"]) == (["PENDING"], "0-3")
    assert "core" in waiting["state_reason"]
    assert accounted["state"]["current"] == ["PENDING"]
    assert json.loads(terminal.run_ok("squeue", "--json", "--name", "nothing"))["jobs"] == []


def sample(second: int, percent: float, memory_mb: int) -> dict[str, Any]:
    return {"Timestamp": second * SECOND, "Percent": percent, "Memory": memory_mb << 20}


def test_the_efficiency_of_a_run_is_that_of_the_measurements_since_its_begin() -> None:
    samples = [sample(1_000, 500, 90), sample(1_020, 100, 50), sample(1_060, 50, 20)]

    measured = read_measurement({"History": samples}, RUNNING.start_ns)
    lines = render_run(RUNNING, measured, 1_070 * SECOND).splitlines()
    document = build_document(RUNNING, measured, 1_070 * SECOND)

    assert lines[6:] == [
        "CPU Utilized: 0.75 cores, on average of the last 40s",
        "CPU Efficiency: 37.50% of 2 cores",
        "Job Wall-clock time: 00:01:00",
        "Memory Utilized: 50.00 MB at most",
        "Memory Efficiency: 50.00% of 100 MB",
    ]
    assert (document["CPUEfficiencyPercent"], document["MemoryEfficiencyPercent"], document["CoreSeconds"]) == (
        37.5, 50.0, 120.0,
    )  # fmt: skip


def test_a_run_that_has_just_begun_has_the_newest_measurement() -> None:
    usage = {"CpuStats": {"Percent": 20.0}, "MemoryStats": {"Usage": 0, "RSS": 10 << 20}}

    measured = read_measurement({"Tasks": {"main": {}}, "ResourceUsage": usage}, RUNNING.start_ns)

    assert "CPU Utilized: 0.20 cores, now\n" in render_run(RUNNING, measured, 1_015 * SECOND)
    assert read_measurement({"Tasks": {}}, RUNNING.start_ns) is None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ENDED, "unknown: servers do not store what an ended run used"),
        (WAITING, "unknown: it has not begun"),
        (RUNNING, "unknown: its node measures nothing now"),
    ],
)
def test_what_is_unknown_has_a_reason(row: Row, reason: str) -> None:
    text = render_run(row, None, 1_070 * SECOND)

    assert f"CPU Utilized: {reason}\n" in text
    assert f"Memory Utilized: {reason}\n" in text
    assert build_document(row, None, 1_070 * SECOND)["CPUEfficiencyPercent"] is None


def test_seff_shows_a_job_by_its_id(terminal: Terminal) -> None:
    job = terminal.run("sbatch", "--parsable", "--wrap", "true").out.strip()

    assert terminal.run_ok("seff", job).startswith(f"Job ID: {job}\n")
    assert json.loads(terminal.run_ok("seff", job, "--json"))[0]["State"] == "PENDING"
    assert "no batch job 17" in terminal.run("seff", "17").err
