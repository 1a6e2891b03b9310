"""The names that a fuzzy search examines, with the context and scope of each."""

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
"""A name with its kind of result and its scope: the parents from outer to inner, then the id if it differs from the
name.
"""


class JobPartContext(StrEnum):
    """Kinds of results that are parts of jobs. A search lists each kind separately."""

    GROUPS = "groups"
    SERVICES = "services"
    TASKS = "tasks"
    IMAGES = "images"
    COMMANDS = "commands"
    CLASSES = "classes"


def iterate_job_names(job: Job) -> Iterator[SearchName]:
    """Yield the searchable names of a job: its own, and those of its groups, services, tasks, images and commands."""
    yield SearchContext.JOBS, job.name, (job.namespace, job.id)
    scope = (job.namespace, job.id)
    for group in job.groups:
        yield JobPartContext.GROUPS, group.name, scope
        yield from _iterate_group_names(group, (*scope, group.name))


def _iterate_group_names(group: TaskGroup, scope: tuple[str, ...]) -> Iterator[SearchName]:
    """Yield the names of the group's services and tasks, with those of their parts.

    `scope` lists the group's parents and its name.
    """
    for service in group.services or ():
        yield JobPartContext.SERVICES, service.name, scope
    for task in group.tasks or ():
        yield JobPartContext.TASKS, task.name, scope
        yield from _iterate_task_names(task, (*scope, task.name))


def _iterate_task_names(task: Task, scope: tuple[str, ...]) -> Iterator[SearchName]:
    """Yield the names of the task's services and of its image, command or class.

    `scope` lists its parents and its name.
    """
    for service in task.services or ():
        yield JobPartContext.SERVICES, service.name, scope
    config = task.config or {}
    for key, context in _SEARCHED_CONFIG_KEYS.get(task.driver, ()):
        value = config.get(key)
        if isinstance(value, str) and value:
            yield context, value, scope


_SEARCHED_CONFIG_KEYS: Final[dict[str, tuple[tuple[str, JobPartContext], ...]]] = {
    "docker": (("image", JobPartContext.IMAGES),),
    "podman": (("image", JobPartContext.IMAGES),),
    "exec": (("command", JobPartContext.COMMANDS),),
    "raw_exec": (("command", JobPartContext.COMMANDS),),
    "java": (("class", JobPartContext.CLASSES),),
    "qemu": (("image_path", JobPartContext.IMAGES),),
}
"""Keys of a task's configuration that are searched, by driver."""


def _iterate_allocation_names(allocation: Allocation) -> Iterator[SearchName]:
    """Yield the name of the allocation, for a search."""
    yield SearchContext.ALLOCATIONS, allocation.name, (allocation.namespace, allocation.id)


def _iterate_node_names(node: Node) -> Iterator[SearchName]:
    """Yield the name of the node."""
    yield SearchContext.NODES, node.name, (node.id,)


def _iterate_variable_names(variable: Variable) -> Iterator[SearchName]:
    """Yield the path of the variable."""
    yield SearchContext.VARIABLES, variable.path, (variable.namespace, variable.path)


def _iterate_namespace_names(namespace: Namespace) -> Iterator[SearchName]:
    """Yield the name of the namespace."""
    yield SearchContext.NAMESPACES, namespace.name, ()


def _iterate_pool_names(pool: NodePool) -> Iterator[SearchName]:
    """Yield the name of the node pool."""
    yield SearchContext.NODE_POOLS, pool.name, ()


NAME_READERS: Final[dict[SearchContext, Callable[[Any], Iterator[SearchName]]]] = {
    SearchContext.JOBS: iterate_job_names,
    SearchContext.ALLOCATIONS: _iterate_allocation_names,
    SearchContext.NODES: _iterate_node_names,
    SearchContext.NODE_POOLS: _iterate_pool_names,
    SearchContext.NAMESPACES: _iterate_namespace_names,
    SearchContext.VARIABLES: _iterate_variable_names,
}
"""By kind of record, the function that yields the searchable names of a record.

Other kinds are searched by id prefix.
"""

RESULT_CONTEXTS: Final[dict[SearchContext, tuple[str, ...]]] = {
    SearchContext.JOBS: (SearchContext.JOBS, *JobPartContext)
}
"""The kinds of results that a search of a kind of record can find, if not only that kind itself."""
