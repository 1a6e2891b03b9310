"""The charge plan of a request: which limits it meets, under which keys, with which ceilings and costs.

A plan holds no counts and no time: the same rules, caller and endpoint give the same plan. Plans of callers of one
class differ in little but their keys, so the first plan becomes a template for the others.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.route import OTHER_NAME
from wharf.limits.core.rule import Algorithm, BanRules, ConnectionClass, CountedUnit, Interface, Rule


def get_key_owner(key: str) -> str:
    """Return the owner of a counter: the text before the first space of its key, such as `user:ada`."""
    return key.partition(" ")[0]


def build_shared_key(owner: str) -> str:
    """Return the key under which an owner is counted when it already has the maximum number of counters."""
    return f"{owner} {OTHER_NAME}"


class Charge(msgspec.Struct, frozen=True, gc=False):
    """One limit that applies to a request, with the counter that it charges and what it charges."""

    rule: Rule
    name: str
    """The name of the rule. Rule name and `key` identify the counter, never the ceiling or the window."""
    key: str
    """The counter of the rule: the owner, such as `user:ada`, and further members of the rule's scope."""
    ceiling: int
    cost: int
    """What an admitted request adds to the counter."""
    required: int
    """How much must be left below the ceiling. It is 1 for a meter and for content that the service may mark, because both
    are charged after the request."""
    is_enforced: bool
    """`False` in shadow mode: the limit is counted but refuses nothing."""
    overflow_key: str
    """The key to count under when there are too many keys; empty if the number of keys is not limited."""
    owner: str
    """The owner of the counter, such as `user:ada`. A rule with several counters per owner limits their number by owner."""


class ChargePlan(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The charge plan of a request: every limit that applies to it, with counter, ceiling and cost."""

    endpoint: str
    """The name of the endpoint, such as `GET /users/{name}`."""
    interface: Interface
    resource: str
    """The primary bucket that the headers report."""
    bucket_charge: Charge
    """The charge of that bucket. If `is_free` is set, it is reported but not charged."""
    charges: tuple[Charge, ...]
    """The primary charge first, then the secondary charges in the order of the rules."""
    meter_charges: tuple[Charge, ...]
    """The charges that CPU time is added to when it is known."""
    lease_indexes: tuple[int, ...]
    """Indexes of the charges that hold a concurrency slot while the request runs."""
    ban_subject: str
    """What a ban of this caller applies to: an app, a token or an address."""
    is_ban_shadow: bool
    """Whether a ban is only recorded, not enforced."""
    is_free: bool
    """Whether the request charges no primary limit."""
    overflow_key_indexes: tuple[int, ...]
    """Indexes of the charges that have an overflow key."""
    max_objects: int | None
    """The maximum number of objects in a large-file batch; `None` for no maximum."""
    is_cost_hidden: bool
    """Whether replies must not disclose the cost of the endpoint."""
    is_waiting: bool = False
    """Whether the request mostly waits, such as a long poll or a stream: its elapsed time is not CPU time."""


CORE_RESOURCE: Final = "core"


class EndpointCost(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An endpoint with what its requests cost, and the rules that match them, whichever caller sends them."""

    name: str
    points: int
    """Points that the secondary limits on points charge."""
    content: int
    """1 if the endpoint creates content, else 0."""
    interface: Interface
    is_free: bool
    """Whether its requests charge no primary limit."""
    is_cost_hidden: bool
    """Whether replies must not disclose its cost."""
    primary_rules: tuple[Rule, ...]
    """In order; the first rule that applies to the caller is its bucket."""
    secondary_rules: tuple[Rule, ...]
    other_primary_rules: tuple[tuple[Rule, ...], ...] = ()
    """The primary rules of further readings of the path, in the order of the rules. The strictest bucket of all applies."""
    is_batch: bool = False
    """Whether its requests are batches of large files, whose objects are counted."""
    needs_body: bool = False
    """Whether the body of a request decides what it costs: of a batch, or of a GraphQL query."""
    is_waiting: bool = False
    """Whether its requests mostly wait: they have the class `waiting`, unless they open a websocket."""
    may_create_content: bool = False
    """Whether the service marks some of its requests as creating content. Such a request needs room in the content limits."""
    other_names: tuple[str, ...] = ()
    """The names of its endpoints with the further methods that it names. Limits with a counter for each endpoint count there too."""


def list_primary_rules(endpoint: EndpointCost, caller_class: CallerClass) -> list[Rule]:
    """Return the rules of the buckets that requests of this class of callers can charge: one for each reading of the path."""
    found = []
    for rules in (endpoint.primary_rules, *endpoint.other_primary_rules):
        found += [rule for rule in rules if rule.applies_to(caller_class)][:1]
    return found


def choose_primary_rule(rules: Sequence[Rule], caller_class: CallerClass, query: QueryFacts | None) -> Rule | None:
    """Return the rule of the strictest bucket, which admits the fewest of these requests in a time; `None` without rules.

    If services read a path differently, no spelling then avoids a bucket.
    """
    if len(rules) <= 1:
        return rules[0] if rules else None
    return min(
        rules,
        key=lambda rule: rule.get_base_ceiling(caller_class) / (rule.window_ms * get_primary_cost(rule, query)),
    )


def get_primary_cost(rule: Rule, query: QueryFacts | None) -> int:
    """Return how much a primary rule charges a request."""
    return query.cost if query is not None and is_query_cost_rule(rule) else 1


def is_query_cost_rule(rule: Rule) -> bool:
    """Return whether the rule counts points of GraphQL queries."""
    return rule.counts is CountedUnit.QUERY_COST


def get_secondary_cost(
    rule: Rule, endpoint: EndpointCost, query: QueryFacts | None, connection: ConnectionClass
) -> int | None:
    """Return how much a secondary rule charges the request, or `None` if the rule does not apply to it.

    CPU time is charged after the request, so its cost is 0 here. So is content that the service marks in its reply.
    """
    match rule.counts:
        case CountedUnit.POINTS:
            return endpoint.points if query is None else query.points
        case CountedUnit.CONTENT:
            content = endpoint.content if query is None else query.content
            can_be_marked = endpoint.may_create_content and (query is None or query.has_mutations)
            return content if content or can_be_marked else None
        case CountedUnit.CPU_MS:
            return 0
        case CountedUnit.CONNECTIONS:
            return 1 if rule.connection is connection else None
        case CountedUnit.REQUESTS:
            return 1
        case CountedUnit.QUERY_COST:
            return 1 if query is None else query.cost
        case CountedUnit.FAILED_LOGINS:
            return None  # `build_failed_login_plan` charges these, before the credential is looked up.


def build_charge(rule: Rule, caller: Caller, *, endpoint: str, cost: int) -> Charge:
    """Return the charge of one rule for this caller and endpoint."""
    owner = key = caller.get_scope_value(rule.scope[0])
    parts: list[str] = []
    if rule.is_partitioned:
        parts = [caller.get_scope_value(member) for member in rule.scope[1:]]
        if rule.per_endpoint:
            parts.append(endpoint)
        key = " ".join((owner, *parts))
    is_meter = rule.algorithm is Algorithm.METER
    # What a reply may add later needs room before: CPU time, and content that the service marks.
    is_charged_later = is_meter or (not cost and rule.counts is CountedUnit.CONTENT)
    return Charge(
        rule,
        rule.name,
        key,
        rule.get_ceiling(caller),
        0 if is_meter else cost,
        1 if is_charged_later else cost,
        not rule.shadow and is_enforced_for(owner, rule.enforce_percent),
        _choose_overflow_key(rule, caller, owner, parts),
        owner,
    )


def _choose_overflow_key(rule: Rule, caller: Caller, owner: str, parts: list[str]) -> str:
    """Return the key to count under when the rule has too many counters; empty if it has no maximum.

    `parts` are the members of the counter key after the owner.
    """
    if parts:
        return build_shared_key(owner) if rule.keys_most else ""
    return caller.network if caller.is_anonymous and owner == caller.address else ""


def is_enforced_for(owner: str, percent: int) -> bool:
    """Return whether the limit is enforced for this owner, if it is enforced for `percent` of all owners.

    The result depends only on the owner's name, so it is the same in every process.
    """
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
    max_objects: int | None = None,
    is_waiting: bool = False,
) -> ChargePlan:
    """Return the charge plan of these charges, with the values derived from them, such as the indexes of leases."""
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
        overflow_key_indexes=tuple(index for index, charge in enumerate(charges) if charge.overflow_key),
        max_objects=max_objects,
        is_cost_hidden=is_cost_hidden,
        is_waiting=is_waiting,
    )


ADDRESS_PREFIX: Final = "address:"
"""Begins the name of an address as the subject of a ban."""


def is_ban_shadow(caller: Caller, ban: BanRules) -> bool:
    """Return whether a ban of this caller is only recorded, not enforced."""
    return is_subject_shadow(caller.ban_subject, ban)


def is_subject_shadow(subject: str, ban: BanRules) -> bool:
    """Return whether a ban of this subject is only recorded, not enforced. `subject` is an app, a token or an address."""
    return ban.shadow or (ban.addresses_shadow and subject.startswith(ADDRESS_PREFIX))


class PlanTemplate(msgspec.Struct, frozen=True, eq=False):
    """The charge plan of one caller, from which the plans of other callers of the same class are copied."""

    plan: ChargePlan
    is_shared: tuple[bool, ...]
    """For each charge, whether callers of the class differ only in its key."""
    meters: tuple[int, ...]
    """Indexes of the charges that count CPU time."""


def build_template(plan: ChargePlan, caller: Caller) -> PlanTemplate:
    """Return the template for the class of this caller, made from its charge plan."""
    return PlanTemplate(
        plan=plan,
        is_shared=tuple(_has_common_charge(charge.rule, caller.caller_class) for charge in plan.charges),
        meters=tuple(i for i, charge in enumerate(plan.charges) if charge.rule.counts is CountedUnit.CPU_MS),
    )


def _has_common_charge(rule: Rule, caller_class: CallerClass) -> bool:
    """Return whether the charges of a rule for all callers of a class differ only in owner and key."""
    is_scaled = rule.scale is not None and caller_class is CallerClass.INSTALLATION
    return rule.scope == ("caller",) and not rule.per_endpoint and rule.enforce_percent >= 100 and not is_scaled


def apply_template(template: PlanTemplate, caller: Caller, ban: BanRules) -> ChargePlan:
    """Return the charge plan of a caller of the template's class, for the same endpoint and query cost.

    A charge that differs only in owner and key is copied with the new owner, which is faster than applying the rule.
    """
    base = template.plan
    owner = caller.owner
    overflow_key = caller.network if caller.is_anonymous and owner == caller.address else ""
    charges = tuple(
        [
            Charge(c.rule, c.name, owner, c.ceiling, c.cost, c.required, c.is_enforced, overflow_key, owner)
            if is_common
            else build_charge(c.rule, caller, endpoint=base.endpoint, cost=c.cost)
            for c, is_common in zip(base.charges, template.is_shared, strict=True)
        ]
    )
    bucket_charge = (
        build_charge(base.bucket_charge.rule, caller, endpoint=base.endpoint, cost=1) if base.is_free else charges[0]
    )
    return ChargePlan(
        base.endpoint,
        base.interface,
        base.resource,
        bucket_charge,
        charges,
        tuple([charges[index] for index in template.meters]),
        base.lease_indexes,
        caller.ban_subject,
        is_ban_shadow(caller, ban),
        base.is_free,
        base.overflow_key_indexes,
        base.max_objects,
        base.is_cost_hidden,
        base.is_waiting,
    )
