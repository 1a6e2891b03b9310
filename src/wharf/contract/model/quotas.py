"""Quotas: how much of a region the namespaces that name one may use together.

The limits only; what is used follows from the allocations and is never stored.
"""

from wharf.contract.model.jobs.resources import NUMA, RequestedDevice
from wharf.contract.model.names import NAME_REGEX, is_valid_name, list_description_problems
from wharf.contract.model.record import Record


class QuotaStorage(Record):
    variables_mb: int = 0
    host_volumes_mb: int = 0


class RegionLimit(Record):
    """0: no limit. Below 0: none allowed."""

    cpu: int = 0  # MHz
    cores: int = 0
    memory_mb: int = 0
    memory_max_mb: int = 0
    count: int = 0  # Allocations.
    devices: tuple[RequestedDevice, ...] | None = None
    numa: NUMA | None = None
    storage: QuotaStorage | None = None


class QuotaLimit(Record):
    region: str = ""
    region_limit: RegionLimit = RegionLimit()
    hash: bytes = b""


class Quota(Record):
    name: str
    description: str = ""
    limits: tuple[QuotaLimit, ...] | None = None
    hash: bytes = b""
    create_index: int = 0
    modify_index: int = 0


class QuotaUsage(Record):
    """What is used of a quota in this region, under the hash of each limit. Made for replies, never stored."""

    name: str
    used: dict[str, QuotaLimit] | None = None
    create_index: int = 0
    modify_index: int = 0


def list_quota_problems(quota: Quota) -> list[str]:
    """Everything that is wrong with a quota somebody wants to write."""
    found = []
    if not is_valid_name(quota.name):
        found.append(f'invalid name "{quota.name}". Must match regex {NAME_REGEX}')
    found += list_description_problems(quota.description)
    if not quota.limits:
        found.append("at least one limit should be specified")
    regions = [limit.region for limit in quota.limits or ()]
    if "" in regions:
        found.append("each limit must name its region")
    found += [
        f'more than one limit for region "{region}"' for region in sorted(set(regions)) if regions.count(region) > 1
    ]
    for limit in quota.limits or ():
        found += [
            f'region "{limit.region}": a device without a name'
            for device in limit.region_limit.devices or ()
            if not device.name
        ]
    return found
