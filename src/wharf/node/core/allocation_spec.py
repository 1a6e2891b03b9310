"""What an allocation is to be on this node: its tasks with the rules that they live by, read out of its job."""

from typing import Final

import msgspec

from wharf.contract.model.jobs.group_policies import HealthCheck, MigratePolicy, RestartPolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import LifecycleHook, Task
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.services import OnUpdate
from wharf.node.core.clock import SECOND_NS

MAX_KILL_TIMEOUT_S: Final = 30.0


class TaskSpec(msgspec.Struct, frozen=True):
    name: str
    hook: str = ""
    """Empty: a main task."""
    is_sidecar: bool = False
    is_leader: bool = False
    is_run_to_completion: bool = False
    """Whether it is done once it ended well; else it is to run for ever."""
    restart_policy: RestartPolicy = RestartPolicy()
    kill_signal: str = ""
    kill_timeout_s: float = 5.0
    shutdown_delay_s: float = 0.0

    @property
    def is_main(self) -> bool:
        return not self.hook


class HealthSpec(msgspec.Struct, frozen=True):
    """When the allocation counts as healthy, for its deployment or for whoever drains a node of its group."""

    min_healthy_s: float
    deadline_s: float
    should_wait_for_checks: bool = False


class AllocationSpec(msgspec.Struct, frozen=True):
    tasks: tuple[TaskSpec, ...]
    health: HealthSpec | None = None
    shutdown_delay_s: float = 0.0
    max_run_s: float | None = None
    stop_after_contact_lost_s: float | None = None
    """How long it may go on while no server is in contact."""
    required_checks: tuple[str, ...] = ()
    """The checks that must pass before it counts as healthy."""

    def task(self, name: str) -> TaskSpec:
        return next(task for task in self.tasks if task.name == name)


def build_allocation_spec(
    job: Job, group_name: str, *, is_deployed: bool, max_kill_timeout_s: float = MAX_KILL_TIMEOUT_S
) -> AllocationSpec | None:
    """None where the job has no such group."""
    group = job.find_group(group_name)
    if group is None:
        return None
    is_batch = job.type in (JobType.BATCH, JobType.SYSBATCH)
    services = [*(group.services or ()), *(each for task in group.tasks or () for each in task.services or ())]
    shared = group.restart_policy or RestartPolicy()
    tasks = tuple(_task_plan(task, shared, is_batch, max_kill_timeout_s) for task in group.tasks or ())
    health = None
    if is_deployed or job.type == JobType.SERVICE:
        health = _health_plan(group.update if is_deployed else group.migrate)
    lost_after_ns = group.disconnect.stop_on_client_after if group.disconnect is not None else None
    return AllocationSpec(
        tasks=tasks,
        health=health,
        shutdown_delay_s=(group.shutdown_delay or 0) / SECOND_NS,
        max_run_s=group.max_run_duration / SECOND_NS if group.max_run_duration else None,
        stop_after_contact_lost_s=lost_after_ns / SECOND_NS if lost_after_ns is not None else None,
        required_checks=tuple(
            check.name
            for service in services
            if service.is_native
            for check in service.checks or ()
            if (check.on_update or service.on_update) != OnUpdate.IGNORE
        ),
    )


def _task_plan(task: Task, shared: RestartPolicy, is_batch: bool, max_kill_timeout_s: float) -> TaskSpec:
    hook = task.lifecycle.hook if task.lifecycle is not None else ""
    is_sidecar = task.lifecycle is not None and task.lifecycle.sidecar and hook != LifecycleHook.POSTSTOP
    return TaskSpec(
        name=task.name,
        hook=hook,
        is_sidecar=is_sidecar,
        is_leader=task.leader,
        is_run_to_completion=not is_sidecar and (is_batch or bool(hook)),
        restart_policy=task.restart_policy or shared,
        kill_signal=task.kill_signal,
        kill_timeout_s=min(task.kill_timeout / SECOND_NS, max_kill_timeout_s),
        shutdown_delay_s=task.shutdown_delay / SECOND_NS,
    )


def _health_plan(policy: UpdatePolicy | MigratePolicy | None) -> HealthSpec | None:
    if policy is None or policy.health_check == HealthCheck.MANUAL:
        return None
    return HealthSpec(
        policy.min_healthy_time / SECOND_NS,
        policy.healthy_deadline / SECOND_NS,
        should_wait_for_checks=policy.health_check == HealthCheck.CHECKS,
    )
