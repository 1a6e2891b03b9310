"""Locks of steps on a real cluster: the programs of two runs never run at the same time, also if the leader is killed."""

import os
import signal
from pathlib import Path
from typing import Any

from tests.agent.processes import RunningAgent, running
from tests.waiting import wait_until

WORK_S = 2.0
ENDS_WITHIN_S = 90.0
SCRIPT = "echo begin $1 >>$2; sleep {seconds}; echo end $1 >>$2"


def register(agent: RunningAgent, job_id: str, record: Path, **lock: Any) -> None:
    """Register a run with one step that writes to the file when its program begins and ends."""
    script = SCRIPT.format(seconds=WORK_S)
    task = {
        "Name": "work",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script, "sh", job_id, str(record)]},
        "Resources": {"CPU": 20, "MemoryMB": 32},
    }
    group = {"Name": "deploy", "Tasks": [task], "Lock": {"Key": "production", "Slots": 1, **lock}}
    agent.put("/v1/jobs", {"Job": {"ID": job_id, "Type": "batch", "TaskGroups": [group]}})


def list_begun(record: Path) -> list[str]:
    """Return the runs whose program began, in their order. No program begins before the one before has ended."""
    lines = record.read_text().splitlines() if record.exists() else []
    started_jobs = [line.split()[1] for line in lines[::2]]
    assert lines == [f"{event} {job}" for job in started_jobs for event in ("begin", "end")][: len(lines)]
    return started_jobs


def has_ended(agent: RunningAgent, *job_ids: str) -> bool:
    jobs: Any = agent.get("/v1/jobs")
    return all(each["Status"] == "dead" for each in jobs if each["ID"] in job_ids)


def explain(agent: RunningAgent, job_id: str) -> str:
    explanation: Any = agent.get(f"/v1/job/{job_id}/explain")
    return str(explanation["Text"])


def test_two_runs_take_a_lock_one_after_the_other(tmp_path: Path) -> None:
    record = tmp_path / "record"
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        for job_id in ("first", "second"):
            register(agent, job_id, record)
            wait_until(lambda: list_begun(record) == ["first"], what="the first run begins")

        text = "deploy waits for the lock production, which the run first holds since"
        wait_until(lambda: text in explain(agent, "second"), what="the second run says what it waits for")
        wait_until(lambda: has_ended(agent, "first", "second"), what="both runs end", within_s=ENDS_WITHIN_S)

        assert list_begun(record) == ["first", "second"]


def test_a_lock_survives_that_the_leader_is_killed(tmp_path: Path) -> None:
    record = tmp_path / "record"
    job_ids = ("first", "second", "third")
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        for job_id in job_ids:
            register(agent, job_id, record)
        wait_until(lambda: list_begun(record) == ["first"], what="the first run begins")
        brain = agent.child("brain")
        assert brain is not None

        os.kill(brain, signal.SIGKILL)
        wait_until(lambda: has_ended(agent, *job_ids), what="all runs end", within_s=ENDS_WITHIN_S)

        assert list_begun(record) == ["first", "second", "third"]
