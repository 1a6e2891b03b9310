"""What a program may use at most, where control groups can be made; what it is run as; and what is told of it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.supervisor.keeping import ASupervisor, a_supervisor
from tests.waiting import wait_until
from wharf.node.supervisor.cgroup_limits import CgroupLimits, build_limits_v2, convert_shares_to_weight
from wharf.node.supervisor.messages import RunEnded, RunLimits

SIGKILL = 9
EAT = "import sys; held = [bytearray(1 << 20) for _ in range(200)]; print(len(held))"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[ASupervisor]:
    with a_supervisor(tmp_path) as it:
        yield it


@pytest.mark.needs("memory_bounds")
def test_a_program_that_wants_more_memory_than_it_may_have_is_killed_and_this_is_told(supervisor: ASupervisor) -> None:
    assert "memory" in supervisor.bounds
    supervisor.start("eats", ("/usr/bin/env", "python3", "-c", EAT), limits=RunLimits(memory_mb=60))
    assert supervisor.ended("eats") == RunEnded("eats", 128 + SIGKILL, SIGKILL, is_out_of_memory=True)

    supervisor.start("has-room", ("/usr/bin/env", "python3", "-c", EAT), limits=RunLimits(memory_mb=400))
    assert supervisor.ended("has-room") == RunEnded("has-room", 0)
    assert supervisor.output("has-room") == "200\n"


@pytest.mark.needs("memory_bounds")
def test_a_program_that_is_killed_otherwise_has_not_run_out_of_memory(supervisor: ASupervisor) -> None:
    supervisor.start("killed", ("/bin/sh", "-c", "kill -9 $$"), limits=RunLimits(memory_mb=60))
    assert supervisor.ended("killed") == RunEnded("killed", 128 + SIGKILL, SIGKILL)


@pytest.mark.needs("memory_bounds")
def test_no_group_is_left_behind(supervisor: ASupervisor) -> None:
    supervisor.start("gone", ("/bin/true",), limits=RunLimits(memory_mb=60, cpu_shares=500))
    supervisor.ended("gone")
    supervisor.forget("gone")
    own = f"wharf/test-{os.getpid()}/gone"
    groups = [Path("/sys/fs/cgroup") / tree / own for tree in ("memory", "cpu", "pids", "")]
    wait_until(lambda: not any(group.exists() for group in groups), what="its groups are gone")


@pytest.mark.needs("memory_bounds")
def test_a_program_runs_on_its_cores_and_starts_no_more_than_it_may(supervisor: ASupervisor) -> None:
    assert {"cores", "pids"} <= set(supervisor.bounds)
    core = max(os.sched_getaffinity(0))
    supervisor.start("few", ("/bin/grep", "Cpus_allowed_list", "/proc/self/status"), limits=RunLimits(cores=str(core)))
    assert supervisor.ended("few") == RunEnded("few", 0)
    assert supervisor.output("few").split() == ["Cpus_allowed_list:", str(core)]
    supervisor.shell("forks", "sleep 60 & sleep 60 & sleep 60 & echo all", limits=RunLimits(processes=3))
    assert supervisor.ended("forks").exit_code != 0
    assert supervisor.output("forks") == ""


def test_a_program_says_how_soon_it_may_be_taken(supervisor: ASupervisor) -> None:
    supervisor.start("humble", ("/bin/cat", "/proc/self/oom_score_adj"), limits=RunLimits(oom_score=321))
    supervisor.ended("humble")
    assert supervisor.output("humble") == "321\n"


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262_144, 10_000)])
def test_shares_of_the_first_version_are_weights_of_the_second(shares: int, weight: int) -> None:
    assert convert_shares_to_weight(shares) == weight


def test_in_the_second_version_bounds_are_files_of_the_one_group(tmp_path: Path) -> None:
    """A folder in the place of the kernel's tree: what is written, and where."""
    bounding = CgroupLimits(tmp_path, tmp_path, version=2)
    groups = bounding.create_cgroups("r", RunLimits(memory_mb=64, cpu_shares=1024))
    assert groups == [tmp_path / "r", tmp_path / "r"]
    told = {file.name: file.read_text() for file in (tmp_path / "r").iterdir()}
    assert told == {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.weight": "39"}
    assert bounding.has_oom_kill("r") is False
    (tmp_path / "r" / "memory.events").write_text("low 0\noom 3\noom_kill 1\n")
    assert bounding.has_oom_kill("r") is True


def test_where_the_kernel_offers_no_controllers_nothing_is_bounded(tmp_path: Path) -> None:
    assert build_limits_v2(tmp_path, "node").enforced_limits == ()
