"""The list of quotas and the page of one."""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.model.quotas import Quota, QuotaLimit, QuotaUsage, RegionLimit
from wharf.web.rendering import build_link
from wharf.web.views.field_errors import FormView
from wharf.web.views.listing import CutList, cut_list
from wharf.web.views.nodes import Amount

DIMENSIONS: Final = (
    ("cpu", "CPU", "MHz"),
    ("cores", "Cores", ""),
    ("memory_mb", "Memory", "MB"),
    ("memory_max_mb", "Memory limits", "MB"),
    ("count", "Allocations", ""),
)
FIELD_HINTS: Final = (
    ("invalid name", "name"),
    ("description", "description"),
    ("must name its region", "region"),
    ("cpu:", "cpu"),
    ("memory:", "memory"),
    ("count:", "count"),
)
"""Parts of the texts of mistakes, and their fields."""
NO_LIMITS: Final = {"cpu": "0", "memory": "0", "count": "0"}
NEW_QUOTA_FORM: Final = FormView({"region": "global", **NO_LIMITS})


class RegionView(msgspec.Struct, frozen=True):
    """The limits of a quota in one region, with the form that changes them."""

    region: str
    amounts: tuple[Amount, ...]
    """Only what is limited. A capacity of 0: nothing is allowed."""
    form: FormView
    is_used_here: bool = True
    """Whether the usage is known: a server knows only that of its own region."""


class QuotaRow(msgspec.Struct, frozen=True):
    """A quota in the list."""

    name: str
    url: str
    description: str
    amounts: tuple[Amount, ...]


class QuotaListView(msgspec.Struct, frozen=True):
    """The list of quotas, with the form that creates one."""

    list: CutList[QuotaRow]
    form: FormView


class QuotaView(msgspec.Struct, frozen=True):
    """The page of a quota."""

    name: str
    description: str
    regions: tuple[RegionView, ...]
    form: FormView
    """The form that limits another region."""


def build_quota_list(quotas: Sequence[Quota], usages: Sequence[QuotaUsage], prefix: str) -> CutList[QuotaRow]:
    """Return the list of quotas."""
    usage_by_name = {usage.name: usage for usage in usages}

    def build_row(quota: Quota) -> QuotaRow:
        usage = usage_by_name.get(quota.name)
        amounts = [amount for limit in quota.limits or () for amount in _build_region(limit, usage).amounts]
        return QuotaRow(quota.name, build_link("quotas", quota.name), quota.description, tuple(amounts))

    return cut_list(quotas, build_row, prefix)


def build_quota_view(quota: Quota, usage: QuotaUsage, refused: FormView | None = None) -> QuotaView:
    """Return the page of a quota. `refused`: its form for the region that the form names, if it was refused."""
    limits = quota.limits or ()
    refused_region = None if refused is None else refused.values.get("region", "").strip()
    is_of_other_region = refused_region not in {limit.region for limit in limits}
    other = FormView({"description": quota.description, **NO_LIMITS})
    return QuotaView(
        name=quota.name,
        description=quota.description,
        regions=tuple(
            _build_region(limit, usage, quota.description, refused if limit.region == refused_region else None)
            for limit in limits
        ),
        form=refused if refused is not None and is_of_other_region else other,
    )


def _build_region(
    limit: QuotaLimit, usage: QuotaUsage | None, description: str = "", refused: FormView | None = None
) -> RegionView:
    found = _find_used(limit, usage)
    used = found or RegionLimit()
    return RegionView(
        region=limit.region,
        amounts=tuple(
            Amount(title, unit, getattr(used, name), max(0, getattr(limit.region_limit, name)))
            for name, title, unit in DIMENSIONS
            if getattr(limit.region_limit, name)
        ),
        form=refused if refused is not None else FormView(_list_values(limit, description)),
        is_used_here=found is not None,
    )


def _list_values(limit: QuotaLimit, description: str) -> dict[str, str]:
    """Return the limits of one region as their form has them, with the description of the quota."""
    amounts = limit.region_limit
    return {
        "description": description,
        "cpu": str(amounts.cpu),
        "memory": str(amounts.memory_mb),
        "count": str(amounts.count),
    }


def _find_used(limit: QuotaLimit, usage: QuotaUsage | None) -> RegionLimit | None:
    """Return what is used of a limit, or `None` if that is not known: the limit is that of another region."""
    for used in (usage.used or {}).values() if usage is not None else ():
        if used.region == limit.region:
            return used.region_limit
    return None
