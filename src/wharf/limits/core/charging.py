"""What a rule charges a caller at an endpoint, and the plan that these charges make together.

Plans of callers of one kind differ in little but the keys. So the first is made by the rules and kept as a mold, from
which the others are cast.
"""

import zlib
from typing import Final

import msgspec

from wharf.limits.core.caller import Caller, Case
from wharf.limits.core.plan import Charge, Plan, shared_key
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.rule import Algorithm, BanRules, Connection, Counts, Interface, Rule

CORE: Final = "core"


class Endpoint(msgspec.Struct, frozen=True, eq=False):
    """Where a request goes, and what it costs there whoever sends it."""

    name: str
    points: int
    content: int
    interface: Interface
    is_free: bool
    hides_cost: bool
    primaries: tuple[Rule, ...]
    """In order; the first that applies to the caller is the bucket."""
    secondaries: tuple[Rule, ...]


def counts_query(rule: Rule) -> bool:
    return rule.counts is Counts.QUERY_COST


def secondary_cost(rule: Rule, endpoint: Endpoint, query: QueryFacts | None, connection: Connection) -> int | None:
    """What a request is charged by a secondary rule; None when the rule is not about this request."""
    match rule.counts:
        case Counts.POINTS:
            return endpoint.points if query is None else query.points
        case Counts.CONTENT:
            return (endpoint.content if query is None else query.content) or None
        case Counts.CPU_MS:
            return 0
        case Counts.CONNECTIONS:
            return 1 if rule.connection is connection else None
        case Counts.REQUESTS:
            return 1
        case Counts.QUERY_COST:
            return 1 if query is None else query.cost
        case Counts.FAILED_LOGINS:
            return None  # Asked for before a credential is looked up, not here.


def charge_of(rule: Rule, caller: Caller, *, endpoint: str, cost: int) -> Charge:
    owner = key = caller.scope_value(rule.scope[0])
    parts: list[str] = []
    if rule.is_partitioned:
        parts = [caller.scope_value(member) for member in rule.scope[1:]]
        if rule.per_endpoint:
            parts.append(endpoint)
        key = " ".join((owner, *parts))
    is_meter = rule.algorithm is Algorithm.METER
    return Charge(
        rule,
        rule.name,
        key,
        rule.ceiling_for(caller),
        0 if is_meter else cost,
        1 if is_meter else cost,
        not rule.shadow and is_enforced_for(owner, rule.enforce_percent),
        _spare_key(rule, caller, owner, parts),
        owner,
    )


def _spare_key(rule: Rule, caller: Caller, owner: str, parts: list[str]) -> str:
    """Where a key is counted that would be one too many."""
    if parts:
        return shared_key(owner) if rule.keys_most else ""
    return caller.network if caller.is_anonymous and owner == caller.address else ""


def is_enforced_for(owner: str, percent: int) -> bool:
    """Whether the owner is among this share of all owners. The same ones at every request, in every process."""
    return percent >= 100 or zlib.crc32(owner.encode()) % 100 < percent


def plan_of(
    endpoint: str,
    caller: Caller,
    ban: BanRules,
    *,
    shown: Charge,
    charges: tuple[Charge, ...],
    interface: Interface = Interface.REST,
    is_free: bool = False,
    hides_cost: bool = False,
) -> Plan:
    return Plan(
        endpoint=endpoint,
        interface=interface,
        resource=shown.rule.resource or CORE,
        shown=shown,
        charges=charges,
        meters=tuple(charge for charge in charges if charge.rule.counts is Counts.CPU_MS),
        leases=tuple(index for index, charge in enumerate(charges) if charge.rule.algorithm is Algorithm.LEASES),
        ban_subject=caller.ban_subject,
        ban_is_shadow=is_ban_shadow(caller, ban),
        is_free=is_free,
        bounded=tuple(index for index, charge in enumerate(charges) if charge.spare_key),
        objects_most=shown.rule.objects_most,
        hides_cost=hides_cost,
    )


def is_ban_shadow(caller: Caller, ban: BanRules) -> bool:
    return ban.shadow or (ban.addresses_shadow and caller.ban_subject == caller.address)


class Mold(msgspec.Struct, frozen=True, eq=False):
    """The plan of one caller, and which of its charges are those of every caller of the kind but for the key."""

    plan: Plan
    is_alike: tuple[bool, ...]
    meters: tuple[int, ...]


def mold_of(plan: Plan, caller: Caller) -> Mold:
    return Mold(
        plan=plan,
        is_alike=tuple(_is_alike(charge.rule, caller.case) for charge in plan.charges),
        meters=tuple(i for i, charge in enumerate(plan.charges) if charge.rule.counts is Counts.CPU_MS),
    )


def _is_alike(rule: Rule, case: Case) -> bool:
    is_scaled = rule.scale is not None and case is Case.INSTALLATION
    return rule.scope == ("caller",) and not rule.per_endpoint and rule.enforce_percent >= 100 and not is_scaled


def cast_plan(mold: Mold, caller: Caller, ban: BanRules) -> Plan:
    """The plan of another caller of the same case, at the same endpoint, for a query of the same cost."""
    like = mold.plan
    owner = caller.owner
    spare_key = caller.network if caller.is_anonymous and owner == caller.address else ""
    charges = tuple(
        [
            Charge(c.rule, c.name, owner, c.ceiling, c.cost, c.needs, c.is_enforced, spare_key, owner)
            if is_alike
            else charge_of(c.rule, caller, endpoint=like.endpoint, cost=c.cost)
            for c, is_alike in zip(like.charges, mold.is_alike, strict=True)
        ]
    )
    shown = charge_of(like.shown.rule, caller, endpoint=like.endpoint, cost=1) if like.is_free else charges[0]
    return Plan(
        endpoint=like.endpoint,
        interface=like.interface,
        resource=like.resource,
        shown=shown,
        charges=charges,
        meters=tuple([charges[index] for index in mold.meters]),
        leases=like.leases,
        ban_subject=caller.ban_subject,
        ban_is_shadow=is_ban_shadow(caller, ban),
        is_free=like.is_free,
        bounded=like.bounded,
        objects_most=like.objects_most,
        hides_cost=like.hides_cost,
    )
