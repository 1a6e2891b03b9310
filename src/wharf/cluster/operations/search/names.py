"""The names that a fuzzy search looks through, and where each of them stands."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

from wharf.cluster.operations.search.contexts import SearchContext
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.variables import Variable

SearchName = tuple[str, str, tuple[str, ...]]
"""Under which context it is shown, the name, and its scope: its parents from outside in, its id last if that differs."""


class JobPartContext(StrEnum):
    """What stands inside jobs, and is shown apart."""

    GROUPS = "groups"
    SERVICES = "services"
    TASKS = "tasks"
    IMAGES = "images"
    COMMANDS = "commands"
    CLASSES = "classes"


def iterate_job_names(job: Job) -> Iterator[SearchName]:
    yield SearchContext.JOBS, job.name, (job.namespace, job.id)
    place = (job.namespace, job.id)
    for group in job.groups:
        yield JobPartContext.GROUPS, group.name, place
        yield from _names_in_group(group, (*place, group.name))


def _names_in_group(group: TaskGroup, place: tuple[str, ...]) -> Iterator[SearchName]:
    for service in group.services or ():
        yield JobPartContext.SERVICES, service.name, place
    for task in group.tasks or ():
        yield JobPartContext.TASKS, task.name, place
        yield from _names_in_task(task, (*place, task.name))


def _names_in_task(task: Task, place: tuple[str, ...]) -> Iterator[SearchName]:
    for service in task.services or ():
        yield JobPartContext.SERVICES, service.name, place
    config = task.config or {}
    for key, context in _TOLD_BY_DRIVER.get(task.driver, ()):
        value = config.get(key)
        if isinstance(value, str) and value:
            yield context, value, place


_TOLD_BY_DRIVER: Final[dict[str, tuple[tuple[str, JobPartContext], ...]]] = {
    "docker": (("image", JobPartContext.IMAGES),),
    "podman": (("image", JobPartContext.IMAGES),),
    "exec": (("command", JobPartContext.COMMANDS),),
    "raw_exec": (("command", JobPartContext.COMMANDS),),
    "java": (("class", JobPartContext.CLASSES),),
    "qemu": (("image_path", JobPartContext.IMAGES),),
}


def _of_allocation(allocation: Allocation) -> Iterator[SearchName]:
    yield SearchContext.ALLOCATIONS, allocation.name, (allocation.namespace, allocation.id)


def _of_node(node: Node) -> Iterator[SearchName]:
    yield SearchContext.NODES, node.name, (node.id,)


def _of_variable(variable: Variable) -> Iterator[SearchName]:
    yield SearchContext.VARIABLES, variable.path, (variable.namespace, variable.path)


def _of_namespace(namespace: Namespace) -> Iterator[SearchName]:
    yield SearchContext.NAMESPACES, namespace.name, ()


def _of_pool(pool: NodePool) -> Iterator[SearchName]:
    yield SearchContext.NODE_POOLS, pool.name, ()


NAME_READERS: Final[dict[SearchContext, Callable[[Any], Iterator[SearchName]]]] = {
    SearchContext.JOBS: iterate_job_names,
    SearchContext.ALLOCATIONS: _of_allocation,
    SearchContext.NODES: _of_node,
    SearchContext.NODE_POOLS: _of_pool,
    SearchContext.NAMESPACES: _of_namespace,
    SearchContext.VARIABLES: _of_variable,
}
"""What has names. The rest is found by the beginning of its id."""

RESULT_CONTEXTS: Final[dict[SearchContext, tuple[str, ...]]] = {
    SearchContext.JOBS: (SearchContext.JOBS, *JobPartContext)
}
"""Contexts that one kind of record fills; else its own."""
