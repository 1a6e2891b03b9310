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


def change_group(**fields: Any) -> Change:
    return lambda job: replace(job, task_groups=(replace(job.groups[0], **fields),))


def change_task(**fields: Any) -> Change:
    def change(job: Job) -> Job:
        (task,) = job.groups[0].tasks or ()
        return change_group(tasks=(replace(task, **fields),))(job)

    return change


def change_resources(**fields: Any) -> Change:
    return change_task(resources=replace(some_resources(), **fields))


def change_network(**fields: Any) -> Change:
    return change_group(networks=(replace(NETWORK, **fields),))


def change_service(**fields: Any) -> Change:
    return change_group(services=(replace(MESH_SERVICE, **fields), a_service("plain")))


NETWORK = NetworkResource(
    mode="host",
    reserved_ports=(Port(label="web", value=80),),
    dynamic_ports=(Port(label="any", value=23_000),),
)
MESH_SERVICE = a_service("mesh", connect={"Native": True}, port_label="web")


def make_job() -> Job:
    group = a_group("web", a_task(), networks=(NETWORK,), services=(MESH_SERVICE, a_service("plain")))
    return a_job("shop", group)


DESTRUCTIVE: dict[str, Change] = {
    "another task": change_group(tasks=(a_task(), a_task("second"))),
    "a task's name": change_group(tasks=(a_task("other"),)),
    "driver": change_task(driver="exec"),
    "user": change_task(user="www"),
    "config": change_task(config={"command": "/bin/false"}),
    "env": change_task(env={"A": "1"}),
    "volume mounts": change_task(volume_mounts=(VolumeMount(volume="v", destination="/v"),)),
    "log collection": change_task(log_config=LogConfig(disabled=True)),
    "templates rendered on restart": change_task(restart_policy=RestartPolicy(render_templates=True)),
    "templates rendered on restart of the group": change_group(restart_policy=RestartPolicy(render_templates=True)),
    "meta of the job": lambda job: replace(job, meta={"a": "1"}),
    "meta of the group": change_group(meta={"a": "1"}),
    "meta of the task": change_task(meta={"a": "1"}),
    "cpu": change_resources(cpu=101),
    "cores": change_resources(cpu=0, cores=1),
    "memory": change_resources(memory_mb=65),
    "memory maximum": change_resources(memory_max_mb=128),
    "memory of secrets": change_resources(secrets_mb=2),
    "devices": change_resources(devices=(RequestedDevice(name="gpu", count=1),)),
    "network mode": change_network(mode="bridge"),
    "bandwidth": change_network(mbits=5),
    "hostname": change_network(hostname="shop"),
    "a port's label": change_network(dynamic_ports=(Port(label="other"),)),
    "a static port": change_network(reserved_ports=(Port(label="web", value=81),)),
    "target of a port": change_network(dynamic_ports=(Port(label="any", to=80),)),
    "a port's network": change_network(dynamic_ports=(Port(label="any", host_network="public"),)),
    "no network": change_group(networks=None),
    "the shared disk": change_group(ephemeral_disk=EphemeralDisk(size_mb=301)),
    "volumes": change_group(volumes={"v": VolumeRequest(type="host", source="v")}),
    "a service without its mesh": change_service(connect=None),
    "the port of a service in a mesh": change_service(port_label="any"),
}

IN_PLACE: dict[str, Change] = {
    "nothing": lambda job: job,
    "a service": change_group(services=(MESH_SERVICE, a_service("other", tags=("a",)))),
    "constraints": change_group(constraints=(a_constraint("${attr.os}", "linux"),)),
    "affinities": change_group(affinities=(an_affinity("${attr.os}", "linux"),)),
    "spreads": change_group(spreads=(a_spread("${attr.os}"),)),
    "count": change_group(count=7),
    "update": change_group(update=UpdatePolicy(max_parallel=9)),
    "migrate": change_group(migrate=MigratePolicy(max_parallel=9)),
    "rescheduling": change_group(reschedule_policy=ReschedulePolicy(delay=9 * SECOND)),
    "restarts": change_group(restart_policy=RestartPolicy(attempts=9)),
    "priority": lambda job: replace(job, priority=70),
    "kill timeout": change_task(kill_timeout=9 * SECOND),
    "kill signal": change_task(kill_signal="SIGINT"),
    "shutdown delay": change_task(shutdown_delay=9 * SECOND),
    "leader": change_task(leader=True),
    "lifecycle": change_task(lifecycle=Lifecycle(hook="prestart")),
    "stop and disconnect": change_group(disconnect=DisconnectPolicy(lost_after=9 * SECOND)),
    "size of logs": change_task(log_config=LogConfig(max_files=3)),
    "maximum run duration": change_group(max_run_duration=9 * SECOND),
    "value of a dynamic port": change_network(dynamic_ports=(Port(label="any", value=29_000),)),
}


def is_restart_needed(change: Change) -> bool:
    old, new = make_job(), change(make_job())
    groups: tuple[TaskGroup, TaskGroup] = (old.groups[0], new.groups[0])
    return is_destructive_update(old, groups[0], new, groups[1])


@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_change_that_tasks_depend_on_restarts_them(name: str) -> None:
    assert is_restart_needed(DESTRUCTIVE[name])


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_change_that_tasks_do_not_depend_on_is_made_in_place(name: str) -> None:
    assert not is_restart_needed(IN_PLACE[name])


def test_meta_that_moves_from_the_job_to_the_task_is_no_change() -> None:
    old = replace(make_job(), meta={"a": "1"})
    new = change_task(meta={"a": "1"})(make_job())

    assert not is_destructive_update(old, old.groups[0], new, new.groups[0])


def test_tasks_that_use_more_in_another_lifecycle_phase_are_restarted() -> None:
    """An update in place would keep resources that are less than the tasks use."""
    first, second = a_task("first", lifecycle=Lifecycle(hook="prestart")), a_task("second")
    old = a_job("shop", a_group("web", first, second))
    new = a_job("shop", a_group("web", replace(first, lifecycle=None), second))

    assert is_destructive_update(old, old.groups[0], new, new.groups[0])
