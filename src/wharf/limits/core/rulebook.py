"""Rules made ready for deciding: from method, path and caller to the plan of one request.

A rulebook never changes; a reload makes another. It remembers endpoints and plans, within bounds, because making them
costs more than the counting does.
"""

import hashlib
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.plans import (
    Charge,
    ChargePlan,
    EndpointCost,
    PlanTemplate,
    apply_template,
    build_charge,
    build_plan,
    build_template,
    get_secondary_cost,
    is_query_cost_rule,
)
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.route import RouteTree, derive_endpoint_name, normalize_path, parse_pattern
from wharf.limits.core.rule import ConnectionClass, CountedUnit, EndpointRule, Interface, Rule, RuleSet

MAX_CACHED_PATHS: Final = 32_768
MAX_CACHED_PLANS: Final = 16_384
MAX_CACHED_TEMPLATES: Final = 8_192
MAX_CACHED_PATH_CHARACTERS: Final = 256

# What may refuse a request that is free: whoever is limited can still ask when that ends.
UNITS_OF_FREE_ENDPOINTS: Final = frozenset({CountedUnit.POINTS, CountedUnit.CONNECTIONS})


class Rulebook:
    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.hash = hash_rules(rules)
        self.rules_by_name = {rule.name: rule for rule in rules.rules}
        self._everywhere = frozenset(rule.name for rule in rules.rules if not rule.match)
        self._routes: RouteTree[Rule | EndpointRule] = RouteTree()
        entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
        for entry in entries:
            for text in entry.match:
                self._routes.add(parse_pattern(text), entry)
        self._endpoints: dict[tuple[str, str], EndpointCost] = {}  # By method and path as they were sent.
        self._alike: dict[tuple[str, frozenset[str], int], EndpointCost] = {}
        self._molds: dict[tuple[EndpointCost, CallerClass, QueryFacts | None], PlanTemplate] = {}
        self._plans: dict[tuple[Caller, EndpointCost, QueryFacts | None], ChargePlan] = {}

    def get_endpoint(self, method: str, path: str) -> EndpointCost:
        found = self._endpoints.get((method, path))
        if found is None:
            found = self._make_endpoint(method, normalize_path(path))
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                if len(self._endpoints) >= MAX_CACHED_PATHS:
                    self._endpoints.clear()
                self._endpoints[method, path] = found
        return found

    def get_plan(self, request: RequestFacts) -> ChargePlan:
        caller = request.caller
        endpoint = self._endpoints.get((request.method, request.path)) or self.get_endpoint(
            request.method, request.path
        )
        if request.connection is not ConnectionClass.PLAIN:
            return self._make_plan(caller, endpoint, request.query, request.connection)
        key = (caller, endpoint, request.query)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= MAX_CACHED_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._cast_plan(caller, endpoint, request.query)
        return plan

    def _cast_plan(self, caller: Caller, endpoint: EndpointCost, query: QueryFacts | None) -> ChargePlan:
        """Make the first plan for callers of a kind by the rules, and those of all others like it."""
        kind = (endpoint, caller.caller_class, query)
        mold = self._molds.get(kind)
        if mold is not None:
            return apply_template(mold, caller, self.rules.ban)
        plan = self._make_plan(caller, endpoint, query, ConnectionClass.PLAIN)
        if len(self._molds) >= MAX_CACHED_TEMPLATES:
            self._molds.clear()
        self._molds[kind] = build_template(plan, caller)
        return plan

    def list_primary_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """Every primary bucket that this caller has, in the order of the rules: what the status endpoint shows."""
        return tuple(
            build_charge(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if rule.is_primary and rule.applies_to(caller.caller_class)
        )

    def list_secondary_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """The secondary limits with one counter for this caller. Those by endpoint have many and are not among them."""
        return tuple(
            build_charge(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if not rule.is_primary
            and not rule.hidden
            and not rule.per_endpoint
            and rule.applies_to(caller.caller_class)
        )

    def build_core_charge(self, caller: Caller) -> Charge:
        """The `core` bucket of a caller, which replies show that belong to no request of theirs."""
        return build_charge(self._core(caller), caller, endpoint="", cost=1)

    def list_content_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """The content limits of a caller, charged afterwards if a reply says that content was made."""
        return tuple(
            build_charge(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if rule.counts is CountedUnit.CONTENT and rule.applies_to(caller.caller_class)
        )

    def build_failed_login_plan(self, caller: Caller) -> ChargePlan:
        """What a request with a wrong credential meets. The caller is its address; `core` is shown and not charged."""
        return build_plan(
            "failed login",
            caller,
            self.rules.ban,
            bucket_charge=self.build_core_charge(caller),
            charges=tuple(
                build_charge(rule, caller, endpoint="", cost=1)
                for rule in self.rules.rules
                if rule.counts is CountedUnit.FAILED_LOGINS and rule.applies_to(caller.caller_class)
            ),
            is_free=True,
        )

    def _core(self, caller: Caller) -> Rule:
        for rule in self.rules.rules:
            if rule.is_primary and not rule.match and rule.applies_to(caller.caller_class):
                return rule
        raise AssertionError("the reader lets no rules pass in which a caller has no bucket for the rest")

    def _make_endpoint(self, method: str, path: str) -> EndpointCost:
        names = set(self._everywhere)
        template: str | None = None
        described: EndpointRule | None = None
        for pattern, entry in self._routes.find_matches(method, path):
            if template is None and pattern.is_template:
                template = f"{method} {pattern.text.partition(' ')[2]}"
            if isinstance(entry, Rule):
                names.add(entry.name)
            elif described is None:
                described = entry
        interface = described.interface if described is not None else Interface.REST
        name = template or derive_endpoint_name(method, path)
        # Paths that come to the same are one endpoint, so that its plans are made once.
        alike = (name, frozenset(names), id(described))
        endpoint = self._alike.get(alike)
        if endpoint is None:
            if len(self._alike) >= MAX_CACHED_PATHS:
                self._alike.clear()
            endpoint = self._alike[alike] = self._describe(method, name, names, described, interface)
        return endpoint

    def _describe(
        self, method: str, name: str, names: set[str], described: EndpointRule | None, interface: Interface
    ) -> EndpointCost:
        matching = tuple(
            rule
            for rule in self.rules.rules
            if rule.name in names and (not rule.interface or interface in rule.interface)
        )
        points = self.rules.points.get_points(method)
        return EndpointCost(
            name=name,
            points=points if described is None or described.points is None else described.points,
            content=int(described is not None and described.content),
            interface=interface,
            is_free=described is not None and described.free,
            is_cost_hidden=described is not None and described.hidden,
            primary_rules=tuple(rule for rule in matching if rule.is_primary),
            secondary_rules=tuple(rule for rule in matching if not rule.is_primary),
        )

    def _make_plan(
        self, caller: Caller, endpoint: EndpointCost, query: QueryFacts | None, connection: ConnectionClass
    ) -> ChargePlan:
        primary = next((rule for rule in endpoint.primary_rules if rule.applies_to(caller.caller_class)), None)
        shown = build_charge(
            primary or self._core(caller),
            caller,
            endpoint=endpoint.name,
            cost=query.cost if query is not None and primary is not None and is_query_cost_rule(primary) else 1,
        )
        charges = [] if endpoint.is_free else [shown]
        for rule in endpoint.secondary_rules:
            if endpoint.is_free and rule.counts not in UNITS_OF_FREE_ENDPOINTS:
                continue
            cost = get_secondary_cost(rule, endpoint, query, connection)
            if cost is not None and rule.applies_to(caller.caller_class):
                charges.append(build_charge(rule, caller, endpoint=endpoint.name, cost=cost))
        return build_plan(
            endpoint.name,
            caller,
            self.rules.ban,
            bucket_charge=shown,
            charges=tuple(charges),
            interface=endpoint.interface,
            is_free=endpoint.is_free,
            is_cost_hidden=endpoint.is_cost_hidden,
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
