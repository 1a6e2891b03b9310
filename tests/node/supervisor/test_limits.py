"""Resource limits of programs by control groups, and reports about programs that exceed them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.supervisor.supervisor_process import SupervisorProcess, running_supervisor
from tests.waiting import wait_until
from wharf.node.supervisor.cgroup_limits import CgroupLimits, build_limits_v2, convert_shares_to_weight
from wharf.node.supervisor.messages import RunEnded, RunLimits

SIGKILL = 9
USE_200_MB = "import sys; blocks = [bytearray(1 << 20) for _ in range(200)]; print(len(blocks))"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SupervisorProcess]:
    with running_supervisor(tmp_path) as supervisor:
        yield supervisor


@pytest.mark.needs("memory_bounds")
def test_a_program_above_its_memory_limit_is_killed_and_reported_as_out_of_memory(
    supervisor: SupervisorProcess,
) -> None:
    assert "memory" in supervisor.limits
    supervisor.start("eats", ("/usr/bin/env", "python3", "-c", USE_200_MB), limits=RunLimits(memory_mb=60))
    assert supervisor.wait_ended("eats") == RunEnded("eats", 128 + SIGKILL, SIGKILL, is_out_of_memory=True)

    supervisor.start("fits", ("/usr/bin/env", "python3", "-c", USE_200_MB), limits=RunLimits(memory_mb=400))
    assert supervisor.wait_ended("fits") == RunEnded("fits", 0)
    assert supervisor.output("fits") == "200\n"


@pytest.mark.needs("memory_bounds")
def test_a_killed_child_of_a_program_that_ends_with_exit_code_0_is_reported_as_out_of_memory(
    supervisor: SupervisorProcess,
) -> None:
    script = f"python3 -c '{USE_200_MB}'; exit 0"
    supervisor.start_script("parent", script, limits=RunLimits(memory_mb=60))
    assert supervisor.wait_ended("parent") == RunEnded("parent", 0, is_out_of_memory=True)


@pytest.mark.needs("memory_bounds")
def test_a_program_killed_by_a_signal_is_not_reported_as_out_of_memory(supervisor: SupervisorProcess) -> None:
    supervisor.start("killed", ("/bin/sh", "-c", "kill -9 $$"), limits=RunLimits(memory_mb=60))
    assert supervisor.wait_ended("killed") == RunEnded("killed", 128 + SIGKILL, SIGKILL)


@pytest.mark.needs("memory_bounds")
def test_control_groups_are_removed_with_the_run(supervisor: SupervisorProcess) -> None:
    supervisor.start("gone", ("/bin/true",), limits=RunLimits(memory_mb=60, cpu_shares=500))
    supervisor.wait_ended("gone")
    supervisor.forget("gone")
    own = f"wharf/test-{os.getpid()}/gone"
    groups = [Path("/sys/fs/cgroup") / tree / own for tree in ("memory", "cpu", "pids", "")]
    wait_until(lambda: not any(group.exists() for group in groups), what="the control groups are gone")


@pytest.mark.needs("memory_bounds")
def test_cores_and_number_of_processes_are_limited(supervisor: SupervisorProcess) -> None:
    assert {"cores", "pids"} <= set(supervisor.limits)
    core = max(os.sched_getaffinity(0))
    supervisor.start("few", ("/bin/grep", "Cpus_allowed_list", "/proc/self/status"), limits=RunLimits(cores=str(core)))
    assert supervisor.wait_ended("few") == RunEnded("few", 0)
    assert supervisor.output("few").split() == ["Cpus_allowed_list:", str(core)]
    supervisor.start_script("forks", "sleep 60 & sleep 60 & sleep 60 & echo all", limits=RunLimits(processes=3))
    assert supervisor.wait_ended("forks").exit_code != 0
    assert supervisor.output("forks") == ""


def test_the_oom_score_of_a_program_is_set(supervisor: SupervisorProcess) -> None:
    supervisor.start("humble", ("/bin/cat", "/proc/self/oom_score_adj"), limits=RunLimits(oom_score=321))
    supervisor.wait_ended("humble")
    assert supervisor.output("humble") == "321\n"


@pytest.mark.parametrize(("shares", "weight"), [(2, 1), (1024, 39), (262_144, 10_000)])
def test_cpu_shares_are_converted_to_weights(shares: int, weight: int) -> None:
    assert convert_shares_to_weight(shares) == weight


def test_limits_of_cgroup_version_2_are_files_of_one_group(tmp_path: Path) -> None:
    """Tested with a plain folder instead of the kernel's tree."""
    cgroup_limits = CgroupLimits(tmp_path, tmp_path, version=2)
    groups = cgroup_limits.create_cgroups("r", RunLimits(memory_mb=64, cpu_shares=1024))
    assert groups == [tmp_path / "r", tmp_path / "r"]
    files = {file.name: file.read_text() for file in (tmp_path / "r").iterdir()}
    assert files == {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.weight": "39"}
    assert cgroup_limits.has_oom_kill("r") is False
    (tmp_path / "r" / "memory.events").write_text("low 0\noom 3\noom_kill 1\n")
    assert cgroup_limits.has_oom_kill("r") is True


def test_a_kill_for_lack_of_memory_is_read_from_a_control_group_of_version_1(tmp_path: Path) -> None:
    """Tested with a plain folder instead of the kernel's tree."""
    (tmp_path / "r").mkdir()
    control, limits = tmp_path / "r" / "memory.oom_control", CgroupLimits(tmp_path, None, version=1)
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert limits.has_oom_kill("r") is False
    control.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert limits.has_oom_kill("r") is True


def test_no_limits_are_enforced_without_controllers(tmp_path: Path) -> None:
    assert build_limits_v2(tmp_path, "node").enforced_limits == ()
