"""What people do to quotas, and how much of one is used: a sum over allocations, made when it is asked for."""

from base64 import b64encode
from typing import Final

from msgspec.structs import replace

from wharf.model import quota as quotas
from wharf.model.changes import THIS, Cause, CauseKind, Write
from wharf.model.content import content_hash
from wharf.model.quota import Quota, QuotaLimit, QuotaUsage, RegionLimit
from wharf.model.refusal import invalid, unknown
from wharf.model.validation.findings import Problem, multi_error
from wharf.operations.decision import Decision
from wharf.scheduling.quota import used_by, used_limit
from wharf.state import Replica
from wharf.state.tables import MEMBERS, NAMESPACES_WITH_QUOTA, QUOTAS

STORED: Final = "quota-stored"
DELETED: Final = "quota-deleted"


def store(snapshot: Replica, wanted: Quota, *, cause: str = "") -> Decision[int]:
    """Create the quota, or replace what is written of it. The same again writes nothing."""
    problems = quotas.problems(wanted)
    if problems:
        found = multi_error([Problem("", problem) for problem in problems])
        raise invalid(f'Invalid quota "{wanted.name}": {found.rstrip()}')
    limits = tuple(replace(limit, hash=content_hash(limit)) for limit in wanted.limits or ())
    quota = replace(wanted, limits=limits, hash=b"")
    stored = snapshot.get(QUOTAS, wanted.name)
    quota = replace(
        quota, hash=content_hash(quota), create_index=THIS if stored is None else stored.create_index, modify_index=0
    )
    if stored is not None and stored.hash == quota.hash:
        return Decision(None, lambda _index: stored.modify_index)
    write = Write(STORED, Cause(CauseKind.REQUEST, cause), [QUOTAS.put(quota)], [snapshot.as_seen(QUOTAS, wanted.name)])
    return Decision(write, lambda index: index)


def delete(snapshot: Replica, name: str, *, cause: str = "") -> Decision[int]:
    """Take the quota away. Refused while a namespace names it: that one would be without bound all at once."""
    if snapshot.get(QUOTAS, name) is None:
        raise unknown(f'quota "{name}" not found')
    bound = sorted(namespace.name for namespace in snapshot.those(NAMESPACES_WITH_QUOTA, name))
    if bound:
        raise invalid(f'quota "{name}" is still attached to namespaces: {", ".join(bound)}')
    write = Write(DELETED, Cause(CauseKind.REQUEST, cause), [QUOTAS.drop(name)], [snapshot.as_seen(QUOTAS, name)])
    return Decision(write, lambda index: index)


def usage_of(snapshot: Replica, quota: Quota) -> QuotaUsage:
    """What the quota's namespaces use of each limit. Of other regions this one cannot tell: nothing is shown for them."""
    here = {member.region for member in snapshot.all(MEMBERS)}
    limits = [limit for limit in quota.limits or () if limit.region in here]
    total = used_limit(used_by(snapshot, quota.name)) if limits else RegionLimit()
    used = {
        b64encode(limit.hash).decode(): QuotaLimit(region=limit.region, region_limit=total, hash=limit.hash)
        for limit in limits
    }
    return QuotaUsage(name=quota.name, used=used, create_index=quota.create_index, modify_index=quota.modify_index)
