"""The rules in a form that is fast to evaluate: from method, path and caller to the charge plan of a request.

A rulebook never changes; a reload builds another one. It caches endpoints and plans, because to build a plan costs
more than to count it.
"""

import hashlib
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
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
"""Limits the memory of the endpoint caches, in entries; the oldest entries of a full cache are removed."""
MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory of the cache of charge plans; the oldest entries of a full cache are removed."""
MAX_CACHED_TEMPLATES: Final = 8_192
"""Limits the memory of the cache of plan templates; the oldest entries of a full cache are removed."""
MAX_CACHED_PATH_CHARACTERS: Final = 256
"""Longer paths are not cached, so that callers cannot fill the memory with them."""

# Only these limits can refuse a free request: a limited caller must be able to read when its limit ends.
UNITS_OF_FREE_ENDPOINTS: Final = frozenset({CountedUnit.POINTS, CountedUnit.CONNECTIONS})


class Rulebook:
    """The rules, indexed for fast lookups, with caches of endpoints and charge plans."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.hash = hash_rules(rules)
        self.rules_by_name = {rule.name: rule for rule in rules.rules}
        self._rules_without_patterns = frozenset(rule.name for rule in rules.rules if not rule.match)
        self._routes: RouteTree[Rule | EndpointRule] = RouteTree()
        entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
        for entry in entries:
            for text in entry.match:
                self._routes.add(parse_pattern(text), entry)
        # By method and path as the request has them.
        self._endpoints: BoundedCache[tuple[str, str], EndpointCost] = BoundedCache(MAX_CACHED_PATHS)
        self._endpoints_by_content: BoundedCache[tuple[str, frozenset[str], int], EndpointCost] = BoundedCache(
            MAX_CACHED_PATHS
        )
        self._marked_endpoints: BoundedCache[EndpointCost, EndpointCost] = BoundedCache(MAX_CACHED_PATHS)
        """Copies of endpoints for requests with `may_create_content`."""
        self._templates: BoundedCache[tuple[EndpointCost, CallerClass, QueryFacts | None], PlanTemplate] = BoundedCache(
            MAX_CACHED_TEMPLATES
        )
        self._plans: BoundedCache[tuple[Caller, EndpointCost, QueryFacts | None], ChargePlan] = BoundedCache(
            MAX_CACHED_PLANS
        )

    def get_endpoint(self, method: str, path: str) -> EndpointCost:
        """Return the endpoint of a request, with its costs and rules, from the cache if possible."""
        endpoint = self._endpoints.get((method, path))
        if endpoint is None:
            endpoint = self._make_endpoint(method, normalize_path(path))
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._endpoints.store((method, path), endpoint)
        return endpoint

    def get_plan(self, request: RequestFacts) -> ChargePlan:
        """Return the charge plan of a request, from the cache if possible.

        Plans of websockets and blocking queries are not cached.
        """
        caller = request.caller
        endpoint = self._endpoints.get((request.method, request.path)) or self.get_endpoint(
            request.method, request.path
        )
        if request.may_create_content and not endpoint.may_create_content:
            endpoint = self._get_marked_endpoint(endpoint)
        if request.connection is not ConnectionClass.PLAIN:
            return self._make_plan(caller, endpoint, request.query, request.connection)
        key = (caller, endpoint, request.query)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.store(key, self._plan_from_template(caller, endpoint, request.query))
        return plan

    def _get_marked_endpoint(self, endpoint: EndpointCost) -> EndpointCost:
        """Return a copy of an endpoint whose requests need room in the content limits. The same object each time, for caches."""
        marked = self._marked_endpoints.get(endpoint)
        if marked is None:
            marked = msgspec.structs.replace(endpoint, may_create_content=True)
            self._marked_endpoints.store(endpoint, marked)
        return marked

    def _plan_from_template(self, caller: Caller, endpoint: EndpointCost, query: QueryFacts | None) -> ChargePlan:
        """Return the charge plan of a caller at an endpoint.

        The first plan of a caller class is built from the rules and becomes the template for the others.
        """
        template_key = (endpoint, caller.caller_class, query)
        template = self._templates.get(template_key)
        if template is not None:
            return apply_template(template, caller, self.rules.ban)
        plan = self._make_plan(caller, endpoint, query, ConnectionClass.PLAIN)
        self._templates.store(template_key, build_template(plan, caller))
        return plan

    def list_primary_charges(self, caller: Caller) -> tuple[Charge, ...]:
        """Return the charge of every primary bucket of this caller, in the order of the rules, for the status page."""
        return tuple(
            build_charge(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if rule.is_primary and rule.applies_to(caller.caller_class)
        )

    def list_secondary_charges(self, caller: Caller, *, has_hidden: bool = False) -> tuple[Charge, ...]:
        """Return the charges of the secondary limits that the status page can show to this caller.

        Limits with a counter for each endpoint are left out; so are hidden limits, unless `has_hidden` is set for an operator.
        """
        return tuple(
            build_charge(rule, caller, endpoint="", cost=1)
            for rule in self.rules.rules
            if not rule.is_primary
            and (has_hidden or not rule.hidden)
            and not rule.per_endpoint
            and rule.applies_to(caller.caller_class)
        )

    def build_core_charge(self, caller: Caller) -> Charge:
        """Return the charge of the `core` bucket of a caller, for replies without a decision."""
        return build_charge(self._find_core_rule(caller), caller, endpoint="", cost=1)

    def list_content_charges(self, caller: Caller, endpoint: EndpointCost | None = None) -> tuple[Charge, ...]:
        """Return the charges of the content limits of a caller, for a reply that reports created content.

        With `endpoint`, only those of the limits that match its requests.
        """
        name = "" if endpoint is None else endpoint.name
        return tuple(
            build_charge(rule, caller, endpoint=name, cost=1)
            for rule in (self.rules.rules if endpoint is None else endpoint.secondary_rules)
            if rule.counts is CountedUnit.CONTENT and rule.applies_to(caller.caller_class)
        )

    def build_failed_login_plan(self, caller: Caller) -> ChargePlan:
        """Return the charge plan of a request with a wrong credential.

        `caller` is the anonymous caller of the address. The limits on failed logins are charged; the
        `core` bucket is reported and not charged.
        """
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

    def _find_core_rule(self, caller: Caller) -> Rule:
        """Return the primary rule that matches every request of this caller."""
        for rule in self.rules.rules:
            if rule.is_primary and not rule.match and rule.applies_to(caller.caller_class):
                return rule
        raise AssertionError("a caller has no core rule, although `read_rules` rejects such rules")

    def _make_endpoint(self, method: str, path: str) -> EndpointCost:
        """Return the endpoint of a request, with its name, costs and the rules that match the request.

        Requests with the same name and rules share one endpoint object.
        """
        names = set(self._rules_without_patterns)
        template_name: str | None = None
        endpoint_rule: EndpointRule | None = None
        for pattern, entry in self._routes.find_matches(method, path):
            if template_name is None and pattern.is_template:
                template_name = f"{method} {pattern.text.partition(' ')[2]}"
            if isinstance(entry, Rule):
                names.add(entry.name)
            elif endpoint_rule is None:
                endpoint_rule = entry
        interface = endpoint_rule.interface if endpoint_rule is not None else Interface.REST
        name = template_name or derive_endpoint_name(method, path)
        # Paths with the same name and rules share one endpoint object, so that its plans are cached once.
        content_key = (name, frozenset(names), id(endpoint_rule))
        endpoint = self._endpoints_by_content.get(content_key)
        if endpoint is None:
            endpoint = self._build_endpoint_cost(method, name, names, endpoint_rule, interface)
            self._endpoints_by_content.store(content_key, endpoint)
        return endpoint

    def _build_endpoint_cost(
        self, method: str, name: str, names: set[str], endpoint_rule: EndpointRule | None, interface: Interface
    ) -> EndpointCost:
        """Return an endpoint with the costs that its endpoint rule sets, or the defaults of the method."""
        matching = tuple(
            rule
            for rule in self.rules.rules
            if rule.name in names and (not rule.interface or interface in rule.interface)
        )
        points = self.rules.points.get_points(method)
        return EndpointCost(
            name=name,
            points=points if endpoint_rule is None or endpoint_rule.points is None else endpoint_rule.points,
            content=int(endpoint_rule is not None and endpoint_rule.content),
            interface=interface,
            is_free=endpoint_rule is not None and endpoint_rule.free,
            is_cost_hidden=endpoint_rule is not None and endpoint_rule.hidden,
            primary_rules=tuple(rule for rule in matching if rule.is_primary),
            secondary_rules=tuple(rule for rule in matching if not rule.is_primary),
            is_waiting=endpoint_rule is not None and endpoint_rule.waiting,
            may_create_content=endpoint_rule is not None and endpoint_rule.content_marked,
        )

    def _make_plan(
        self, caller: Caller, endpoint: EndpointCost, query: QueryFacts | None, connection: ConnectionClass
    ) -> ChargePlan:
        """Return a charge plan that is built from the rules, without a template."""
        if endpoint.is_waiting and connection is ConnectionClass.PLAIN:
            connection = ConnectionClass.WAITING
        primary_rule = next((rule for rule in endpoint.primary_rules if rule.applies_to(caller.caller_class)), None)
        bucket_charge = build_charge(
            primary_rule or self._find_core_rule(caller),
            caller,
            endpoint=endpoint.name,
            cost=query.cost
            if query is not None and primary_rule is not None and is_query_cost_rule(primary_rule)
            else 1,
        )
        charges = [] if endpoint.is_free else [bucket_charge]
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
            bucket_charge=bucket_charge,
            charges=tuple(charges),
            interface=endpoint.interface,
            is_free=endpoint.is_free,
            is_cost_hidden=endpoint.is_cost_hidden,
            is_waiting=connection is ConnectionClass.WAITING,
        )


def hash_rules(rules: RuleSet) -> str:
    """Return a hash of the rules without file names and lines.

    Processes that share a store compare it to find out whether they use the same rules.
    """
    without_locations = msgspec.structs.replace(
        rules,
        rules=tuple(msgspec.structs.replace(rule, line=0, file="") for rule in rules.rules),
        endpoints=tuple(msgspec.structs.replace(endpoint, line=0, file="") for endpoint in rules.endpoints),
    )
    plain = msgspec.to_builtins(without_locations, str_keys=True)
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]
