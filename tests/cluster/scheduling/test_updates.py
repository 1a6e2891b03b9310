"""Which changes of a job restart its tasks (scheduling.md 5.5)."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import (
    SECOND,
    a_constraint,
    a_group,
    a_job,
    a_service,
    a_spread,
    a_task,
    an_affinity,
    some_resources,
)
from wharf.cluster.scheduling.reconcile.updates import is_destructive_update
from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    EphemeralDisk,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import Lifecycle, LogConfig, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import VolumeMount, VolumeRequest

Change = Callable[[Job], Job]


def of_group(**fields: Any) -> Change:
    return lambda job: replace(job, task_groups=(replace(job.groups[0], **fields),))


def of_task(**fields: Any) -> Change:
    def change(job: Job) -> Job:
        (task,) = job.groups[0].tasks or ()
        return of_group(tasks=(replace(task, **fields),))(job)

    return change


def of_resources(**fields: Any) -> Change:
    return of_task(resources=replace(some_resources(), **fields))


def of_network(**fields: Any) -> Change:
    return of_group(networks=(replace(NETWORK, **fields),))


def of_service(**fields: Any) -> Change:
    return of_group(services=(replace(MESHED, **fields), a_service("plain")))


NETWORK = NetworkResource(
    mode="host",
    reserved_ports=(Port(label="web", value=80),),
    dynamic_ports=(Port(label="any", value=23_000),),
)
MESHED = a_service("mesh", connect={"Native": True}, port_label="web")


def before() -> Job:
    group = a_group("web", a_task(), networks=(NETWORK,), services=(MESHED, a_service("plain")))
    return a_job("shop", group)


DESTRUCTIVE: dict[str, Change] = {
    "another task": of_group(tasks=(a_task(), a_task("second"))),
    "a task's name": of_group(tasks=(a_task("other"),)),
    "driver": of_task(driver="exec"),
    "user": of_task(user="www"),
    "config": of_task(config={"command": "/bin/false"}),
    "env": of_task(env={"A": "1"}),
    "volume mounts": of_task(volume_mounts=(VolumeMount(volume="v", destination="/v"),)),
    "whether logs are kept": of_task(log_config=LogConfig(disabled=True)),
    "whether a restart renders templates": of_task(restart_policy=RestartPolicy(render_templates=True)),
    "the same of the group": of_group(restart_policy=RestartPolicy(render_templates=True)),
    "meta of the job": lambda job: replace(job, meta={"a": "1"}),
    "meta of the group": of_group(meta={"a": "1"}),
    "meta of the task": of_task(meta={"a": "1"}),
    "cpu": of_resources(cpu=101),
    "cores": of_resources(cpu=0, cores=1),
    "memory": of_resources(memory_mb=65),
    "memory beyond the reserved": of_resources(memory_max_mb=128),
    "memory of secrets": of_resources(secrets_mb=2),
    "devices": of_resources(devices=(RequestedDevice(name="gpu", count=1),)),
    "network mode": of_network(mode="bridge"),
    "bandwidth": of_network(mbits=5),
    "hostname": of_network(hostname="shop"),
    "a port's label": of_network(dynamic_ports=(Port(label="other"),)),
    "a static port": of_network(reserved_ports=(Port(label="web", value=81),)),
    "where a port leads": of_network(dynamic_ports=(Port(label="any", to=80),)),
    "a port's network": of_network(dynamic_ports=(Port(label="any", host_network="public"),)),
    "no network": of_group(networks=None),
    "the shared disk": of_group(ephemeral_disk=EphemeralDisk(size_mb=301)),
    "volumes": of_group(volumes={"v": VolumeRequest(type="host", source="v")}),
    "a service that leaves its mesh": of_service(connect=None),
    "the port of a service in a mesh": of_service(port_label="any"),
}

IN_PLACE: dict[str, Change] = {
    "nothing": lambda job: job,
    "a service": of_group(services=(MESHED, a_service("other", tags=("a",)))),
    "constraints": of_group(constraints=(a_constraint("${attr.os}", "linux"),)),
    "affinities": of_group(affinities=(an_affinity("${attr.os}", "linux"),)),
    "spreads": of_group(spreads=(a_spread("${attr.os}"),)),
    "count": of_group(count=7),
    "update": of_group(update=UpdatePolicy(max_parallel=9)),
    "migrate": of_group(migrate=MigratePolicy(max_parallel=9)),
    "rescheduling": of_group(reschedule_policy=ReschedulePolicy(delay=9 * SECOND)),
    "restarts": of_group(restart_policy=RestartPolicy(attempts=9)),
    "priority": lambda job: replace(job, priority=70),
    "kill timeout": of_task(kill_timeout=9 * SECOND),
    "kill signal": of_task(kill_signal="SIGINT"),
    "shutdown delay": of_task(shutdown_delay=9 * SECOND),
    "leader": of_task(leader=True),
    "lifecycle": of_task(lifecycle=Lifecycle(hook="prestart")),
    "stop and disconnect": of_group(disconnect=DisconnectPolicy(lost_after=9 * SECOND)),
    "size of logs": of_task(log_config=LogConfig(max_files=3)),
    "longest run": of_group(max_run_duration=9 * SECOND),
    "the number that a dynamic port got": of_network(dynamic_ports=(Port(label="any", value=29_000),)),
}


def is_restart_needed(change: Change) -> bool:
    old, new = before(), change(before())
    groups: tuple[TaskGroup, TaskGroup] = (old.groups[0], new.groups[0])
    return is_destructive_update(old, groups[0], new, groups[1])


@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_change_that_tasks_depend_on_restarts_them(name: str) -> None:
    assert is_restart_needed(DESTRUCTIVE[name])


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_change_that_tasks_do_not_depend_on_is_made_in_place(name: str) -> None:
    assert not is_restart_needed(IN_PLACE[name])


def test_meta_that_moves_from_the_job_to_the_task_is_no_change() -> None:
    old = replace(before(), meta={"a": "1"})
    new = of_task(meta={"a": "1"})(before())

    assert not is_destructive_update(old, old.groups[0], new, new.groups[0])


def test_tasks_that_use_more_in_another_lifecycle_phase_are_restarted() -> None:
    """An update in place would keep resources that are less than the tasks use."""
    first, second = a_task("first", lifecycle=Lifecycle(hook="prestart")), a_task("second")
    old = a_job("shop", a_group("web", first, second))
    new = a_job("shop", a_group("web", replace(first, lifecycle=None), second))

    assert is_destructive_update(old, old.groups[0], new, new.groups[0])
