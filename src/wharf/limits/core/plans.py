"""Which limits a request meets, under which keys, with which ceilings and costs: all that a store needs to count it.

A plan is a value: the same rules, caller and endpoint give the same plan. It holds no counters and no moment.

What a rule charges a caller at an endpoint, and the plan that these charges make together.

Plans of callers of one kind differ in little but the keys. So the first is made by the rules and kept as a mold, from
which the others are cast.
"""

import zlib
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.route import OTHER
from wharf.limits.core.rule import Algorithm, BanRules, ConnectionClass, CountedUnit, Interface, Rule


def get_key_owner(key: str) -> str:
    """The first member of a key: no scope value holds a space."""
    return key.partition(" ")[0]


def build_shared_key(owner: str) -> str:
    """The key that all counters of an owner share which would be too many."""
    return f"{owner} {OTHER}"


class Charge(msgspec.Struct, frozen=True, gc=False):
    """One limit that a request meets."""

    rule: Rule
    name: str
    """The rule's name, half of the counter's key. The other half is `key`; never the ceiling or the window."""
    key: str
    ceiling: int
    cost: int
    """What is charged when the request is admitted."""
    required: int
    """How much room there must be. A meter is charged afterwards, and needs room for 1."""
    is_enforced: bool
    overflow_key: str
    """The key to count under when there are too many keys; empty when this key needs no bound."""
    owner: str
    """Whose keys are bounded together, for a rule with several counters an owner."""


class ChargePlan(msgspec.Struct, frozen=True, eq=False):
    endpoint: str
    interface: Interface
    resource: str
    """The primary bucket that headers show."""
    bucket_charge: Charge
    """The charge of that bucket. With `is_free` it is shown and not charged."""
    charges: tuple[Charge, ...]
    """The primary first, then the secondary limits in the order of the rules."""
    meter_charges: tuple[Charge, ...]
    """Those of the charges that are charged with CPU time when it is known."""
    lease_indexes: tuple[int, ...]
    """Which of the charges hold a slot while the request runs."""
    ban_subject: str
    is_ban_shadow: bool
    is_free: bool
    bounded_indexes: tuple[int, ...]
    """Which of the charges have a spare key."""
    max_objects: int | None
    is_cost_hidden: bool


CORE_RESOURCE: Final = "core"


class EndpointCost(msgspec.Struct, frozen=True, eq=False):
    """Where a request goes, and what it costs there whoever sends it."""

    name: str
    points: int
    content: int
    interface: Interface
    is_free: bool
    is_cost_hidden: bool
    primary_rules: tuple[Rule, ...]
    """In order; the first that applies to the caller is the bucket."""
    secondary_rules: tuple[Rule, ...]


def is_query_cost_rule(rule: Rule) -> bool:
    return rule.counts is CountedUnit.QUERY_COST


def get_secondary_cost(
    rule: Rule, endpoint: EndpointCost, query: QueryFacts | None, connection: ConnectionClass
) -> int | None:
    """What a request is charged by a secondary rule; None when the rule is not about this request."""
    match rule.counts:
        case CountedUnit.POINTS:
            return endpoint.points if query is None else query.points
        case CountedUnit.CONTENT:
            return (endpoint.content if query is None else query.content) or None
        case CountedUnit.CPU_MS:
            return 0
        case CountedUnit.CONNECTIONS:
            return 1 if rule.connection is connection else None
        case CountedUnit.REQUESTS:
            return 1
        case CountedUnit.QUERY_COST:
            return 1 if query is None else query.cost
        case CountedUnit.FAILED_LOGINS:
            return None  # Asked for before a credential is looked up, not here.


def build_charge(rule: Rule, caller: Caller, *, endpoint: str, cost: int) -> Charge:
    owner = key = caller.get_scope_value(rule.scope[0])
    parts: list[str] = []
    if rule.is_partitioned:
        parts = [caller.get_scope_value(member) for member in rule.scope[1:]]
        if rule.per_endpoint:
            parts.append(endpoint)
        key = " ".join((owner, *parts))
    is_meter = rule.algorithm is Algorithm.METER
    return Charge(
        rule,
        rule.name,
        key,
        rule.get_ceiling(caller),
        0 if is_meter else cost,
        1 if is_meter else cost,
        not rule.shadow and is_enforced_for(owner, rule.enforce_percent),
        _spare_key(rule, caller, owner, parts),
        owner,
    )


def _spare_key(rule: Rule, caller: Caller, owner: str, parts: list[str]) -> str:
    """Where a key is counted that would be one too many."""
    if parts:
        return build_shared_key(owner) if rule.keys_most else ""
    return caller.network if caller.is_anonymous and owner == caller.address else ""


def is_enforced_for(owner: str, percent: int) -> bool:
    """Whether the owner is among this share of all owners. The same ones at every request, in every process."""
    return percent >= 100 or zlib.crc32(owner.encode()) % 100 < percent


def build_plan(
    endpoint: str,
    caller: Caller,
    ban: BanRules,
    *,
    bucket_charge: Charge,
    charges: tuple[Charge, ...],
    interface: Interface = Interface.REST,
    is_free: bool = False,
    is_cost_hidden: bool = False,
) -> ChargePlan:
    return ChargePlan(
        endpoint=endpoint,
        interface=interface,
        resource=bucket_charge.rule.resource or CORE_RESOURCE,
        bucket_charge=bucket_charge,
        charges=charges,
        meter_charges=tuple(charge for charge in charges if charge.rule.counts is CountedUnit.CPU_MS),
        lease_indexes=tuple(index for index, charge in enumerate(charges) if charge.rule.algorithm is Algorithm.LEASES),
        ban_subject=caller.ban_subject,
        is_ban_shadow=is_ban_shadow(caller, ban),
        is_free=is_free,
        bounded_indexes=tuple(index for index, charge in enumerate(charges) if charge.overflow_key),
        max_objects=bucket_charge.rule.objects_most,
        is_cost_hidden=is_cost_hidden,
    )


def is_ban_shadow(caller: Caller, ban: BanRules) -> bool:
    return ban.shadow or (ban.addresses_shadow and caller.ban_subject == caller.address)


class PlanTemplate(msgspec.Struct, frozen=True, eq=False):
    """The plan of one caller, and which of its charges are those of every caller of the kind but for the key."""

    plan: ChargePlan
    is_shared: tuple[bool, ...]
    meters: tuple[int, ...]


def build_template(plan: ChargePlan, caller: Caller) -> PlanTemplate:
    return PlanTemplate(
        plan=plan,
        is_shared=tuple(_is_alike(charge.rule, caller.caller_class) for charge in plan.charges),
        meters=tuple(i for i, charge in enumerate(plan.charges) if charge.rule.counts is CountedUnit.CPU_MS),
    )


def _is_alike(rule: Rule, case: CallerClass) -> bool:
    is_scaled = rule.scale is not None and case is CallerClass.INSTALLATION
    return rule.scope == ("caller",) and not rule.per_endpoint and rule.enforce_percent >= 100 and not is_scaled


def apply_template(template: PlanTemplate, caller: Caller, ban: BanRules) -> ChargePlan:
    """The plan of another caller of the same case, at the same endpoint, for a query of the same cost."""
    like = template.plan
    owner = caller.owner
    spare_key = caller.network if caller.is_anonymous and owner == caller.address else ""
    charges = tuple(
        [
            Charge(c.rule, c.name, owner, c.ceiling, c.cost, c.required, c.is_enforced, spare_key, owner)
            if is_alike
            else build_charge(c.rule, caller, endpoint=like.endpoint, cost=c.cost)
            for c, is_alike in zip(like.charges, template.is_shared, strict=True)
        ]
    )
    shown = (
        build_charge(like.bucket_charge.rule, caller, endpoint=like.endpoint, cost=1) if like.is_free else charges[0]
    )
    return ChargePlan(
        endpoint=like.endpoint,
        interface=like.interface,
        resource=like.resource,
        bucket_charge=shown,
        charges=charges,
        meter_charges=tuple([charges[index] for index in template.meters]),
        lease_indexes=like.lease_indexes,
        ban_subject=caller.ban_subject,
        is_ban_shadow=is_ban_shadow(caller, ban),
        is_free=like.is_free,
        bounded_indexes=like.bounded_indexes,
        max_objects=like.max_objects,
        is_cost_hidden=like.is_cost_hidden,
    )
