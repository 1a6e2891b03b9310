"""Server processes raise their soft limit of open files to the hard limit of the machine."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.processes import running

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


def test_server_processes_raise_their_limit_of_open_files_and_nodes_do_not(tmp_path: Path, hard_limit: int) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()

        assert [open_files_of(agent.child(role)) for role in ("api", "store", "brain")] == [hard_limit] * 3
        assert open_files_of(agent.child("node")) == LOW
