"""Rules made ready for deciding: from method, path and caller to the plan of one request.

A rulebook never changes; a reload makes another. It remembers endpoints and plans, within bounds, because making them
costs more than the counting does.
"""

import hashlib
from typing import Final

import msgspec

from wharf.limits.core.caller import Caller, Case
from wharf.limits.core.charging import (
    Endpoint,
    Mold,
    cast_plan,
    charge_of,
    counts_query,
    mold_of,
    plan_of,
    secondary_cost,
)
from wharf.limits.core.plan import Charge, Plan
from wharf.limits.core.request import QueryFacts, Request
from wharf.limits.core.route import RouteTree, parse_pattern, shape_of, tidy_path
from wharf.limits.core.rule import (
    Connection,
    Counts,
    EndpointRule,
    Interface,
    Rule,
    RuleSet,
)

REMEMBERED_PATHS: Final = 32_768
REMEMBERED_PLANS: Final = 16_384
REMEMBERED_MOLDS: Final = 8_192
REMEMBERED_PATH_CHARACTERS: Final = 256

# What may refuse a request that is free: whoever is limited can still ask when that ends.
MET_BY_FREE: Final = frozenset({Counts.POINTS, Counts.CONNECTIONS})


class Rulebook:
    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.hash = hash_rules(rules)
        self.by_name = {rule.name: rule for rule in rules.rules}
        self._everywhere = frozenset(rule.name for rule in rules.rules if not rule.match)
        self._routes: RouteTree[Rule | EndpointRule] = RouteTree()
        entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
        for entry in entries:
            for text in entry.match:
                self._routes.add(parse_pattern(text), entry)
        self._endpoints: dict[tuple[str, str], Endpoint] = {}  # By method and path as they were sent.
        self._alike: dict[tuple[str, frozenset[str], int], Endpoint] = {}
        self._molds: dict[tuple[Endpoint, Case, QueryFacts | None], Mold] = {}
        self._plans: dict[tuple[Caller, Endpoint, QueryFacts | None], Plan] = {}

    def endpoint(self, method: str, path: str) -> Endpoint:
        found = self._endpoints.get((method, path))
        if found is None:
            found = self._make_endpoint(method, tidy_path(path))
            if len(path) <= REMEMBERED_PATH_CHARACTERS:
                if len(self._endpoints) >= REMEMBERED_PATHS:
                    self._endpoints.clear()
                self._endpoints[method, path] = found
        return found

    def plan(self, request: Request) -> Plan:
        caller = request.caller
        endpoint = self._endpoints.get((request.method, request.path)) or self.endpoint(request.method, request.path)
        if request.connection is not Connection.PLAIN:
            return self._make_plan(caller, endpoint, request.query, request.connection)
        key = (caller, endpoint, request.query)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= REMEMBERED_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._cast_plan(caller, endpoint, request.query)
        return plan

    def _cast_plan(self, caller: Caller, endpoint: Endpoint, query: QueryFacts | None) -> Plan:
        """Make the first plan for callers of a kind by the rules, and those of all others like it."""
        kind = (endpoint, caller.case, query)
        mold = self._molds.get(kind)
        if mold is not None:
            return cast_plan(mold, caller, self.rules.ban)
        plan = self._make_plan(caller, endpoint, query, Connection.PLAIN)
        if len(self._molds) >= REMEMBERED_MOLDS:
            self._molds.clear()
        self._molds[kind] = mold_of(plan, caller)
        return plan

    def primary_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """Every primary bucket that this caller has, in the order of the rules: what the status endpoint shows."""
        return tuple(
            charge_of(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if rule.is_primary and rule.applies_to(caller.case)
        )

    def secondary_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """The secondary limits with one counter for this caller. Those by endpoint have many and are not among them."""
        return tuple(
            charge_of(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if not rule.is_primary and not rule.hidden and not rule.per_endpoint and rule.applies_to(caller.case)
        )

    def shown_charge(self, caller: Caller) -> Charge:
        """The `core` bucket of a caller, which replies show that belong to no request of theirs."""
        return charge_of(self._core(caller), caller, endpoint="", cost=1)

    def content_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """The content limits of a caller, charged afterwards if a reply says that content was made."""
        return tuple(
            charge_of(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if rule.counts is Counts.CONTENT and rule.applies_to(caller.case)
        )

    def failed_login_plan(self, caller: Caller) -> Plan:
        """What a request with a wrong credential meets. The caller is its address; `core` is shown and not charged."""
        return plan_of(
            "failed login",
            caller,
            self.rules.ban,
            shown=self.shown_charge(caller),
            charges=tuple(
                charge_of(rule, caller, endpoint="", cost=1)
                for rule in self.rules.rules
                if rule.counts is Counts.FAILED_LOGINS and rule.applies_to(caller.case)
            ),
            is_free=True,
        )

    def _core(self, caller: Caller) -> Rule:
        for rule in self.rules.rules:
            if rule.is_primary and not rule.match and rule.applies_to(caller.case):
                return rule
        raise AssertionError("the reader lets no rules pass in which a caller has no bucket for the rest")

    def _make_endpoint(self, method: str, path: str) -> Endpoint:
        names = set(self._everywhere)
        template: str | None = None
        described: EndpointRule | None = None
        for pattern, entry in self._routes.find(method, path):
            if template is None and pattern.is_template:
                template = f"{method} {pattern.text.partition(' ')[2]}"
            if isinstance(entry, Rule):
                names.add(entry.name)
            elif described is None:
                described = entry
        interface = described.interface if described is not None else Interface.REST
        name = template or shape_of(method, path)
        # Paths that come to the same are one endpoint, so that its plans are made once.
        alike = (name, frozenset(names), id(described))
        endpoint = self._alike.get(alike)
        if endpoint is None:
            if len(self._alike) >= REMEMBERED_PATHS:
                self._alike.clear()
            endpoint = self._alike[alike] = self._describe(method, name, names, described, interface)
        return endpoint

    def _describe(
        self, method: str, name: str, names: set[str], described: EndpointRule | None, interface: Interface
    ) -> Endpoint:
        matching = tuple(
            rule
            for rule in self.rules.rules
            if rule.name in names and (not rule.interface or interface in rule.interface)
        )
        points = self.rules.points.of(method)
        return Endpoint(
            name=name,
            points=points if described is None or described.points is None else described.points,
            content=int(described is not None and described.content),
            interface=interface,
            is_free=described is not None and described.free,
            hides_cost=described is not None and described.hidden,
            primaries=tuple(rule for rule in matching if rule.is_primary),
            secondaries=tuple(rule for rule in matching if not rule.is_primary),
        )

    def _make_plan(self, caller: Caller, endpoint: Endpoint, query: QueryFacts | None, connection: Connection) -> Plan:
        primary = next((rule for rule in endpoint.primaries if rule.applies_to(caller.case)), None)
        shown = charge_of(
            primary or self._core(caller),
            caller,
            endpoint=endpoint.name,
            cost=query.cost if query is not None and primary is not None and counts_query(primary) else 1,
        )
        charges = [] if endpoint.is_free else [shown]
        for rule in endpoint.secondaries:
            if endpoint.is_free and rule.counts not in MET_BY_FREE:
                continue
            cost = secondary_cost(rule, endpoint, query, connection)
            if cost is not None and rule.applies_to(caller.case):
                charges.append(charge_of(rule, caller, endpoint=endpoint.name, cost=cost))
        return plan_of(
            endpoint.name,
            caller,
            self.rules.ban,
            shown=shown,
            charges=tuple(charges),
            interface=endpoint.interface,
            is_free=endpoint.is_free,
            hides_cost=endpoint.hides_cost,
        )


def hash_rules(rules: RuleSet) -> str:
    """The same for the same rules, wherever they were written: processes that differ can be told apart."""
    placeless = msgspec.structs.replace(
        rules,
        rules=tuple(msgspec.structs.replace(rule, line=0, file="") for rule in rules.rules),
        endpoints=tuple(msgspec.structs.replace(endpoint, line=0, file="") for endpoint in rules.endpoints),
    )
    plain = msgspec.to_builtins(placeless, str_keys=True)
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]
