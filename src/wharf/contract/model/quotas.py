"""Quotas: limits on the resources that namespaces may use together in a region.

Holds the limits only. The usage is computed from the allocations and never stored.
"""

from wharf.contract.model.jobs.resources import NUMA, RequestedDevice
from wharf.contract.model.names import NAME_REGEX, is_valid_name, list_description_problems
from wharf.contract.model.record import Record


class QuotaStorage(Record):
    """Limits on stored data, in MB. 0 means no limit; a negative number allows nothing."""

    variables_mb: int = 0
    host_volumes_mb: int = 0


class RegionLimit(Record):
    """Limits on the resources of jobs in one region. 0 means no limit; a negative number allows nothing."""

    cpu: int = 0  # MHz
    cores: int = 0  # Whole cores.
    memory_mb: int = 0
    memory_max_mb: int = 0  # Memory limits of tasks, which may be above their reservations.
    count: int = 0  # Allocations.
    devices: tuple[RequestedDevice, ...] | None = None
    numa: NUMA | None = None
    storage: QuotaStorage | None = None


class QuotaLimit(Record):
    """The limits of a quota in one region."""

    region: str = ""
    region_limit: RegionLimit = RegionLimit()
    hash: bytes = b""  # A digest of the content; identifies the limit in a `QuotaUsage`.


class Quota(Record):
    """Limits on the resources that the jobs of all namespaces with this quota may use together."""

    name: str
    description: str = ""
    limits: tuple[QuotaLimit, ...] | None = None
    hash: bytes = b""  # A digest of the content.
    create_index: int = 0
    modify_index: int = 0


class QuotaUsage(Record):
    """How much of a quota is in use in this region. It is computed for replies and never stored."""

    name: str
    used: dict[str, QuotaLimit] | None = None  # The resources in use, by the hash of the limit.
    create_index: int = 0
    modify_index: int = 0


def list_quota_problems(quota: Quota) -> list[str]:
    """Return an error text for each thing that is wrong with a submitted quota; empty if it is valid."""
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
