"""What an allocation must do on this node: its tasks and their rules, derived from the job."""

from typing import Final

import msgspec

from wharf.contract.model.jobs.defaults import NO_RESTARTS
from wharf.contract.model.jobs.group_policies import HealthCheck, MigratePolicy, RestartPolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import LifecycleHook, Task
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.services import OnUpdate
from wharf.contract.model.jobs.step_outputs import get_output_limit, list_output_names
from wharf.contract.model.times import SECOND

MAX_KILL_TIMEOUT_S: Final = 30.0
"""The longest time a task may have between its kill signal and SIGKILL, unless the node configures another."""


class TaskSpec(msgspec.Struct, frozen=True):
    """The rules of one task on this node, derived from the job."""

    name: str
    hook: str = ""
    """The lifecycle hook; empty for a main task."""
    is_sidecar: bool = False  # a task with a hook that runs beside the main tasks
    is_leader: bool = False  # when it ends, the other tasks of the group are stopped
    is_run_to_completion: bool = False
    """Whether the task is done when it ends with success; otherwise it is restarted."""
    restart_policy: RestartPolicy = RestartPolicy()
    kill_signal: str = ""
    kill_timeout_s: float = 5.0  # between the kill signal and SIGKILL
    shutdown_delay_s: float = 0.0  # before the kill signal

    @property
    def is_main(self) -> bool:
        """Whether the task has no lifecycle hook."""
        return not self.hook


class HealthSpec(msgspec.Struct, frozen=True):
    """The conditions under which the allocation is healthy, for its deployment or for the drain of another node."""

    min_healthy_s: float  # how long all tasks and checks must be good
    deadline_s: float  # when it is unhealthy if it is not healthy before
    should_wait_for_checks: bool = False


class AllocationSpec(msgspec.Struct, frozen=True):
    """The tasks of an allocation and the rules for all of them."""

    tasks: tuple[TaskSpec, ...]
    health: HealthSpec | None = None  # None: nothing waits for its health
    shutdown_delay_s: float = 0.0
    max_run_s: float | None = None  # None: no limit
    stop_after_contact_lost_s: float | None = None
    """How long the allocation may keep running without contact to any server."""
    required_checks: tuple[str, ...] = ()
    """The names of the checks that must pass before the allocation counts as healthy."""
    output_names: tuple[str, ...] = ()
    """The texts that the programs of a step leave for later steps."""
    max_output_bytes: int = 0
    kept_paths: tuple[str, ...] = ()
    """Files and folders below `alloc/` that a step keeps after its end."""

    def task(self, name: str) -> TaskSpec:
        """Return the rules of the task with this name. Raises `StopIteration` if there is none."""
        return next(task for task in self.tasks if task.name == name)


def build_allocation_spec(
    job: Job, group_name: str, *, is_deployed: bool, max_kill_timeout_s: float = MAX_KILL_TIMEOUT_S
) -> AllocationSpec | None:
    """Return the rules for an allocation of this group; `None` if the job has no such group.

    With `is_deployed` the health rules come from the group's `update` block, otherwise from `migrate`.
    """
    group = job.find_group(group_name)
    if group is None:
        return None
    is_batch = job.is_finite
    services = [*(group.services or ()), *(service for task in group.tasks or () for service in task.services or ())]
    group_policy = group.restart_policy or RestartPolicy()
    tasks = tuple(_build_task_spec(task, group_policy, is_batch, max_kill_timeout_s) for task in group.tasks or ())
    if group.retry is not None:
        # Servers decide about each failure by its cause, so none is hidden by a restart on this node.
        tasks = tuple(msgspec.structs.replace(task, restart_policy=NO_RESTARTS) for task in tasks)
    health = None
    if is_deployed or job.type == JobType.SERVICE:
        health = _build_health_spec(group.update if is_deployed else group.migrate)
    lost_after_ns = group.disconnect.stop_on_client_after if group.disconnect is not None else None
    return AllocationSpec(
        tasks=tasks,
        health=health,
        shutdown_delay_s=(group.shutdown_delay or 0) / SECOND,
        max_run_s=group.max_run_duration / SECOND if group.max_run_duration else None,
        stop_after_contact_lost_s=lost_after_ns / SECOND if lost_after_ns is not None else None,
        required_checks=tuple(
            check.name
            for service in services
            if service.is_native
            for check in service.checks or ()
            if (check.on_update or service.on_update) != OnUpdate.IGNORE
        ),
        output_names=list_output_names(group),
        kept_paths=(group.outputs.keep or ()) if group.outputs is not None else (),
        max_output_bytes=get_output_limit(group.array.element_count if group.array is not None else 1),
    )


def _build_task_spec(task: Task, group_policy: RestartPolicy, is_batch: bool, max_kill_timeout_s: float) -> TaskSpec:
    """Return the rules of one task; `group_policy` is the restart policy of tasks without one of their own."""
    hook = task.lifecycle.hook if task.lifecycle is not None else ""
    is_sidecar = task.lifecycle is not None and task.lifecycle.sidecar and hook != LifecycleHook.POSTSTOP
    return TaskSpec(
        name=task.name,
        hook=hook,
        is_sidecar=is_sidecar,
        is_leader=task.leader,
        is_run_to_completion=not is_sidecar and (is_batch or bool(hook)),
        restart_policy=task.restart_policy or group_policy,
        kill_signal=task.kill_signal,
        kill_timeout_s=min(task.kill_timeout / SECOND, max_kill_timeout_s),
        shutdown_delay_s=task.shutdown_delay / SECOND,
    )


def _build_health_spec(policy: UpdatePolicy | MigratePolicy | None) -> HealthSpec | None:
    """Return the health conditions of an update or migrate policy.

    `None` if there is no policy, or if an operator sets the health by hand.
    """
    if policy is None or policy.health_check == HealthCheck.MANUAL:
        return None
    return HealthSpec(
        policy.min_healthy_time / SECOND,
        policy.healthy_deadline / SECOND,
        should_wait_for_checks=policy.health_check == HealthCheck.CHECKS,
    )
