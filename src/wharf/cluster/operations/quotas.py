"""Create, replace and delete quotas, and compute how much of a quota is used.

Usage is not stored: it is summed over allocations for each request.
"""

from base64 import b64encode
from typing import Final

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, build_delete_decision, build_store_decision
from wharf.cluster.scheduling.capacity.quotas import UsageAdder, convert_usage_to_limit, sum_quota_usage
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import MEMBERS, NAMESPACES_WITH_QUOTA, QUOTAS
from wharf.contract.model import quotas
from wharf.contract.model.jobs.validation.findings import ValidationProblem, format_problems
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.quotas import Quota, QuotaLimit, QuotaUsage, RegionLimit
from wharf.contract.model.record import hash_content
from wharf.contract.model.refusal import invalid_request, not_found

STORED_WRITE_KIND: Final = "quota-stored"
"""The name in the log of a write that stores a quota."""
DELETED_WRITE_KIND: Final = "quota-deleted"
"""The name in the log of a write that deletes a quota."""


def store_quota(snapshot: Replica, requested: Quota, *, cause: str = "") -> Decision[int]:
    """Return the decision that creates the quota or replaces the one of the same name. Raises if it is invalid.

    Nothing is written if the stored quota is identical.
    """
    problems = quotas.list_quota_problems(requested)
    if problems:
        problem_text = format_problems([ValidationProblem("", problem) for problem in problems])
        raise invalid_request(f'Invalid quota "{requested.name}": {problem_text.rstrip()}')
    limits = tuple(replace(limit, hash=hash_content(limit)) for limit in requested.limits or ())
    return build_store_decision(
        snapshot,
        QUOTAS,
        replace(requested, limits=limits),
        snapshot.get(QUOTAS, requested.name),
        STORED_WRITE_KIND,
        Cause(CauseKind.REQUEST, cause),
        build_reply=lambda index, _quota: index,
    )


def delete_quota(snapshot: Replica, name: str, *, cause: str = "") -> Decision[int]:
    """Return the decision that deletes the quota.

    Raises if it does not exist, or while a namespace uses it, because that namespace would suddenly have no limit.
    """
    if snapshot.get(QUOTAS, name) is None:
        raise not_found(f'quota "{name}" not found')
    namespaces = sorted(namespace.name for namespace in snapshot.list_by_index(NAMESPACES_WITH_QUOTA, name))
    if namespaces:
        raise invalid_request(f'quota "{name}" is still attached to namespaces: {", ".join(namespaces)}')
    return build_delete_decision(
        snapshot, QUOTAS, name, write_kind=DELETED_WRITE_KIND, cause=Cause(CauseKind.REQUEST, cause)
    )


def compute_quota_usage(snapshot: Replica, quota: Quota, adder: UsageAdder | None = None) -> QuotaUsage:
    """Return how much of each limit of the quota is used, computed from all allocations of its namespaces.

    `adder` has added up all allocations already; without it, they are added up here, which takes long. Limits of other
    regions are left out, because this region does not know their usage.
    """
    local_regions = {member.region for member in snapshot.iter_all(MEMBERS)}
    limits = [limit for limit in quota.limits or () if limit.region in local_regions]
    add_up = sum_quota_usage if adder is None else adder.sum_quota_usage
    total = convert_usage_to_limit(add_up(snapshot, quota.name)) if limits else RegionLimit()
    used = {
        b64encode(limit.hash).decode(): QuotaLimit(region=limit.region, region_limit=total, hash=limit.hash)
        for limit in limits
    }
    return QuotaUsage(name=quota.name, used=used, create_index=quota.create_index, modify_index=quota.modify_index)
