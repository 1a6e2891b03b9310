"""Processes raise their soft limit of open files to the hard limit of the machine; programs of tasks keep the soft limit."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import run, running
from tests.agent.test_damaged_data_folders import build_job
from tests.waiting import wait_until
from wharf.world.descriptors import MAX_OPEN_FILES

LOW = 512


@pytest.fixture
def hard_limit() -> Iterator[int]:
    """Lower the soft limit of open files for processes started from now on. Returns the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    yield min(hard, 1_048_576) if hard != resource.RLIM_INFINITY else 1_048_576
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files_of(pid: int | None) -> int:
    (line,) = [
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open files")
    ]
    return int(line.split()[3])


def test_all_processes_raise_their_limit_of_open_files(tmp_path: Path, hard_limit: int) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()

        assert [open_files_of(agent.child(role)) for role in ("api", "store", "brain")] == [hard_limit] * 3
        assert open_files_of(agent.child("node")) == min(hard_limit, MAX_OPEN_FILES)


@pytest.mark.usefixtures("hard_limit")
def test_programs_of_tasks_keep_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        script = "ulimit -Sn >$NOMAD_ALLOC_DIR/data/new; mv $NOMAD_ALLOC_DIR/data/new $NOMAD_ALLOC_DIR/data/limit.txt; exec sleep 600"
        agent.put("/v1/jobs", {"Job": build_job("limits", "service", "/bin/sh", "-c", script)["Job"]})

        def list_running() -> list[str]:
            allocations: Any = agent.get("/v1/job/limits/allocations")
            return [each["ID"] for each in allocations if each["ClientStatus"] == "running"]

        (allocation,) = wait_until(list_running, what="the task runs")
        written = agent.folder / ".wharf/alloc" / allocation / "alloc/data/limit.txt"
        wait_until(written.exists, what="the task has written its limit")
        command = run(
            agent.folder,
            *("alloc", "exec", allocation, "/bin/sh", "-c", "ulimit -Sn; cat $NOMAD_ALLOC_DIR/data/limit.txt"),
            environment={"WHARF_ADDR": agent.address},
        )

        assert command.stdout.split() == [str(LOW)] * 2, command.stderr
