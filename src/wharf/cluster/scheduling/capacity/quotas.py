"""Quotas: what a namespace uses and may still use. Checked before placements and again before the commit.

All allocations that occupy a node count, until the node reports that they have ended. The usage of each namespace
follows the log.
"""

from collections.abc import Callable
from typing import Final

from wharf.cluster.scheduling.capacity.fair_share import list_usage_changes
from wharf.cluster.scheduling.resources.devices import can_be_same_device
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, JOB_PURGES, JOBS, NAMESPACES, NAMESPACES_WITH_QUOTA, QUOTAS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.placement_reasons import NEVER_TEXT
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.quotas import Quota, RegionLimit

QuotaAmounts = dict[str, int]
"""Amounts by dimension: those in `DIMENSIONS`, and one such as `device nvidia/gpu/a100` for each device name."""

DIMENSIONS: Final = ("count", "cpu", "cores", "memory_mb", "memory_max_mb")
"""The dimensions that a quota can limit, named as the fields of `RegionLimit`.

They are the number of allocations, CPU in MHz (without reserved cores), reserved cores, and reserved and maximum memory
in MB.
"""
DIMENSION_NAMES: Final = {"memory_mb": "memory", "memory_max_mb": "memory max"}
"""How texts for users name a dimension, if not by its own name."""
DEVICE_PREFIX: Final = "device "
"""The dimensions of devices begin with this prefix."""


class RemainingQuota:
    """The limit of a quota in one region, with the amounts in use.

    Amounts that `consume_amounts` adds count for the next check.
    """

    def __init__(self, quota: str, limit: RegionLimit, used: QuotaAmounts) -> None:
        """`quota` is the name of the quota. `used` is copied."""
        self.quota = quota
        self._limit = limit
        self._used = dict(used)

    def list_exceeded_limits(self, requested: QuotaAmounts, *, released: QuotaAmounts | None = None) -> tuple[str, ...]:
        """Return a text for each dimension, such as CPU, whose limit these further amounts would exceed.

        Empty: they may be used.

        Example: `cpu exhausted (500 needed > 400 limit)`. If the further amounts alone exceed the limit, the text contains
        `NEVER_TEXT`. `released` are amounts that the placement frees. A limit of 0
        is no limit; a negative limit allows nothing.
        """
        released_amounts = released or {}
        texts = []
        for name in DIMENSIONS:
            added, used = requested.get(name, 0), self._used.get(name, 0) - released_amounts.get(name, 0)
            texts += _describe_excess(DIMENSION_NAMES.get(name, name), added, used, getattr(self._limit, name))
        for device in self._limit.devices or ():
            used = _sum_devices(self._used, device.name) - _sum_devices(released_amounts, device.name)
            added = _sum_devices(requested, device.name)
            texts += _describe_excess(f"{DEVICE_PREFIX}{device.name}", added, used, device.count)
        return tuple(texts)

    def consume_amounts(self, requested: QuotaAmounts) -> None:
        """Add these amounts to the amounts that count as used. Limits are not checked."""
        for name, amount in requested.items():
            self._used[name] = self._used.get(name, 0) + amount


class UnknownQuota(RemainingQuota):
    """The limit of a namespace whose quota does not exist. It allows nothing, because the limit is unknown.

    Only a state that an earlier release wrote can have one: the deletion of a quota in use is refused.
    """

    def __init__(self, namespace: str, quota: str) -> None:
        super().__init__(quota, RegionLimit(), {})
        self._text = (
            f'quota "{quota}" of namespace "{namespace}" does not exist: create it, or store the namespace without it'
        )

    def list_exceeded_limits(self, requested: QuotaAmounts, *, released: QuotaAmounts | None = None) -> tuple[str, ...]:
        """Return why nothing may be used, whatever is requested or released."""
        del requested, released
        return (self._text,)


def _describe_excess(name: str, added: int, used: int, limit: int) -> list[str]:
    """Return a text if `added` further units of a dimension exceed its limit, else an empty list."""
    if not limit or not added or used + added <= max(0, limit):
        return []
    never = f": {NEVER_TEXT}" if added > limit else ""
    return [f"{name} exhausted ({used + added} needed > {max(0, limit)} limit{never})"]


def _sum_devices(amounts: QuotaAmounts, limited_name: str) -> int:
    """Return how many of these devices may be devices with the limited name.

    Amounts of devices in use have full names. Those of a request may be less specific than the limit; they count then,
    too, because the devices may become ones with the limited name (ADR 73).
    """
    return sum(
        count
        for dimension, count in amounts.items()
        if dimension.startswith(DEVICE_PREFIX)
        and can_be_same_device(dimension.removeprefix(DEVICE_PREFIX), limited_name)
    )


def get_remaining_quota(
    snapshot: Replica,
    namespace: str,
    region: str,
    get_quota_usage: Callable[[Replica, str], QuotaAmounts] | None = None,
) -> RemainingQuota | None:
    """Return the remaining quota of the namespace, or `None` if no quota limits it in this region.

    A namespace whose quota does not exist gets an `UnknownQuota`.

    `get_quota_usage` returns what all namespaces with a quota use, given the snapshot and the name of the quota. The
    default adds up all their allocations, which is slow.
    """
    namespace_record = snapshot.get(NAMESPACES, namespace)
    quota = (
        snapshot.get(QUOTAS, namespace_record.quota)
        if namespace_record is not None and namespace_record.quota
        else None
    )
    if quota is None and namespace_record is not None and namespace_record.quota:
        return UnknownQuota(namespace, namespace_record.quota)
    limit = None if quota is None else find_region_limit(quota, region)
    if quota is None or limit is None:
        return None
    return RemainingQuota(quota.name, limit, (get_quota_usage or sum_quota_usage)(snapshot, quota.name))


def find_region_limit(quota: Quota, region: str) -> RegionLimit | None:
    """Return the limit of the quota for its namespaces in this region, or `None` if it has no limit there."""
    return next((limit.region_limit for limit in quota.limits or () if limit.region == region), None)


def sum_quota_usage(snapshot: Replica, quota_name: str) -> QuotaAmounts:
    """Return what all namespaces with this quota use together, by dimension such as `cpu`.

    It is added up from their allocations that have not ended.
    """
    total: QuotaAmounts = {}
    for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
        for name, amount in sum_namespace_usage(snapshot, namespace.name).items():
            total[name] = total.get(name, 0) + amount
    return total


def sum_namespace_usage(snapshot: Replica, namespace: str) -> QuotaAmounts:
    """Return what the namespace uses, by dimension such as `cpu`, added up from its allocations that have not ended."""
    adder = UsageAdder()
    for job_id in _list_job_ids(snapshot, namespace):
        for allocation in snapshot.list_by_index(ALLOCATIONS_OF_JOB, namespace, job_id):
            adder.add(allocation)
    return adder.totals.get(namespace, {})


class UsageAdder:
    """Adds up what allocations that have not ended use, by namespace and dimension such as `cpu`."""

    def __init__(self) -> None:
        self.totals: dict[str, QuotaAmounts] = {}
        # Allocations of a group usually share one resource record. Its amounts are measured once, by object id. The entry
        # stores the record, so that no other object gets its id.
        self._measured: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}

    def add(self, allocation: Allocation) -> None:
        """Add an allocation, unless it has ended."""
        if not allocation.is_occupying:
            return
        total = self.totals.setdefault(allocation.namespace, {})
        resources = allocation.allocated_resources
        if resources is None:
            total["count"] = total.get("count", 0) + 1
            return
        entry = self._measured.get(id(resources))
        if entry is None:
            entry = self._measured[id(resources)] = (resources, measure_amounts(resources))
        for name, amount in entry[1].items():
            total[name] = total.get(name, 0) + amount

    def sum_quota_usage(self, snapshot: Replica, quota_name: str) -> QuotaAmounts:
        """Return what all namespaces with this quota use together, of the allocations that were added."""
        total: QuotaAmounts = {}
        for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
            for name, amount in self.totals.get(namespace.name, {}).items():
                total[name] = total.get(name, 0) + amount
        return total


def _list_job_ids(snapshot: Replica, namespace: str) -> list[str]:
    """Return the ids of the namespace's jobs, including purged jobs whose allocations have not all ended."""
    found = {job.id: None for job in snapshot.iter_by_key(JOBS, prefix=namespace + KEY_SEPARATOR)}
    found |= {purge.job_id: None for purge in snapshot.iter_by_key(JOB_PURGES, prefix=namespace + KEY_SEPARATOR)}
    return list(found)


def convert_usage_to_limit(used: QuotaAmounts) -> RegionLimit:
    """Return the used amounts as a `RegionLimit`, the format in which the API shows them."""
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
    """Return what one allocation with these resources uses of a quota, by dimension such as `cpu`."""
    amounts: QuotaAmounts = {"count": 1}

    def add(name: str, amount: int) -> None:
        """Add the amount to the dimension with this name."""
        amounts[name] = amounts.get(name, 0) + amount

    for task in (resources.tasks or {}).values() if resources is not None else ():
        # The MHz of reserved cores depend on the node, so a placement could not be checked before its node is chosen.
        add("cpu", 0 if task.cpu.reserved_cores else task.cpu.cpu_shares)
        add("cores", len(task.cpu.reserved_cores or ()))
        add("memory_mb", task.memory.memory_mb)
        add("memory_max_mb", task.memory.memory_max_mb or task.memory.memory_mb)
        for device in task.devices or ():
            add(f"{DEVICE_PREFIX}{device.vendor}/{device.type}/{device.name}", len(device.device_ids or ()))
    return amounts


def sum_requested_amounts(group: TaskGroup) -> QuotaAmounts:
    """Return what one more allocation of the group would use of a quota, by dimension, before its node is chosen.

    Devices have the names that the group requests, which may be less specific than those of assigned devices. The CPU
    of tasks that reserve cores is left out: only the number of cores counts.
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
        for device in resources.devices or ():
            name = f"{DEVICE_PREFIX}{device.name}"
            requested[name] = requested.get(name, 0) + device.count
    return requested


def try_consume_quota(remaining_quota: RemainingQuota | None, placed: tuple[Allocation, ...]) -> bool:
    """Count the amounts of all these allocations as used and return true, if the remaining quota allows all of them.

    Otherwise count nothing and return false. Without a quota (`None`), return true.
    """
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


MAX_CACHED_RECORDS: Final = 4_096
"""Limits memory: the amounts of at most this many resource records are cached."""


class QuotaUsageTracker:
    """Keeps the amounts that namespaces use up to date, so that they are not added up for every evaluation.

    All namespaces are tracked: adding up the allocations of one when it gets a quota would hold the event loop. The tracker
    must have received all changes up to the index of the snapshot that a caller passes, and no later ones.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str, QuotaAmounts] = {}
        """The used amounts of each namespace with allocations that have not ended."""
        self._measured: dict[int, tuple[AllocatedResources, QuotaAmounts]] = {}
        """Resource records and their amounts, by object id of the record."""

    def apply_change(self, before: Allocation | None, after: Allocation | None) -> None:
        """Update the used amounts of a namespace, given the record of an allocation before and after a change.

        `before` is `None` for a new allocation, `after` for a deleted one.
        """
        for allocation, sign in list_usage_changes(before, after):
            self.add_usage(allocation.namespace, allocation.allocated_resources, sign)

    def add_usage(self, namespace: str, resources: AllocatedResources | None, count: int) -> None:
        """Add the amounts of `count` allocations with these resources to the namespace; a negative count subtracts them."""
        used = self._by_namespace.setdefault(namespace, {})
        for name, amount in self._get_amounts(resources).items():
            used[name] = used.get(name, 0) + count * amount
        if not used["count"]:
            del self._by_namespace[namespace]

    def get_quota_usage(self, snapshot: Replica, quota_name: str) -> QuotaAmounts:
        """Return what all namespaces with this quota use together, by dimension such as `cpu`."""
        total: QuotaAmounts = {}
        for namespace in snapshot.list_by_index_sorted(NAMESPACES_WITH_QUOTA, quota_name):
            for name, amount in self._by_namespace.get(namespace.name, {}).items():
                total[name] = total.get(name, 0) + amount
        return total

    def _get_amounts(self, resources: AllocatedResources | None) -> QuotaAmounts:
        """Return the amounts that one allocation with this resource record uses.

        They are cached by the object id of the record, because the allocations of a group usually share one record.
        """
        if resources is None:
            return {"count": 1}
        cached = self._measured.get(id(resources))
        if cached is None:
            if len(self._measured) >= MAX_CACHED_RECORDS:
                self._measured.clear()
            # Store the record in the entry, so that no other object gets its id.
            cached = self._measured[id(resources)] = (resources, measure_amounts(resources))
        return cached[1]
