"""A backup that is saved during a rollout and restored after the rollout's progress deadline, with a real agent."""

import datetime
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.agent.processes import RunningAgent, running
from tests.agent.test_damaged_data_folders import write_config
from tests.waiting import wait_until

COUNT = 4
DEADLINE_S = 15
SECOND_NS = 1_000_000_000


def build_service(version: str) -> dict[str, object]:
    task = {
        "Name": "t",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sleep", "args": ["600"]},
        "Env": {"VERSION": version},
        "Resources": {"CPU": 10, "MemoryMB": 16},
    }
    # The rollout of the second version must last until a backup is saved, so its allocations become healthy slowly.
    update = {
        "MaxParallel": 1,
        "MinHealthyTime": (1 if version == "first" else 3) * SECOND_NS,
        "HealthyDeadline": (DEADLINE_S - 2) * SECOND_NS,
        "ProgressDeadline": DEADLINE_S * SECOND_NS,
        "HealthCheck": "task_states",
    }
    return {
        "Job": {
            "ID": "shop",
            "Type": "service",
            "TaskGroups": [{"Name": "g", "Count": COUNT, "Update": update, "Tasks": [task]}],
        }
    }


def list_running(agent: RunningAgent, version: int) -> list[str]:
    allocations: Any = agent.get("/v1/job/shop/allocations")
    return [
        each["ID"]
        for each in allocations
        if each["ClientStatus"] == "running" and each["DesiredStatus"] == "run" and each["JobVersion"] == version
    ]


def get_deployment(agent: RunningAgent, version: int) -> dict[str, Any]:
    deployments: Any = agent.get("/v1/job/shop/deployments")
    return next((each for each in deployments if each["JobVersion"] == version), {"Status": "none"})


def save_snapshot(agent: RunningAgent, name: str) -> None:
    """Save a snapshot in the agent's folder. A request is faster than the command, which starts a process first."""
    with urllib.request.urlopen(f"{agent.address}/v1/operator/snapshot", timeout=60) as reply:
        (agent.folder / name).write_bytes(reply.read())


def run_command(agent: RunningAgent, *arguments: str) -> str:
    command = [sys.executable, "-m", "wharf", *arguments, "--address", agent.address]
    return subprocess.run(command, cwd=agent.folder, check=True, capture_output=True, text=True, timeout=120).stdout


def has_deadline_passed(deployment: dict[str, Any]) -> bool:
    deadline = datetime.datetime.fromisoformat(deployment["TaskGroups"]["g"]["RequireProgressBy"])
    return datetime.datetime.now(datetime.UTC) > deadline


def test_a_backup_of_a_rollout_that_is_restored_after_its_deadline_has_all_allocations(tmp_path: Path) -> None:
    with running(tmp_path, "agent", "--config", str(write_config(tmp_path))) as agent:
        agent.wait_ready()
        agent.put("/v1/jobs", build_service("first"))
        wait_until(
            lambda: get_deployment(agent, 0)["Status"] == "successful", what="the first version runs", within_s=90
        )
        agent.put("/v1/jobs", build_service("second"))
        wait_until(lambda: list_running(agent, 1), what="one allocation is replaced", within_s=60)
        save_snapshot(agent, "backup.snap")
        saved = get_deployment(agent, 1)
        assert saved["Status"] == "running", "the backup was saved after the rollout"
        wait_until(lambda: get_deployment(agent, 1)["Status"] == "successful", what="the rollout ends", within_s=90)
        wait_until(lambda: has_deadline_passed(saved), what="the deadline of the backup has passed", within_s=60)

        run_command(agent, "operator", "snapshot", "restore", "--yes", "backup.snap")

        wait_until(lambda: len(list_running(agent, 1)) == COUNT, what="all allocations run again", within_s=90)
        wait_until(
            lambda: get_deployment(agent, 1)["Status"] == "successful", what="the rollout ends again", within_s=60
        )
        assert f"{COUNT}/{COUNT}" in run_command(agent, "status")
