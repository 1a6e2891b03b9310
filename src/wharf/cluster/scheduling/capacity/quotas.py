"""What a namespace may still use of its quota: asked before anything is placed for it, and again before it is committed.

What counts is what occupies nodes: until a node has said that an allocation ended, it is used, whatever is wanted of it.

What each namespace uses of its quota, kept as the log goes: so that nobody has to add up a million allocations to place one.

A namespace is counted once, when it is first asked for, and followed from then on; most are never asked for.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES, JOBS, NAMESPACES, NAMESPACES_WITH_QUOTA, QUOTAS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.quotas import Quota, RegionLimit

QuotaAmounts = dict[str, int]
"""By dimension; of devices by their full name."""

DIMENSIONS: Final = ("count", "cpu", "cores", "memory_mb", "memory_max_mb")
DIMENSION_NAMES: Final = {"memory_mb": "memory", "memory_max_mb": "memory max"}
DEVICE_PREFIX: Final = "device "


class RemainingQuota:
    """What is left of a quota in one region. What is taken from it counts at once for what is asked next."""

    def __init__(self, quota: str, limit: RegionLimit, used: QuotaAmounts) -> None:
        self.quota = quota
        self._limit = limit
        self._used = dict(used)

    def list_exceeded_limits(self, asked: QuotaAmounts, *, released: QuotaAmounts | None = None) -> tuple[str, ...]:
        """A sentence for each limit that this would exceed; none: it may be placed."""
        less = released or {}
        said = []
        for name in DIMENSIONS:
            limit = getattr(self._limit, name)
            needed = self._used.get(name, 0) - less.get(name, 0) + asked.get(name, 0)
            if limit and asked.get(name, 0) and needed > max(0, limit):
                said.append(f"{DIMENSION_NAMES.get(name, name)} exhausted ({needed} needed > {max(0, limit)} limit)")
        return tuple(said)

    def consume_amounts(self, asked: QuotaAmounts) -> None:
        for name, amount in asked.items():
            self._used[name] = self._used.get(name, 0) + amount


def get_remaining_quota(
    snapshot: Replica, namespace: str, region: str, used: Callable[[Replica, str], QuotaAmounts] | None = None
) -> RemainingQuota | None:
    """None: nothing bounds the namespace here. `used` knows what a quota's namespaces use; else it is added up."""
    found = snapshot.get(NAMESPACES, namespace)
    quota = snapshot.get(QUOTAS, found.quota) if found is not None and found.quota else None
    limit = None if quota is None else find_region_limit(quota, region)
    if quota is None or limit is None:
        return None
    return RemainingQuota(quota.name, limit, (used or sum_quota_usage)(snapshot, quota.name))


def find_region_limit(quota: Quota, region: str) -> RegionLimit | None:
    return next((each.region_limit for each in quota.limits or () if each.region == region), None)


def sum_quota_usage(snapshot: Replica, quota_name: str) -> QuotaAmounts:
    """What occupies nodes, of all namespaces that name the quota."""
    total: QuotaAmounts = {}
    for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
        for name, amount in sum_namespace_usage(snapshot, namespace.name).items():
            total[name] = total.get(name, 0) + amount
    return total


def sum_namespace_usage(snapshot: Replica, namespace: str) -> QuotaAmounts:
    """What occupies nodes of one namespace."""
    total: QuotaAmounts = {}
    sizes: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}
    for job_id in _jobs_of(snapshot, namespace):
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, namespace, job_id):
            if not allocation.is_occupying:
                continue
            resources = allocation.allocated_resources
            if resources is None:
                total["count"] = total.get("count", 0) + 1
                continue
            # Siblings share the object; it is kept beside its size, so that its id stays its own.
            size = sizes.get(id(resources))
            if size is None:
                size = sizes[id(resources)] = (resources, measure_amounts(resources))
            for name, amount in size[1].items():
                total[name] = total.get(name, 0) + amount
    return total


def _jobs_of(snapshot: Replica, namespace: str) -> list[str]:
    """Also those that are purged, and whose nodes have not stopped all of it yet."""
    found = {job.id: None for job in snapshot.iter_by_key(JOBS, prefix=namespace + KEY_SEPARATOR)}
    found |= {purge.job_id: None for purge in snapshot.iter_by_key(JOB_PURGES, prefix=namespace + KEY_SEPARATOR)}
    return list(found)


def convert_usage_to_limit(used: QuotaAmounts) -> RegionLimit:
    """The same in the form of a limit, for people."""
    devices = tuple(
        RequestedDevice(name=name.removeprefix(DEVICE_PREFIX), count=count)
        for name, count in sorted(used.items())
        if name.startswith(DEVICE_PREFIX)
    )
    return RegionLimit(
        count=used.get("count", 0),
        cpu=used.get("cpu", 0),
        cores=used.get("cores", 0),
        memory_mb=used.get("memory_mb", 0),
        memory_max_mb=used.get("memory_max_mb", 0),
        devices=devices or None,
    )


def measure_amounts(resources: AllocatedResources | None) -> QuotaAmounts:
    """What one allocation with these uses of its quota."""
    amounts: QuotaAmounts = {"count": 1}

    def add(name: str, amount: int) -> None:
        amounts[name] = amounts.get(name, 0) + amount

    for task in (resources.tasks or {}).values() if resources is not None else ():
        add("cpu", task.cpu.cpu_shares)
        add("cores", len(task.cpu.reserved_cores or ()))
        add("memory_mb", task.memory.memory_mb)
        add("memory_max_mb", task.memory.memory_max_mb or task.memory.memory_mb)
        for device in task.devices or ():
            add(f"{DEVICE_PREFIX}{device.vendor}/{device.type}/{device.name}", len(device.device_ids or ()))
    return amounts


def sum_requested_amounts(group: TaskGroup) -> QuotaAmounts:
    """What one more of the group would use. The MHz of whole cores depend on the node, and are counted once it is placed."""
    asked: QuotaAmounts = {"count": 1}
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


class QuotaRefusals(msgspec.Struct):
    """What a quota refused in one evaluation, by group: why, and how often."""

    reasons: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)

    def record_refusal(self, group: str, why: tuple[str, ...]) -> None:
        self.reasons.setdefault(group, why)
        self.counts[group] = self.counts.get(group, 0) + 1


def try_consume_quota(allowance: RemainingQuota | None, placed: tuple[Allocation, ...]) -> bool:
    """Whether all of these may be placed, in which case they are taken."""
    if allowance is None:
        return True
    amounts = [measure_amounts(each.allocated_resources) for each in placed]
    total: QuotaAmounts = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    if allowance.list_exceeded_limits(total):
        return False
    allowance.consume_amounts(total)
    return True


MAX_CACHED_SIZES: Final = 4_096


class QuotaUsageTracker:
    """Told of each allocation before and after, at the index of the state that it is asked with."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, QuotaAmounts] = {}
        self._sizes: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}

    @property
    def is_tracking(self) -> bool:
        """Whether any quota was asked about yet: it is counted from then on."""
        return bool(self._by_namespace)

    def apply_change(self, before: Allocation | None, after: Allocation | None) -> None:
        if not self._by_namespace:
            return
        for allocation, sign in ((before, -1), (after, 1)):
            if allocation is None or not allocation.is_occupying:
                continue
            used = self._by_namespace.get(allocation.namespace)
            if used is not None:
                for name, amount in self._size(allocation.allocated_resources).items():
                    used[name] = used.get(name, 0) + sign * amount

    def get_quota_usage(self, snapshot: Replica, quota_name: str) -> QuotaAmounts:
        """What occupies nodes, of all namespaces that name the quota."""
        total: QuotaAmounts = {}
        for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
            used = self._by_namespace.get(namespace.name)
            if used is None:
                used = self._by_namespace[namespace.name] = sum_namespace_usage(snapshot, namespace.name)
            for name, amount in used.items():
                total[name] = total.get(name, 0) + amount
        return total

    def _size(self, resources: AllocatedResources | None) -> QuotaAmounts:
        if resources is None:
            return {"count": 1}
        found = self._sizes.get(id(resources))
        if found is None:
            if len(self._sizes) >= MAX_CACHED_SIZES:
                self._sizes.clear()
            # Siblings share the object; it is kept beside its size, so that its id stays its own.
            found = self._sizes[id(resources)] = (resources, measure_amounts(resources))
        return found[1]
