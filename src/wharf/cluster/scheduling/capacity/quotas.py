"""Quotas: what a namespace uses and may still use. Checked before placements and again before the commit.

All allocations that occupy a node count, until the node reports that they have ended. The usage of a namespace is
counted once, on first request, and then follows the log; most namespaces are never requested.
"""

from collections.abc import Callable
from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES, JOBS, NAMESPACES, NAMESPACES_WITH_QUOTA, QUOTAS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.quotas import Quota, RegionLimit

QuotaAmounts = dict[str, int]
"""Amounts by dimension. Devices have their full name as dimension."""

DIMENSIONS: Final = ("count", "cpu", "cores", "memory_mb", "memory_max_mb")
"""The dimensions that limits can set, as fields of `RegionLimit`."""
DIMENSION_NAMES: Final = {"memory_mb": "memory", "memory_max_mb": "memory max"}
DEVICE_PREFIX: Final = "device "


class RemainingQuota:
    """What is left of a quota in one region. Consumed amounts count at once in the next check."""

    def __init__(self, quota: str, limit: RegionLimit, used: QuotaAmounts) -> None:
        self.quota = quota
        self._limit = limit
        self._used = dict(used)

    def list_exceeded_limits(self, requested: QuotaAmounts, *, released: QuotaAmounts | None = None) -> tuple[str, ...]:
        """Return a text for each limit that these amounts would exceed. Empty: they may be placed.

        `released` are amounts that the placement frees.
        """
        released_amounts = released or {}
        texts = []
        for name in DIMENSIONS:
            limit = getattr(self._limit, name)
            needed = self._used.get(name, 0) - released_amounts.get(name, 0) + requested.get(name, 0)
            if limit and requested.get(name, 0) and needed > max(0, limit):
                texts.append(f"{DIMENSION_NAMES.get(name, name)} exhausted ({needed} needed > {max(0, limit)} limit)")
        return tuple(texts)

    def consume_amounts(self, requested: QuotaAmounts) -> None:
        """Count these amounts as used."""
        for name, amount in requested.items():
            self._used[name] = self._used.get(name, 0) + amount


def get_remaining_quota(
    snapshot: Replica, namespace: str, region: str, used: Callable[[Replica, str], QuotaAmounts] | None = None
) -> RemainingQuota | None:
    """Return the remaining quota of the namespace, or `None` if no quota limits it in this region.

    `used` returns the usage of a quota. The default adds up all allocations.
    """
    namespace_record = snapshot.get(NAMESPACES, namespace)
    quota = (
        snapshot.get(QUOTAS, namespace_record.quota)
        if namespace_record is not None and namespace_record.quota
        else None
    )
    limit = None if quota is None else find_region_limit(quota, region)
    if quota is None or limit is None:
        return None
    return RemainingQuota(quota.name, limit, (used or sum_quota_usage)(snapshot, quota.name))


def find_region_limit(quota: Quota, region: str) -> RegionLimit | None:
    """Return the limit of the quota for the region, or `None`."""
    return next((limit.region_limit for limit in quota.limits or () if limit.region == region), None)


def sum_quota_usage(snapshot: Replica, quota_name: str) -> QuotaAmounts:
    """Return what all namespaces with this quota use, added up from their allocations."""
    total: QuotaAmounts = {}
    for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
        for name, amount in sum_namespace_usage(snapshot, namespace.name).items():
            total[name] = total.get(name, 0) + amount
    return total


def sum_namespace_usage(snapshot: Replica, namespace: str) -> QuotaAmounts:
    """Return what the namespace uses, added up from its allocations."""
    total: QuotaAmounts = {}
    sizes: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}
    for job_id in _list_job_ids(snapshot, namespace):
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, namespace, job_id):
            if not allocation.is_occupying:
                continue
            resources = allocation.allocated_resources
            if resources is None:
                total["count"] = total.get("count", 0) + 1
                continue
            # Siblings share the record. Keep it in the entry, so that no other object gets its id.
            size = sizes.get(id(resources))
            if size is None:
                size = sizes[id(resources)] = (resources, measure_amounts(resources))
            for name, amount in size[1].items():
                total[name] = total.get(name, 0) + amount
    return total


def _list_job_ids(snapshot: Replica, namespace: str) -> list[str]:
    """Return the ids of the namespace's jobs, including purged jobs whose allocations have not all ended."""
    found = {job.id: None for job in snapshot.iter_by_key(JOBS, prefix=namespace + KEY_SEPARATOR)}
    found |= {purge.job_id: None for purge in snapshot.iter_by_key(JOB_PURGES, prefix=namespace + KEY_SEPARATOR)}
    return list(found)


def convert_usage_to_limit(used: QuotaAmounts) -> RegionLimit:
    """Return the usage in the form of a limit, for the API."""
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
    """Return what one allocation with these resources uses of its quota."""
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
    """Return what one more allocation of the group would use.

    The MHz of whole cores depend on the node, so they are counted only after the placement.
    """
    requested: QuotaAmounts = {"count": 1}
    for task in group.tasks or ():
        resources = task.resources
        memory_mb = resources.memory_mb + resources.secrets_mb
        max_memory_mb = resources.memory_max_mb if resources.memory_max_mb > memory_mb else memory_mb
        for name, amount in (
            ("cpu", 0 if resources.cores else resources.cpu),
            ("cores", resources.cores),
            ("memory_mb", memory_mb),
            ("memory_max_mb", max_memory_mb),
        ):
            requested[name] = requested.get(name, 0) + amount
    return requested


def try_consume_quota(remaining_quota: RemainingQuota | None, placed: tuple[Allocation, ...]) -> bool:
    """Consume the quota for all these allocations and return True, or return False if they exceed it."""
    if remaining_quota is None:
        return True
    amounts = [measure_amounts(allocation.allocated_resources) for allocation in placed]
    total: QuotaAmounts = {}
    for amounts_of_one in amounts:
        for name, amount in amounts_of_one.items():
            total[name] = total.get(name, 0) + amount
    if remaining_quota.list_exceeded_limits(total):
        return False
    remaining_quota.consume_amounts(total)
    return True


MAX_CACHED_SIZES: Final = 4_096
"""Limits memory: resource records whose amounts are cached."""


class QuotaUsageTracker:
    """Follows the quota usage of namespaces. Its state must have the index of the snapshot that callers pass."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, QuotaAmounts] = {}
        self._sizes: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}

    @property
    def is_tracking(self) -> bool:
        """Whether any usage was requested yet. Nothing is counted before that."""
        return bool(self._by_namespace)

    def apply_change(self, before: Allocation | None, after: Allocation | None) -> None:
        """Apply the change of an allocation."""
        if not self._by_namespace:
            return
        for allocation, sign in ((before, -1), (after, 1)):
            if allocation is None or not allocation.is_occupying:
                continue
            used = self._by_namespace.get(allocation.namespace)
            if used is not None:
                for name, amount in self._get_amounts(allocation.allocated_resources).items():
                    used[name] = used.get(name, 0) + sign * amount

    def get_quota_usage(self, snapshot: Replica, quota_name: str) -> QuotaAmounts:
        """Return what all namespaces with this quota use."""
        total: QuotaAmounts = {}
        for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
            used = self._by_namespace.get(namespace.name)
            if used is None:
                used = self._by_namespace[namespace.name] = sum_namespace_usage(snapshot, namespace.name)
            for name, amount in used.items():
                total[name] = total.get(name, 0) + amount
        return total

    def _get_amounts(self, resources: AllocatedResources | None) -> QuotaAmounts:
        """Return the amounts of the resource record, cached by identity."""
        if resources is None:
            return {"count": 1}
        cached = self._sizes.get(id(resources))
        if cached is None:
            if len(self._sizes) >= MAX_CACHED_SIZES:
                self._sizes.clear()
            # Siblings share the record. Keep it in the entry, so that no other object gets its id.
            cached = self._sizes[id(resources)] = (resources, measure_amounts(resources))
        return cached[1]
