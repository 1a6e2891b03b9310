"""Builders of jobs and their parts for tests: each is valid by default, and every field can be overridden.

They build what a user submits. `admitted(a_job())` is the job as the server stores it: canonical, with implied constraints.
"""

from typing import Any

from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread, SpreadTarget
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.implied_constraints import add_implied_constraints
from wharf.contract.model.jobs.job import Job, JobType, Parameterized, Periodic
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.services import Service, ServiceCheck

SECOND = 1_000_000_000


# The fields are those of the record: a wrong name or type fails at once, so no signature repeats them.
def a_task(name: str = "server", **fields: Any) -> Task:
    """Return a task that runs a shell."""
    all_fields = {"driver": "raw_exec", "config": {"command": "/bin/sh"}, "resources": some_resources(), **fields}
    return Task(name=name, **all_fields)


def some_job_settings(**fields: Any) -> JobSettings:
    """Return the settings of a server with an empty configuration."""
    all_fields = {
        "region": "global",
        "node_pool": "default",
        "default_priority": 50,
        "max_priority": 100,
        "max_count": 50_000,
        "memory_oversubscription": False,
        "max_source_bytes": 1_000_000,
        "versions_kept": 6,
        **fields,
    }
    return JobSettings(**all_fields)


def some_resources(cpu: int = 100, memory_mb: int = 64, **fields: Any) -> Resources:
    """Return the resources of a small task."""
    return Resources(cpu=cpu, memory_mb=memory_mb, **fields)


def a_group(name: str = "web", *tasks: Task, count: int = 1, **fields: Any) -> TaskGroup:
    """Return a group, by default with one task."""
    return TaskGroup(name=name, count=count, tasks=tasks or (a_task(),), **fields)


def a_group_with_services(*services: Service, **fields: Any) -> TaskGroup:
    """Return a group with these services, and with a dynamic port for each port that they name."""
    labels = dict.fromkeys(service.port_label for service in services if service.port_label)
    network = NetworkResource(dynamic_ports=tuple(Port(label=label) for label in labels))
    return a_group(networks=(network,), services=services, **fields)


def a_job(id: str = "shop", *groups: TaskGroup, **fields: Any) -> Job:
    """Return a service job, by default with one group."""
    return Job(id=id, task_groups=groups or (a_group(),), **fields)


def a_batch_job(id: str = "nightly", *groups: TaskGroup, **fields: Any) -> Job:
    """Return a batch job."""
    return a_job(id, *groups, type=JobType.BATCH, **fields)


def a_system_job(id: str = "agent", *groups: TaskGroup, **fields: Any) -> Job:
    """Return a system job, which runs on every node."""
    return a_job(id, *groups, type=JobType.SYSTEM, **fields)


def a_periodic_job(id: str = "nightly", *groups: TaskGroup, spec: str = "0 3 * * *", **fields: Any) -> Job:
    """Return a batch job with a schedule."""
    return a_batch_job(id, *groups, periodic=Periodic(specs=(spec,)), **fields)


def a_parameterized_job(id: str = "convert", *groups: TaskGroup, **fields: Any) -> Job:
    """Return a batch job that runs only when it is dispatched."""
    return a_batch_job(id, *groups, parameterized_job=Parameterized(), **fields)


def a_service(name: str = "shop-web", **fields: Any) -> Service:
    """Return a native service without a port."""
    return Service(name=name, **{"provider": "wharf", **fields})


def a_check(**fields: Any) -> ServiceCheck:
    """Return a check over HTTP."""
    all_fields = {"type": "http", "path": "/health", "interval": 10 * SECOND, "timeout": 2 * SECOND, **fields}
    return ServiceCheck(**all_fields)


def admitted(job: Job, settings: JobSettings | None = None) -> Job:
    """Return the job as the server stores it."""
    return add_implied_constraints(canonicalize_job(job, settings or some_job_settings()))


def a_constraint(left: str, right: str = "", operand: str = "=") -> Constraint:
    """Return a constraint: nodes that do not match are excluded."""
    return Constraint(l_target=left, r_target=right, operand=operand)


def an_affinity(left: str, right: str, operand: str = "=", weight: int = 50) -> Affinity:
    """Return an affinity: nodes that match are preferred."""
    return Affinity(l_target=left, r_target=right, operand=operand, weight=weight)


def a_spread(attribute: str, weight: int = 50, **percents: int) -> Spread:
    """Return a spread: even, or with a percentage for each value."""
    targets = tuple(SpreadTarget(value=value, percent=percent) for value, percent in percents.items())
    return Spread(attribute=attribute, weight=weight, spread_target=targets or None)
