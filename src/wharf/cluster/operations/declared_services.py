"""Decide which registrations in a node's report belong to the services that the allocation's job declares.

A node can register only services that the job has, each under an id that names the allocation.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from wharf.cluster.operations.jobs.versions import list_versions
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.services import GROUP_OWNER_PREFIX, ServiceRegistration, make_registration_id

MAX_COMPARISONS: Final = 10_000
"""Comparisons of one report's registrations with services, beyond one for each service. Limits the CPU time to about 10 ms.
An allocation with 100 services needs no more in any order."""

_REFERENCE: Final = re.compile(r"\$?\$\{[^{}]*\}")


class _DeclaredService:
    """A service that a job declares for the allocation, with the id and the name of its registration."""

    def __init__(self, allocation_id: str, owner: str, service: Service) -> None:
        self._allocation_id = allocation_id
        self._owner = owner
        self._port_label = service.port_label
        self._literals = _REFERENCE.split(service.name)
        """The parts of the name between references, whose values only the node knows."""

    def matches(self, registration: ServiceRegistration) -> bool:
        """Return whether the registration can be one of this service."""
        name = registration.service_name
        return self._matches_name(name) and registration.id == make_registration_id(
            alloc_id=self._allocation_id, owner=self._owner, service=name, port_label=self._port_label
        )

    def _matches_name(self, name: str) -> bool:
        """Return whether the name has the fixed parts of the service's name, in their order."""
        first, *middle = self._literals
        if not middle:
            return name == first
        last = middle.pop()
        position, end = len(first), len(name) - len(last)
        if not name.startswith(first) or not name.endswith(last):
            return False
        for literal in middle:
            position = name.find(literal, position, end)
            if position < 0:
                return False
            position += len(literal)
        return position <= end


def select_declared(
    snapshot: Replica, allocation: Allocation, reported: Sequence[ServiceRegistration]
) -> list[ServiceRegistration]:
    """Return the reported registrations that belong to a service of the allocation's job, each service once.

    Services of earlier versions of the job count too, because the node may not have received the newest one.
    """
    selected: list[ServiceRegistration] = []
    remaining = list(reported)
    for job in _iter_versions(snapshot, allocation):
        if not remaining:
            break
        matched, remaining = _match_services(_list_services(job, allocation), remaining)
        selected += matched
    return selected


def is_job_stored(snapshot: Replica, allocation: Allocation) -> bool:
    """Return whether a version of the allocation's job is stored. After a purge, its tasks stop soon, and none is."""
    return next(_iter_versions(snapshot, allocation), None) is not None


def _iter_versions(snapshot: Replica, allocation: Allocation) -> Iterator[Job]:
    """Yield the version of the job that the allocation runs, then the other stored ones."""
    current = find_allocation_job(snapshot, allocation)
    if current is not None:
        yield current
    for job in list_versions(snapshot, allocation.namespace, allocation.job_id):
        if job.create_index == allocation.job_create_index and job.version != allocation.job_version:
            yield job


def _list_services(job: Job, allocation: Allocation) -> list[_DeclaredService]:
    """Return the services that the job registers in the cluster for the allocation, in the order of the job."""
    group = job.find_group(allocation.task_group)
    if group is None:
        return []
    owned = [(f"{GROUP_OWNER_PREFIX}{group.name}", service) for service in group.services or ()]
    owned += [(task.name, service) for task in group.tasks or () for service in task.services or ()]
    return [_DeclaredService(allocation.id, owner, service) for owner, service in owned if service.is_native]


def _match_services(
    services: Sequence[_DeclaredService], reported: Sequence[ServiceRegistration]
) -> tuple[list[ServiceRegistration], list[ServiceRegistration]]:
    """Return the registrations that belong to one of the services, each service once, and those that belong to none.

    Registrations that are left after `MAX_COMPARISONS` are in neither list.
    """
    matched: list[ServiceRegistration] = []
    others: list[ServiceRegistration] = []
    unused = deque(services)
    comparison_count = 0
    for registration in reported:
        for _ in range(len(unused)):
            comparison_count += 1
            if comparison_count > len(services) + MAX_COMPARISONS:
                break
            service = unused[0]
            if service.matches(registration):
                matched.append(registration)
                unused.popleft()
                break
            unused.rotate(-1)  # Nodes report services in the order of the job, so the next one is likely to match.
        else:
            others.append(registration)
    return matched, others
