"""The names that a fuzzy search looks through, and where each of them stands."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

from wharf.model.allocation import Allocation
from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.namespace import Namespace
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.model.task import Task
from wharf.model.variable import Variable
from wharf.operations.search.contexts import Context

Name = tuple[str, str, tuple[str, ...]]
"""Under which context it is shown, the name, and its scope: its parents from outside in, its id last if that differs."""


class InJobs(StrEnum):
    """What stands inside jobs, and is shown apart."""

    GROUPS = "groups"
    SERVICES = "services"
    TASKS = "tasks"
    IMAGES = "images"
    COMMANDS = "commands"
    CLASSES = "classes"


def names_of_job(job: Job) -> Iterator[Name]:
    yield Context.JOBS, job.name, (job.namespace, job.id)
    place = (job.namespace, job.id)
    for group in job.groups:
        yield InJobs.GROUPS, group.name, place
        yield from _names_in_group(group, (*place, group.name))


def _names_in_group(group: TaskGroup, place: tuple[str, ...]) -> Iterator[Name]:
    for service in group.services or ():
        yield InJobs.SERVICES, service.name, place
    for task in group.tasks or ():
        yield InJobs.TASKS, task.name, place
        yield from _names_in_task(task, (*place, task.name))


def _names_in_task(task: Task, place: tuple[str, ...]) -> Iterator[Name]:
    for service in task.services or ():
        yield InJobs.SERVICES, service.name, place
    config = task.config or {}
    for key, context in _TOLD_BY_DRIVER.get(task.driver, ()):
        value = config.get(key)
        if isinstance(value, str) and value:
            yield context, value, place


_TOLD_BY_DRIVER: Final[dict[str, tuple[tuple[str, InJobs], ...]]] = {
    "docker": (("image", InJobs.IMAGES),),
    "podman": (("image", InJobs.IMAGES),),
    "exec": (("command", InJobs.COMMANDS),),
    "raw_exec": (("command", InJobs.COMMANDS),),
    "java": (("class", InJobs.CLASSES),),
    "qemu": (("image_path", InJobs.IMAGES),),
}


def _of_allocation(allocation: Allocation) -> Iterator[Name]:
    yield Context.ALLOCATIONS, allocation.name, (allocation.namespace, allocation.id)


def _of_node(node: Node) -> Iterator[Name]:
    yield Context.NODES, node.name, (node.id,)


def _of_variable(variable: Variable) -> Iterator[Name]:
    yield Context.VARIABLES, variable.path, (variable.namespace, variable.path)


def _of_namespace(namespace: Namespace) -> Iterator[Name]:
    yield Context.NAMESPACES, namespace.name, ()


def _of_pool(pool: NodePool) -> Iterator[Name]:
    yield Context.NODE_POOLS, pool.name, ()


NAMES: Final[dict[Context, Callable[[Any], Iterator[Name]]]] = {
    Context.JOBS: names_of_job,
    Context.ALLOCATIONS: _of_allocation,
    Context.NODES: _of_node,
    Context.NODE_POOLS: _of_pool,
    Context.NAMESPACES: _of_namespace,
    Context.VARIABLES: _of_variable,
}
"""What has names. The rest is found by the beginning of its id."""

SHOWN_UNDER: Final[dict[Context, tuple[str, ...]]] = {Context.JOBS: (Context.JOBS, *InJobs)}
"""Contexts that one kind of record fills; else its own."""
