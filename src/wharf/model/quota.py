"""Quotas: how much of a region the namespaces that name one may use together.

The limits only; what is used follows from the allocations and is never stored.
"""

from wharf.model.record import Record
from wharf.model.resources import NUMA, RequestedDevice


class QuotaStorage(Record):
    variables_mb: int = 0
    host_volumes_mb: int = 0


class RegionLimit(Record):
    """0: no limit. Below 0: none allowed."""

    cpu: int = 0  # MHz
    cores: int = 0
    memory_mb: int = 0
    memory_max_mb: int = 0
    devices: tuple[RequestedDevice, ...] | None = None
    numa: NUMA | None = None
    storage: QuotaStorage | None = None


class QuotaLimit(Record):
    region: str
    region_limit: RegionLimit = RegionLimit()
    hash: bytes = b""


class Quota(Record):
    name: str
    description: str = ""
    limits: tuple[QuotaLimit, ...] | None = None
    create_index: int = 0
    modify_index: int = 0
