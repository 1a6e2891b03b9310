"""The rules of an allocation on its node, derived from its job."""

from typing import Any

import pytest

from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    MigratePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import Lifecycle, Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.services import Service, ServiceCheck
from wharf.contract.model.times import SECOND
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec, TaskSpec, build_allocation_spec


def build(
    *tasks: Task, job_type: str = "service", is_deployed: bool = False, max_kill_s: float = 30.0, **group: Any
) -> AllocationSpec:
    groups = [TaskGroup(name="other"), TaskGroup(name="web", tasks=tasks, **group)]
    job = Job(id="web", type=job_type, task_groups=tuple(groups))
    spec = build_allocation_spec(job, "web", is_deployed=is_deployed, max_kill_timeout_s=max_kill_s)
    assert spec is not None
    return spec


def build_task(job_type: str = "service", **fields: Any) -> TaskSpec:
    (task,) = build(Task(name="main", **fields), job_type=job_type).tasks
    return task


def test_a_group_that_the_job_does_not_have_has_no_rules() -> None:
    assert build_allocation_spec(Job(id="web", task_groups=None), "web", is_deployed=False) is None


def test_a_group_without_tasks_has_no_tasks() -> None:
    job = Job(id="web", task_groups=(TaskGroup(name="web", tasks=None, services=None),))
    spec = build_allocation_spec(job, "web", is_deployed=False)
    assert spec is not None
    assert (spec.tasks, spec.required_checks) == ((), ())


@pytest.mark.parametrize(
    ("job_type", "lifecycle", "expected"),
    [
        # (is main, is sidecar, is run to completion)
        ("service", None, (True, False, False)),
        ("batch", None, (True, False, True)),
        ("sysbatch", None, (True, False, True)),
        ("system", None, (True, False, False)),
        ("service", Lifecycle(hook="prestart"), (False, False, True)),
        ("service", Lifecycle(hook="prestart", sidecar=True), (False, True, False)),
        ("batch", Lifecycle(hook="poststart", sidecar=True), (False, True, False)),
        ("service", Lifecycle(hook="poststop"), (False, False, True)),
        # Nothing can run beside main tasks that have ended.
        ("service", Lifecycle(hook="poststop", sidecar=True), (False, False, True)),
    ],
)
def test_a_task_is_done_when_it_ends_if_its_job_is_finite_or_it_is_a_hook_that_is_no_sidecar(
    job_type: str, lifecycle: Lifecycle | None, expected: tuple[bool, bool, bool]
) -> None:
    task = build_task(job_type, lifecycle=lifecycle)
    assert (task.is_main, task.is_sidecar, task.is_run_to_completion) == expected


def test_a_task_uses_its_own_restart_policy_then_that_of_its_group_then_the_default_one() -> None:
    own, of_group = RestartPolicy(attempts=7), RestartPolicy(attempts=8)
    tasks = (Task(name="a", restart_policy=own), Task(name="b"))
    assert [task.restart_policy for task in build(*tasks, restart_policy=of_group).tasks] == [own, of_group]
    assert [task.restart_policy for task in build(*tasks, restart_policy=None).tasks] == [own, RestartPolicy()]


def test_names_signals_and_times_of_a_task_are_those_of_the_job_in_seconds() -> None:
    task = build_task(leader=True, kill_signal="SIGUSR1", kill_timeout=7 * SECOND, shutdown_delay=1_500_000_000)
    assert (task.name, task.is_leader, task.kill_signal) == ("main", True, "SIGUSR1")
    assert (task.kill_timeout_s, task.shutdown_delay_s) == (7.0, 1.5)


def test_a_node_limits_the_kill_timeout() -> None:
    (task,) = build(Task(name="main", kill_timeout=9 * SECOND), max_kill_s=8.0).tasks
    assert task.kill_timeout_s == 8.0


def test_times_of_the_group_are_in_seconds_and_absent_ones_are_no_limit() -> None:
    disconnect = DisconnectPolicy(stop_on_client_after=4 * SECOND)
    spec = build(shutdown_delay=2 * SECOND, max_run_duration=3 * SECOND, disconnect=disconnect)
    assert (spec.shutdown_delay_s, spec.max_run_s, spec.stop_after_contact_lost_s) == (2.0, 3.0, 4.0)
    spec = build(shutdown_delay=None, max_run_duration=None, disconnect=None)
    assert (spec.shutdown_delay_s, spec.max_run_s, spec.stop_after_contact_lost_s) == (0.0, None, None)
    assert build(disconnect=DisconnectPolicy()).stop_after_contact_lost_s is None
    assert build(disconnect=DisconnectPolicy(stop_on_client_after=0)).stop_after_contact_lost_s == 0.0


UPDATE = UpdatePolicy(health_check="task_states", min_healthy_time=11 * SECOND, healthy_deadline=12 * SECOND)
MIGRATE = MigratePolicy(health_check="checks", min_healthy_time=21 * SECOND, healthy_deadline=22 * SECOND)


@pytest.mark.parametrize(
    ("job_type", "is_deployed", "update", "health"),
    [
        ("service", True, UPDATE, HealthSpec(11.0, 12.0, should_wait_for_checks=False)),
        ("service", False, UPDATE, HealthSpec(21.0, 22.0, should_wait_for_checks=True)),
        ("system", True, UPDATE, HealthSpec(11.0, 12.0, should_wait_for_checks=False)),
        ("system", False, UPDATE, None),
        ("batch", False, UPDATE, None),
        ("service", True, None, None),
        ("service", True, UpdatePolicy(health_check="manual"), None),
    ],
)
def test_the_health_rules_are_those_of_the_update_during_a_deployment_and_of_migrate_otherwise(
    job_type: str, is_deployed: bool, update: UpdatePolicy | None, health: HealthSpec | None
) -> None:
    assert build(job_type=job_type, is_deployed=is_deployed, update=update, migrate=MIGRATE).health == health


def build_service(*checks: ServiceCheck, **fields: Any) -> Service:
    return Service(name="web", checks=checks, **{"provider": "nomad", **fields})


def test_the_required_checks_are_those_of_the_group_and_its_tasks() -> None:
    task = Task(name="main", services=(build_service(ServiceCheck(name="of task")),))
    spec = build(task, Task(name="bare", services=None), services=(build_service(ServiceCheck(name="of group")),))
    assert spec.required_checks == ("of group", "of task")


@pytest.mark.parametrize(
    ("of_service", "of_check", "is_required"),
    [
        ("", "", True),
        ("ignore", "", False),
        ("", "ignore", False),
        ("ignore", "require_healthy", True),
        ("require_healthy", "ignore", False),
        ("ignore_warnings", "", True),
    ],
)
def test_a_check_is_required_unless_it_or_else_its_service_says_to_ignore_it(
    of_service: str, of_check: str, is_required: bool
) -> None:
    service = build_service(ServiceCheck(name="c", on_update=of_check), on_update=of_service)
    assert bool(build(services=(service,)).required_checks) is is_required


def test_checks_that_consul_runs_are_not_required() -> None:
    assert build(services=(build_service(ServiceCheck(name="c"), provider="consul"),)).required_checks == ()


def test_the_rules_of_a_task_are_found_by_its_name() -> None:
    spec = build(Task(name="a"), Task(name="b"))
    assert spec.task("b").name == "b"
