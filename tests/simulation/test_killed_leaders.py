"""A run ends in the same way at whichever of its writes the leader is killed, just before or just after the commit."""

from typing import Any

import pytest

from simulation.killed_leader import KilledLeaderRun
from simulation.runs import NO_RESTART, NO_RETRY
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.steps import Gate, Need
from wharf.contract.model.times import SECOND

SEED = 11
MAX_WRITES = 40
WRITES_PER_TEST = 4
"""A test has five minutes, also on a busy machine."""
EXPECTED = {
    "build": "s", "train": "sss", "check": "fff", "lint": "f", "report": "s", "publish": "c", "ship": "s", "tidy": "s",
}  # fmt: skip
KILLS = {"job-registered": True, "plan": False, "node-reported": True, "gate-answered": False}
"""The kinds of writes at which `make test` kills the leader, and whether it does so before the commit."""


def a_step(name: str, *needs: Need, size: int = 1, exit_code: int = 0, **fields: Any) -> TaskGroup:
    task = Task(
        name="task", driver="mock", config={"run_for": 2 * SECOND, "exit_code": exit_code},
        resources=Resources(cpu=20, memory_mb=16),
    )  # fmt: skip
    return TaskGroup(
        name=name, count=1, tasks=(task,), depends=needs or None, array=GroupArray(size=size, max_running=2),
        restart_policy=NO_RESTART, reschedule_policy=NO_RETRY, **fields,
    )  # fmt: skip


STEPS = (
    a_step("build"),
    a_step("train", Need(on="build"), size=3),
    a_step("check", Need(on="train", each=True), size=3, exit_code=1, may_fail=True),
    a_step("lint", exit_code=1),
    a_step("report", Need(on="lint", when="failed")),
    a_step("publish", Need(on="lint")),
    a_step("ship", Need(on="train", at_least=2), Need(on="check", when="ended"), gate=Gate(timeout=600 * SECOND)),
    a_step("tidy", Need(on="ship"), final=True),
)


def run_once(kill_at: int, *, is_before: bool) -> KilledLeaderRun:
    job = Job(id="nightly", type=JobType.BATCH, datacenters=("*",), task_groups=STEPS)
    run = KilledLeaderRun(SEED, job, kill_at=kill_at, is_before=is_before)
    failure = run.run().failure
    assert failure is None, f"the leader was killed at write {kill_at}: {failure.text}"
    return run


@pytest.fixture(scope="module")
def write_kinds() -> list[str]:
    """The kinds of the writes of the run without a fault, in their order."""
    run = run_once(0, is_before=False)
    assert run.read_elements() == EXPECTED
    assert set(KILLS) <= set(run.write_kinds)
    return run.write_kinds


def require_survival(kill_at: int, *, is_before: bool) -> None:
    assert run_once(kill_at, is_before=is_before).read_elements() == EXPECTED, f"killed at write {kill_at}"


@pytest.mark.parametrize("kind", KILLS)
def test_a_run_survives_the_death_of_the_leader_at_a_write_of_each_kind(write_kinds: list[str], kind: str) -> None:
    last = len(write_kinds) - write_kinds[::-1].index(kind)

    require_survival(last, is_before=KILLS[kind])


def test_the_writes_of_the_run_are_divided_among_the_tests_of_all_writes(write_kinds: list[str]) -> None:
    assert len(write_kinds) <= MAX_WRITES


@pytest.mark.faults
@pytest.mark.parametrize("first", range(1, MAX_WRITES + 1, WRITES_PER_TEST))
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_run_survives_the_death_of_the_leader_at_each_of_its_writes(
    write_kinds: list[str], first: int, is_before: bool
) -> None:
    for kill_at in range(first, min(first + WRITES_PER_TEST, len(write_kinds) + 1)):
        require_survival(kill_at, is_before=is_before)
