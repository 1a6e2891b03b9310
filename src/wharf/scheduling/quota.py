"""What a namespace may still use of its quota: asked before anything is placed for it, and again before it is committed.

What counts is what occupies nodes: until a node has said that an allocation ended, it is used, whatever is wanted of it.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.model.allocated_resources import AllocatedResources
from wharf.model.allocation import Allocation
from wharf.model.changes import SEPARATOR
from wharf.model.group import TaskGroup
from wharf.model.quota import Quota, RegionLimit
from wharf.model.resources import RequestedDevice
from wharf.state import Replica
from wharf.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES, JOBS, NAMESPACES, NAMESPACES_WITH_QUOTA, QUOTAS

Amounts = dict[str, int]
"""By dimension; of devices by their full name."""

DIMENSIONS: Final = ("count", "cpu", "cores", "memory_mb", "memory_max_mb")
WORDS: Final = {"memory_mb": "memory", "memory_max_mb": "memory max"}
DEVICE: Final = "device "


class Allowance:
    """What is left of a quota in one region. What is taken from it counts at once for what is asked next."""

    def __init__(self, quota: str, limit: RegionLimit, used: Amounts) -> None:
        self.quota = quota
        self._limit = limit
        self._used = dict(used)

    def exceeded(self, asked: Amounts, *, instead_of: Amounts | None = None) -> tuple[str, ...]:
        """A sentence for each limit that this would exceed; none: it may be placed."""
        less = instead_of or {}
        said = []
        for name in DIMENSIONS:
            limit = getattr(self._limit, name)
            needed = self._used.get(name, 0) - less.get(name, 0) + asked.get(name, 0)
            if limit and asked.get(name, 0) and needed > max(0, limit):
                said.append(f"{WORDS.get(name, name)} exhausted ({needed} needed > {max(0, limit)} limit)")
        return tuple(said)

    def take(self, asked: Amounts) -> None:
        for name, amount in asked.items():
            self._used[name] = self._used.get(name, 0) + amount


def allowance_of(
    snapshot: Replica, namespace: str, region: str, used: Callable[[Replica, str], Amounts] | None = None
) -> Allowance | None:
    """None: nothing bounds the namespace here. `used` knows what a quota's namespaces use; else it is added up."""
    found = snapshot.get(NAMESPACES, namespace)
    quota = snapshot.get(QUOTAS, found.quota) if found is not None and found.quota else None
    limit = None if quota is None else limit_in(quota, region)
    if quota is None or limit is None:
        return None
    return Allowance(quota.name, limit, (used or used_by)(snapshot, quota.name))


def limit_in(quota: Quota, region: str) -> RegionLimit | None:
    return next((each.region_limit for each in quota.limits or () if each.region == region), None)


def used_by(snapshot: Replica, quota_name: str) -> Amounts:
    """What occupies nodes, of all namespaces that name the quota."""
    total: Amounts = {}
    for namespace in snapshot.those_by_key(NAMESPACES_WITH_QUOTA, quota_name):
        for name, amount in used_in(snapshot, namespace.name).items():
            total[name] = total.get(name, 0) + amount
    return total


def used_in(snapshot: Replica, namespace: str) -> Amounts:
    """What occupies nodes of one namespace."""
    total: Amounts = {}
    sizes: dict[int, tuple[AllocatedResources, Amounts]] = {}
    for job_id in _jobs_of(snapshot, namespace):
        for allocation in snapshot.those(ALLOCATIONS_OF_JOB, namespace, job_id):
            if not allocation.is_occupying:
                continue
            resources = allocation.allocated_resources
            if resources is None:
                total["count"] = total.get("count", 0) + 1
                continue
            # Siblings share the object; it is kept beside its size, so that its id stays its own.
            size = sizes.get(id(resources))
            if size is None:
                size = sizes[id(resources)] = (resources, amounts_of(resources))
            for name, amount in size[1].items():
                total[name] = total.get(name, 0) + amount
    return total


def _jobs_of(snapshot: Replica, namespace: str) -> list[str]:
    """Also those that are purged, and whose nodes have not stopped all of it yet."""
    found = {job.id: None for job in snapshot.by_key(JOBS, prefix=namespace + SEPARATOR)}
    found |= {purge.job_id: None for purge in snapshot.by_key(JOB_PURGES, prefix=namespace + SEPARATOR)}
    return list(found)


def used_limit(used: Amounts) -> RegionLimit:
    """The same in the form of a limit, for people."""
    devices = tuple(
        RequestedDevice(name=name.removeprefix(DEVICE), count=count)
        for name, count in sorted(used.items())
        if name.startswith(DEVICE)
    )
    return RegionLimit(
        count=used.get("count", 0),
        cpu=used.get("cpu", 0),
        cores=used.get("cores", 0),
        memory_mb=used.get("memory_mb", 0),
        memory_max_mb=used.get("memory_max_mb", 0),
        devices=devices or None,
    )


def amounts_of(resources: AllocatedResources | None) -> Amounts:
    """What one allocation with these uses of its quota."""
    amounts: Amounts = {"count": 1}

    def add(name: str, amount: int) -> None:
        amounts[name] = amounts.get(name, 0) + amount

    for task in (resources.tasks or {}).values() if resources is not None else ():
        add("cpu", task.cpu.cpu_shares)
        add("cores", len(task.cpu.reserved_cores or ()))
        add("memory_mb", task.memory.memory_mb)
        add("memory_max_mb", task.memory.memory_max_mb or task.memory.memory_mb)
        for device in task.devices or ():
            add(f"{DEVICE}{device.vendor}/{device.type}/{device.name}", len(device.device_ids or ()))
    return amounts


def amounts_asked(group: TaskGroup) -> Amounts:
    """What one more of the group would use. The MHz of whole cores depend on the node, and are counted once it is placed."""
    asked: Amounts = {"count": 1}
    for task in group.tasks or ():
        resources = task.resources
        memory_mb = resources.memory_mb + resources.secrets_mb
        most_mb = resources.memory_max_mb if resources.memory_max_mb > memory_mb else memory_mb
        for name, amount in (
            ("cpu", 0 if resources.cores else resources.cpu),
            ("cores", resources.cores),
            ("memory_mb", memory_mb),
            ("memory_max_mb", most_mb),
        ):
            asked[name] = asked.get(name, 0) + amount
    return asked


class Refusals(msgspec.Struct):
    """What a quota refused in one evaluation, by group: why, and how often."""

    reasons: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    numbers: dict[str, int] = msgspec.field(default_factory=dict)

    def note(self, group: str, why: tuple[str, ...]) -> None:
        self.reasons.setdefault(group, why)
        self.numbers[group] = self.numbers.get(group, 0) + 1


def fits_quota(allowance: Allowance | None, placed: tuple[Allocation, ...]) -> bool:
    """Whether all of these may be placed, in which case they are taken."""
    if allowance is None:
        return True
    amounts = [amounts_of(each.allocated_resources) for each in placed]
    total: Amounts = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    if allowance.exceeded(total):
        return False
    allowance.take(total)
    return True
