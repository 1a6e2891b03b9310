"""The rules in a form that is fast to evaluate: from method, path and caller to the charge plan of a request.

A rulebook never changes; a reload builds another one. It caches endpoints and plans, because to build a plan costs
more than to count it.
"""

import hashlib
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.caller import Caller, CallerClass
from wharf.limits.core.method_overrides import METHOD_SEPARATOR
from wharf.limits.core.paths import (
    PathReading,
    list_readings,
    normalize_decoded_path,
    normalize_raw_path,
    read_segments,
)
from wharf.limits.core.placed_routes import PlacedRoutes
from wharf.limits.core.plans import (
    Charge,
    ChargePlan,
    EndpointCost,
    PlanTemplate,
    apply_template,
    build_charge,
    build_plan,
    build_template,
    choose_primary_rule,
    get_primary_cost,
    get_secondary_cost,
    list_primary_rules,
)
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.route import (
    RoutePattern,
    derive_endpoint_name,
    get_counted_method,
    parse_pattern,
)
from wharf.limits.core.rule import (
    ConnectionClass,
    CountedUnit,
    EndpointRule,
    Interface,
    MethodOverride,
    Rule,
    RuleSet,
)

MAX_CACHED_PATHS: Final = 32_768
"""Limits the memory of the endpoint caches, in entries; the oldest entries of a full cache are removed."""
MAX_CACHED_PLANS: Final = 16_384
"""Limits the memory of the cache of charge plans; the oldest entries of a full cache are removed."""
MAX_CACHED_TEMPLATES: Final = 8_192
"""Limits the memory of the cache of plan templates; the oldest entries of a full cache are removed."""
MAX_CACHED_PATH_CHARACTERS: Final = 256
"""Longer paths are not cached, so that callers cannot fill the memory with them."""
BATCH_SEGMENTS: Final = ("objects", "batch")
"""The last segments of the paths of large-file batches (Git LFS)."""

# Only these limits can refuse a free request: a limited caller must be able to read when its limit ends.
UNITS_OF_FREE_ENDPOINTS: Final = frozenset({CountedUnit.POINTS, CountedUnit.CONNECTIONS})


class _ReadingMatch(msgspec.Struct, frozen=True):
    """What matches one reading of a path, with one method."""

    default_points: int
    """The points of the method."""
    rule_names: frozenset[str]
    endpoint_rule: EndpointRule | None
    template: RoutePattern | None
    """The pattern that names the endpoint."""

    @property
    def interface(self) -> Interface:
        return Interface.REST if self.endpoint_rule is None else self.endpoint_rule.interface

    @property
    def is_free(self) -> bool:
        return self.endpoint_rule is not None and self.endpoint_rule.free

    def applies(self, rule: Rule) -> bool:
        """Return whether the rule is for this reading: one of its patterns and its interface fit."""
        return rule.name in self.rule_names and (not rule.interface or self.interface in rule.interface)


# What makes an endpoint: its name, for each reading and method its default points, the names of its rules and its endpoint rule,
# and whether it is free and a batch.
_ContentKey = tuple[tuple[str, ...], tuple[tuple[int, frozenset[str], int], ...], bool, bool]


class Rulebook:
    """The rules, indexed for fast lookups, with caches of endpoints and charge plans."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.hash = hash_rules(rules)
        self.rules_by_name = {rule.name: rule for rule in rules.rules}
        self._order = {rule.name: index for index, rule in enumerate(rules.rules)}
        self._rules_without_patterns = frozenset(rule.name for rule in rules.rules if not rule.match)
        self._routes: PlacedRoutes[Rule | EndpointRule] = PlacedRoutes(rules.paths, rules.api_path)
        entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
        for entry in entries:
            for text in entry.match:
                self._routes.add(parse_pattern(text), entry)
        # By method and path in normal form.
        self._endpoints: BoundedCache[tuple[str, str], EndpointCost] = BoundedCache(MAX_CACHED_PATHS)
        self._endpoints_by_content: BoundedCache[_ContentKey, EndpointCost] = BoundedCache(MAX_CACHED_PATHS)
        self._marked_endpoints: BoundedCache[EndpointCost, EndpointCost] = BoundedCache(MAX_CACHED_PATHS)
        """Copies of endpoints for requests with `may_create_content`."""
        self.unforwarded_paths = rules.paths.replace_removal()
        """How paths are treated of requests that the limiter judges and does not forward."""
        self._normal_paths: BoundedCache[str | bytes, str] = BoundedCache(MAX_CACHED_PATHS)
        self._templates: BoundedCache[tuple[EndpointCost, CallerClass, QueryFacts | None], PlanTemplate] = BoundedCache(
            MAX_CACHED_TEMPLATES
        )
        self._plans: BoundedCache[tuple[Caller, EndpointCost, QueryFacts | None], ChargePlan] = BoundedCache(
            MAX_CACHED_PLANS
        )

    def normalize_path(self, path: str | bytes) -> str:
        """Return the normal form of a path, from the cache if possible: of a text that a server has decoded, or of raw bytes.

        The request is not forwarded by the limiter, so no segment is removed. Requests to the same path share one text, which
        saves memory. Raises `BadPath` if the path is refused.
        """
        normal_path = self._normal_paths.get(path)
        if normal_path is None:
            rules = self.unforwarded_paths
            normal_path = (
                normalize_decoded_path(path, rules) if isinstance(path, str) else normalize_raw_path(path, rules)
            )
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._normal_paths.store(path, normal_path)
        return normal_path

    def get_endpoint(self, method: str, path: str) -> EndpointCost:
        """Return the endpoint of a request, with its costs and rules, from the cache if possible.

        `path` is the path in normal form. `method` can be several methods, joined by `join_methods`, if a service may serve the
        request as any of them: their limits apply together, and those with a counter for each endpoint have one for each method.
        The first one names the endpoint.
        """
        endpoint = self._endpoints.get((method, path))
        if endpoint is None:
            endpoint = self._make_endpoint(method, path)
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
        if endpoint.other_names:  # A template has one name.
            return self._make_plan(caller, endpoint, query, ConnectionClass.PLAIN)
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

        If services read the path differently, the limits and costs of all readings apply. Requests with the same name and
        rules share one endpoint object.
        """
        methods = method.split(METHOD_SEPARATOR)
        readings = list_readings(path, self.rules.paths)
        by_reading = [self._match_reading(methods, reading) for reading in readings]
        by_method = [[of_reading[index] for of_reading in by_reading] for index in range(len(methods))]
        matches = [match for of_method in by_method for match in of_method]
        names = tuple(
            dict.fromkeys(
                _name_endpoint(one, of_method, readings[0]) for one, of_method in zip(methods, by_method, strict=True)
            )
        )
        is_free = all(match.is_free for match in matches) and all(
            self._is_spelled_as_free(one, path) for one in methods
        )
        is_batch = any(
            match.interface is Interface.LARGE_FILES
            and tuple(map(str.casefold, reading.segments[-2:])) == BATCH_SEGMENTS
            for match, reading in zip(matches, readings * len(methods), strict=True)
        )
        # Paths with the same name and rules share one endpoint object, so that its plans are cached once.
        content_key: _ContentKey = (
            names,
            tuple(
                dict.fromkeys((match.default_points, match.rule_names, id(match.endpoint_rule)) for match in matches)
            ),
            is_free,
            is_batch,
        )
        endpoint = self._endpoints_by_content.get(content_key)
        if endpoint is None:
            endpoint = self._build_endpoint_cost(names, matches, is_free=is_free, is_batch=is_batch)
            self._endpoints_by_content.store(content_key, endpoint)
        return endpoint

    def _match_reading(self, methods: list[str], reading: PathReading) -> "list[_ReadingMatch]":
        """Return, for each of the methods, the rules that match one reading of a path. The path is looked up only once."""
        found = self._routes.find_path_matches(reading)
        return [self._match_method(method, found) for method in methods]

    def _match_method(self, method: str, found: list[tuple[RoutePattern, Rule | EndpointRule]]) -> "_ReadingMatch":
        """Return the rules among those for a path that match a method."""
        names = set(self._rules_without_patterns)
        template: RoutePattern | None = None
        endpoint_rule: EndpointRule | None = None
        for pattern, entry in found:
            if not pattern.matches_method(method):
                continue
            if template is None and pattern.is_template:
                template = pattern
            if isinstance(entry, Rule):
                names.add(entry.name)
            elif endpoint_rule is None:
                endpoint_rule = entry
        return _ReadingMatch(self.rules.points.get_points(method), frozenset(names), endpoint_rule, template)

    def _is_spelled_as_free(self, method: str, path: str) -> bool:
        """Return whether the path of a request is spelled like the pattern of a free endpoint.

        Another spelling may be another path for the service, which the caller could then request without limit.
        """
        for pattern, entry in self._routes.find_matches(method, PathReading(read_segments(path))):
            if isinstance(entry, EndpointRule):
                return entry.free and pattern.has_trailing_slash == (len(path) > 1 and path.endswith("/"))
        return False

    def _build_endpoint_cost(
        self, names: tuple[str, ...], matches: "list[_ReadingMatch]", *, is_free: bool, is_batch: bool
    ) -> EndpointCost:
        """Return an endpoint with the costs that its endpoint rules set, or the defaults of the method.

        Of several readings or methods, the highest costs and the secondary limits of all apply.
        """
        matching = [[rule for rule in self.rules.rules if match.applies(rule)] for match in matches]
        secondary_names = {rule.name for rules in matching for rule in rules if not rule.is_primary}
        primary_names = sorted(
            {tuple(rule.name for rule in rules if rule.is_primary) for rules in matching},
            key=lambda names: [self._order[name] for name in names],
        )
        by_name = self.rules_by_name
        endpoint_rules = [match.endpoint_rule for match in matches]
        interfaces = [match.interface for match in matches if match.interface is not Interface.REST]
        return EndpointCost(
            name=names[0],
            other_names=names[1:],
            points=max(
                match.default_points
                if match.endpoint_rule is None or match.endpoint_rule.points is None
                else match.endpoint_rule.points
                for match in matches
            ),
            content=int(any(rule is not None and rule.content for rule in endpoint_rules)),
            interface=interfaces[0] if interfaces else Interface.REST,
            is_free=is_free,
            is_cost_hidden=any(rule is not None and rule.hidden for rule in endpoint_rules),
            primary_rules=tuple(by_name[rule] for rule in primary_names[0]),
            secondary_rules=tuple(rule for rule in self.rules.rules if rule.name in secondary_names),
            other_primary_rules=tuple(tuple(by_name[rule] for rule in names) for names in primary_names[1:]),
            is_batch=is_batch,
            needs_body=is_batch or bool(interfaces and interfaces[0] is Interface.GRAPHQL),
            is_waiting=all(rule is not None and rule.waiting for rule in endpoint_rules),
            may_create_content=any(rule is not None and rule.content_marked for rule in endpoint_rules),
        )

    def _make_plan(
        self, caller: Caller, endpoint: EndpointCost, query: QueryFacts | None, connection: ConnectionClass
    ) -> ChargePlan:
        """Return a charge plan that is built from the rules, without a template."""
        if endpoint.is_waiting and connection is ConnectionClass.PLAIN:
            connection = ConnectionClass.WAITING
        primary_rules = list_primary_rules(endpoint, caller.caller_class)
        primary_rule = choose_primary_rule(primary_rules, caller.caller_class, query) or self._find_core_rule(caller)
        bucket_charge = build_charge(
            primary_rule, caller, endpoint=endpoint.name, cost=get_primary_cost(primary_rule, query)
        )
        charges = [] if endpoint.is_free else [bucket_charge]
        for rule in endpoint.secondary_rules:
            if endpoint.is_free and rule.counts not in UNITS_OF_FREE_ENDPOINTS:
                continue
            cost = get_secondary_cost(rule, endpoint, query, connection)
            if cost is not None and rule.applies_to(caller.caller_class):
                names = (endpoint.name, *endpoint.other_names) if rule.per_endpoint else (endpoint.name,)
                charges += [build_charge(rule, caller, endpoint=name, cost=cost) for name in names]
        return build_plan(
            endpoint.name,
            caller,
            self.rules.ban,
            bucket_charge=bucket_charge,
            charges=tuple(charges),
            interface=endpoint.interface,
            is_free=endpoint.is_free,
            is_cost_hidden=endpoint.is_cost_hidden,
            max_objects=min(
                (rule.objects_most for rule in primary_rules if rule.objects_most is not None), default=None
            ),
            is_waiting=connection is ConnectionClass.WAITING,
        )


def _name_endpoint(method: str, matches: list[_ReadingMatch], reading: PathReading) -> str:
    """Return the name of an endpoint with one method. `reading` is the first reading of its path."""
    template = next((match.template for match in matches if match.template is not None), None)
    if template is None:
        return derive_endpoint_name(method, reading.segments)
    return f"{get_counted_method(method)} {template.path}"


def hash_rules(rules: RuleSet) -> str:
    """Return a hash of the rules without file names and lines.

    Processes that share a store compare it to find out whether they use the same rules.
    """
    without_locations = msgspec.structs.replace(
        rules,
        rules=tuple(msgspec.structs.replace(rule, line=0, file="") for rule in rules.rules),
        endpoints=tuple(msgspec.structs.replace(endpoint, line=0, file="") for endpoint in rules.endpoints),
        descriptors=tuple(
            msgspec.structs.replace(descriptor, rule=msgspec.structs.replace(descriptor.rule, line=0, file=""))
            for descriptor in rules.descriptors
        ),
    )
    plain = msgspec.to_builtins(without_locations, str_keys=True)
    if rules.paths.method_override is MethodOverride.BOTH:
        del plain["paths"]["method_override"]  # Likewise.
    del plain["owner_paths"]  # They change no counter, and the hash is that of versions without them.
    if not rules.domains:
        del plain["domains"], plain["descriptors"]  # Then the hash is that of versions without descriptors.
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]
