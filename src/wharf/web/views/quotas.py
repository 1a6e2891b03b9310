"""The list of quotas and the page of one."""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.model.quotas import Quota, QuotaLimit, QuotaUsage, RegionLimit
from wharf.web.rendering import build_link
from wharf.web.views.listing import CutList, cut_list
from wharf.web.views.nodes import Amount

DIMENSIONS: Final = (
    ("cpu", "CPU", "MHz"),
    ("cores", "Cores", ""),
    ("memory_mb", "Memory", "MB"),
    ("memory_max_mb", "Memory limits", "MB"),
    ("count", "Allocations", ""),
)


class RegionView(msgspec.Struct, frozen=True):
    """The limits of a quota in one region, with the numbers of the form that changes them."""

    region: str
    amounts: tuple[Amount, ...]
    """Only what is limited. A capacity of 0: nothing is allowed."""
    cpu: int = 0
    memory: int = 0
    count: int = 0
    is_used_here: bool = True
    """Whether the usage is known: a server knows only that of its own region."""


class QuotaRow(msgspec.Struct, frozen=True):
    """A quota in the list."""

    name: str
    url: str
    description: str
    amounts: tuple[Amount, ...]


class QuotaView(msgspec.Struct, frozen=True):
    """The page of a quota."""

    name: str
    description: str
    regions: tuple[RegionView, ...]


def build_quota_list(quotas: Sequence[Quota], usages: Sequence[QuotaUsage], prefix: str) -> CutList[QuotaRow]:
    """Return the list of quotas."""
    usage_by_name = {usage.name: usage for usage in usages}

    def build_row(quota: Quota) -> QuotaRow:
        usage = usage_by_name.get(quota.name)
        amounts = [amount for limit in quota.limits or () for amount in _build_region(limit, usage).amounts]
        return QuotaRow(quota.name, build_link("quotas", quota.name), quota.description, tuple(amounts))

    return cut_list(quotas, build_row, prefix)


def build_quota_view(quota: Quota, usage: QuotaUsage) -> QuotaView:
    """Return the page of a quota."""
    return QuotaView(
        name=quota.name,
        description=quota.description,
        regions=tuple(_build_region(limit, usage) for limit in quota.limits or ()),
    )


def _build_region(limit: QuotaLimit, usage: QuotaUsage | None) -> RegionView:
    found = _find_used(limit, usage)
    used = found or RegionLimit()
    return RegionView(
        region=limit.region,
        amounts=tuple(
            Amount(title, unit, getattr(used, name), max(0, getattr(limit.region_limit, name)))
            for name, title, unit in DIMENSIONS
            if getattr(limit.region_limit, name)
        ),
        cpu=limit.region_limit.cpu,
        memory=limit.region_limit.memory_mb,
        count=limit.region_limit.count,
        is_used_here=found is not None,
    )


def _find_used(limit: QuotaLimit, usage: QuotaUsage | None) -> RegionLimit | None:
    """Return what is used of a limit, or `None` if that is not known: the limit is that of another region."""
    for used in (usage.used or {}).values() if usage is not None else ():
        if used.region == limit.region:
            return used.region_limit
    return None
