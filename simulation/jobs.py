"""The jobs of the simulated users, and their specification for each value.

The value determines everything that a change of the job may change. The type of a job, and whether it is parameterized,
never change.
"""

from random import Random
from typing import Final

from simulation.runs import MODE_KEY, MODES, make_flow, make_steps
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    MigratePolicy,
    ReconcileStrategy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import Lifecycle, LifecycleHook, Task, TaskGroup
from wharf.contract.model.jobs.job import Job, JobType, Parameterized
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.times import SECOND

JOB_COUNT: Final = 30
HOOKS: Final = (
    (LifecycleHook.PRESTART, False), (LifecycleHook.PRESTART, True), (LifecycleHook.POSTSTART, False),
    (LifecycleHook.POSTSTOP, False),
)  # fmt: skip
JOB_TYPES: Final = (
    *[JobType.SERVICE] * 20, *[JobType.BATCH] * 6, *[JobType.SYSTEM] * 2, *[JobType.SYSBATCH] * 2
)  # fmt: skip
MAX_RUNNING_BY_TEMPLATE: Final = {24: 2, 25: 0}
"""The numbers of the parameterized jobs, with the maximum number of running children; 0: no limit."""


RUN_JOBS: Final = frozenset({20, 25})
"""The numbers of the batch jobs that have steps. The second one is parameterized, so its children are runs."""
ARRAY_JOBS: Final = frozenset({22, 23})
"""The numbers of the batch jobs that have an array."""


class SimulatedJob:
    """One of the jobs, with any value."""

    def __init__(self, number: int, random: Random) -> None:
        self.id = f"job-{number}"
        self.type = JOB_TYPES[number % len(JOB_TYPES)]
        self.is_parameterized = number % len(JOB_TYPES) in MAX_RUNNING_BY_TEMPLATE
        self.max_running = MAX_RUNNING_BY_TEMPLATE.get(number % len(JOB_TYPES), 0)
        self.is_run = number % len(JOB_TYPES) in RUN_JOBS
        self.is_array = number % len(JOB_TYPES) in ARRAY_JOBS
        self.cpu = random.choice([50, 100, 300, 700, 1_500])

    def make_job(self, value: int) -> Job:
        """Return the specification of the job for this value."""
        draw = Random(f"{self.id}/{value}")
        if self.is_run:
            return self._make_run(value, draw)
        per_node = self.type in (JobType.SYSTEM, JobType.SYSBATCH)
        config: dict[str, object] = {}
        # Failed allocations are replaced at once, without end, so they must not fail too fast.
        if self.type in (JobType.BATCH, JobType.SYSBATCH):
            config["exit_code"] = draw.choice([0, 0, 0, 0, 1])
            config["run_for"] = (draw.randint(20, 60) if config["exit_code"] else draw.randint(1, 40)) * SECOND
            if self.is_array:
                config["run_for"] = draw.randint(1, 6) * SECOND
        elif draw.random() < 0.15:
            config["run_for"] = draw.randint(15, 60) * SECOND
            config["exit_code"] = 1
        task = Task(
            name="task", driver="mock", config=config,
            resources=Resources(cpu=50 if per_node else self.cpu, memory_mb=draw.choice([32, 64, 256])),
        )  # fmt: skip
        restart = RestartPolicy(
            attempts=draw.choice([0, 0, 1, 2]), interval=1_800 * SECOND, delay=draw.randint(1, 3) * SECOND,
        )  # fmt: skip
        group = TaskGroup(
            name="group", count=1 if per_node or self.is_array else draw.randint(1, 5), array=self._make_array(draw), tasks=(task, *self._make_side_tasks(draw)),
            restart_policy=restart, update=self._make_update_policy(draw), migrate=self._make_migrate_policy(draw), disconnect=self._make_disconnect_policy(draw),
        )  # fmt: skip
        datacenters = draw.choice([("*",), ("dc1",), ("dc1", "dc2")])
        return Job(
            id=self.id, type=self.type, priority=draw.choice([20, 50, 50, 80]), datacenters=datacenters,
            meta={"value": str(value)}, task_groups=(group,),
            parameterized_job=Parameterized(max_running=self.max_running) if self.is_parameterized else None,
        )  # fmt: skip

    def _make_run(self, value: int, draw: Random) -> Job:
        """Return a job with steps."""
        return Job(
            id=self.id, type=self.type, priority=draw.choice([20, 50, 80]), datacenters=("*",),
            meta={"value": str(value), MODE_KEY: draw.choice(MODES)},
            task_groups=make_steps(draw), flow=make_flow(draw),
            parameterized_job=Parameterized(max_running=self.max_running) if self.is_parameterized else None,
        )  # fmt: skip

    def _make_side_tasks(self, draw: Random) -> list[Task]:
        """Return tasks that run before, beside or after the main one; mostly none."""
        if self.type in (JobType.SYSTEM, JobType.SYSBATCH) or draw.random() < 0.75:
            return []
        hooks = draw.sample(HOOKS, draw.randint(1, 2))
        return [
            Task(
                name=f"{hook}-{is_sidecar}".lower(), driver="mock",
                config={} if is_sidecar else {"run_for": draw.randint(1, 3) * SECOND},
                lifecycle=Lifecycle(hook=hook, sidecar=is_sidecar), resources=Resources(cpu=20, memory_mb=16),
            )
            for hook, is_sidecar in hooks
        ]  # fmt: skip

    def _make_array(self, draw: Random) -> GroupArray | None:
        """Return the array of the group; most jobs have none."""
        if not self.is_array:
            return None
        return GroupArray(
            size=draw.randint(1, 12), max_running=draw.choice([0, 1, 2, 4]), fail_fast=draw.random() < 0.3
        )

    def _make_update_policy(self, draw: Random) -> UpdatePolicy | None:
        """Return a policy that mostly creates deployments, with times that fit a seed."""
        if self.type not in (JobType.SERVICE, JobType.SYSTEM):
            return None
        if draw.random() < 0.3:
            return UpdatePolicy(max_parallel=0)
        # For a system job, the number of canaries is a percentage of its nodes.
        canary = draw.choice([0, 0, 1, 2] if self.type == JobType.SERVICE else [0, 0, 10, 50])
        return UpdatePolicy(
            max_parallel=draw.randint(1, 3), canary=canary, auto_promote=bool(canary),
            auto_revert=draw.random() < 0.4,
            min_healthy_time=2 * SECOND, healthy_deadline=20 * SECOND, progress_deadline=40 * SECOND,
        )  # fmt: skip

    def _make_migrate_policy(self, draw: Random) -> MigratePolicy | None:
        """Return the policy for drains."""
        if self.type != JobType.SERVICE:
            return None
        return MigratePolicy(max_parallel=draw.randint(1, 2), min_healthy_time=2 * SECOND, healthy_deadline=20 * SECOND)

    def _make_disconnect_policy(self, draw: Random) -> DisconnectPolicy | None:
        """Return the policy for disconnected nodes. Most jobs have none, so their allocations are lost at once."""
        if self.type != JobType.SERVICE or draw.random() < 0.6:
            return None
        return DisconnectPolicy(
            lost_after=draw.choice([5, 15, 40]) * SECOND, replace=draw.random() < 0.7,
            reconcile=draw.choice(list(ReconcileStrategy)),
        )  # fmt: skip


def read_value(job: Job) -> tuple[int, bool]:
    """Return the value of a job (-1 if it has none), and whether the job is stopped."""
    return int((job.meta or {}).get("value", "-1")), job.stop


def is_failing(job: Job) -> bool:
    """Return whether a task of the job always fails."""
    return any((task.config or {}).get("exit_code") for group in job.groups for task in group.tasks or ())
