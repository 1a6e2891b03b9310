"""Finds likely mistakes in valid rules: unreachable rules, unlimited keys, limits that nobody can meet.

A pure function of the rules and, if a change is checked, of the previous rules.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.route import RouteTree, find_path_below, parse_pattern
from wharf.limits.core.rule import (
    UNLIMITED,
    Algorithm,
    ConnectionClass,
    CountedUnit,
    EndpointRule,
    Interface,
    Rule,
    RuleSet,
)


class Severity(Enum):
    """How serious a finding is. Rules with errors are rejected at load."""

    ERROR = "error"
    WARNING = "warning"
    """The rules do not do what they seem to do."""
    NOTE = "note"
    """The rules work, but at a cost."""


class LintFinding(msgspec.Struct, frozen=True):
    """A likely mistake in one rule."""

    severity: Severity
    code: str
    """The kind of mistake, such as `unreachable`."""
    file: str
    line: int
    rule: str
    """The name of the rule."""
    what: str
    """The message, which follows the name of the rule."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity.value}: {self.rule}: {self.what}"


# Scope members whose counters are on the same cluster node as the primary bucket of these callers.
_OWN_BUCKET_MEMBERS: Final = {
    CallerClass.NONE: {"caller", "address", "user", "app", "installation", "repository", "token"},
    CallerClass.USER: {"caller", "user", "installation", "repository"},
    CallerClass.INSTALLATION: {"caller", "installation", "user", "repository"},
    CallerClass.CLIENT: {"caller", "app", "user", "installation", "repository", "token"},
    CallerClass.WORKFLOW: {"caller", "repository", "user", "app", "installation"},
}

WRITE_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")
NODE_ROUTES: Final = frozenset(
    f"/v1/node/{node}/{word}"
    for node in ("*", "{id}", "{node}", "{node_id}")
    for word in ("heartbeat", "register", "report", "desired", "channel")
)
"""Endpoints that node agents of the cluster call."""


def lint_rules(rules: RuleSet, previous: RuleSet | None = None) -> list[LintFinding]:
    """Return the likely mistakes in the rules, errors first, then by file and line.

    `previous` are the rules that these would replace, if a change is checked.
    """
    found = [
        *_find_limited_machines(rules),
        *_find_unreachable(rules),
        *_find_unbounded(rules),
        *_find_above_parent(rules),
        *_find_second_calls(rules),
        *_find_never_passing(rules),
        *_find_repeated_patterns(rules),
        *_find_misplaced_patterns(rules),
        *_find_same_resource(rules),
        *_find_unlimited_waiting(rules),
        *(_find_lost_counters(rules, previous) if previous is not None else ()),
    ]
    order = list(Severity)
    return sorted(found, key=lambda f: (order.index(f.severity), f.file, f.line, f.rule, f.code))


def _build_finding(severity: Severity, code: str, rule: Rule, what: str) -> LintFinding:
    """Return a finding about a rule, with the rule's name and location."""
    return LintFinding(severity, code, rule.file, rule.line, rule.name, what)


def _list_classes(rule: Rule) -> set[CallerClass]:
    """Return the caller classes that the rule applies to."""
    return {caller_class for caller_class in CallerClass if rule.applies_to(caller_class)}


class _RuleCoverage:
    """Finds the rules that match every request that another rule matches.

    The patterns are in a tree, so that not every pair of rules must be compared.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._rules_for_all_requests = {index for index, rule in enumerate(rules) if not rule.match}
        self._tree: RouteTree[int] = RouteTree()
        for index, rule in enumerate(rules):
            for text in rule.match:
                self._tree.add(parse_pattern(text), index)

    def list_rules_of(self, endpoint: EndpointRule) -> Iterator[Rule]:
        """Yield the rules that match all requests of one of the endpoint's patterns."""
        by_text = [self._tree.find_covering(parse_pattern(text)) for text in endpoint.match]
        for index in sorted({index for found in by_text for index in found}):
            rule = self._rules[index]
            if not rule.interface or endpoint.interface in rule.interface:
                yield rule

    def list_covering(self, narrow: Rule) -> Iterator[tuple[int, Rule]]:
        """Yield index and rule of each rule that matches every request that the rule `narrow` matches, in the order of rules.

        `narrow` itself is included.
        """
        by_text = [set(self._tree.find_covering(parse_pattern(text))) for text in narrow.match]
        found = self._rules_for_all_requests | set.intersection(*by_text) if by_text else self._rules_for_all_requests
        for index in sorted(found):
            wide = self._rules[index]
            if not wide.interface or (narrow.interface and set(narrow.interface) <= set(wide.interface)):
                yield index, wide


def _find_limited_machines(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each rule that could refuse requests of nodes.

    A node whose heartbeats are refused would be treated as lost, and its allocations would be moved.
    """
    has_machines = any(CallerClass.MACHINE in rule.ceilings for rule in rules.rules)
    for rule in rules.rules:
        ceiling = rule.ceilings.get(CallerClass.MACHINE)
        if ceiling is not None and ceiling < UNLIMITED:
            what = (
                "would refuse heartbeats, but node agents and servers must never be limited. "
                'Write `machine = "unlimited"`, or leave `machine` out'
            )
            yield _build_finding(Severity.ERROR, "limits-machines", rule, what)
        elif has_machines and rule.match and all(text.partition(" ")[2] in NODE_ROUTES for text in rule.match):
            what = "matches only requests of nodes, which are never limited: remove the rule"
            yield _build_finding(Severity.ERROR, "limits-machines", rule, what)


def _find_unreachable(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each primary rule that is never reached, because earlier rules match the same requests.

    Also yield one for each rule that applies to no class of callers.
    """
    primaries = [rule for rule in rules.rules if rule.is_primary]
    coverage = _RuleCoverage(primaries)
    for index, rule in enumerate(primaries):
        earlier = [wide for number, wide in coverage.list_covering(rule) if number < index]
        covered_classes = {caller_class for wide in earlier for caller_class in _list_classes(wide)}
        if _list_classes(rule) and _list_classes(rule) <= covered_classes:
            names = ", ".join(wide.name for wide in earlier)
            yield _build_finding(
                Severity.ERROR, "unreachable", rule, f"is never reached: {names} before it matches the same requests"
            )
    for rule in rules.rules:
        if not _list_classes(rule):
            yield _build_finding(
                Severity.ERROR, "unreachable", rule, "is never reached: its ceiling names no class of callers"
            )


def _find_unbounded(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each rule under which one owner can open any number of counters."""
    for rule in rules.rules:
        if rule.is_partitioned and rule.keys_most == 0:
            what = "one owner can open any number of counters: set `keys_most`, such as 256"
            yield _build_finding(Severity.WARNING, "unbounded", rule, what)
        elif rule.scope[0] == "address" and _list_classes(rule) - {CallerClass.NONE}:
            what = "callers with credentials can open a counter for each of their addresses: count by `caller`, or only `none`"
            yield _build_finding(Severity.WARNING, "unbounded", rule, what)


def _find_above_parent(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each secondary limit whose ceiling is above that of a wider limit, which refuses first."""
    secondaries = [rule for rule in rules.rules if not rule.is_primary and rule.algorithm is not Algorithm.LEASES]
    coverage = _RuleCoverage(secondaries)
    for rule in secondaries:
        for _, parent in coverage.list_covering(rule):
            if rule is parent or not _is_parent(parent, rule):
                continue
            higher = [
                caller_class.value
                for caller_class in CallerClass
                if rule.applies_to(caller_class)
                and parent.applies_to(caller_class)
                and rule.get_base_ceiling(caller_class) > parent.get_base_ceiling(caller_class)
            ]
            if higher:
                what = f"its ceiling is above that of {parent.name}, which counts the same requests and more: {parent.name} refuses first"
                yield _build_finding(Severity.WARNING, "above-parent", rule, what)


def _is_parent(parent: Rule, rule: Rule) -> bool:
    """Return whether the rule `parent` counts everything that `rule` counts, in the same or a longer window.

    The caller has checked that `parent` matches every request that `rule` matches.
    """
    if parent.counts is not rule.counts or parent.shadow or parent.enforce_percent < 100:
        return False
    if parent.window_ms < rule.window_ms:
        return False
    return parent.scope[0] == rule.scope[0] and (
        not parent.is_partitioned or (parent.scope == rule.scope and parent.per_endpoint == rule.per_endpoint)
    )


def _find_second_calls(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a note for each limit that needs a second call on a Redis cluster.

    Its counters have another owner than the caller's primary bucket, so they can be on another node.
    """
    for rule in rules.rules:
        if rule.counts is CountedUnit.FAILED_LOGINS:
            continue  # It is checked instead of the limits of a request, in a single call.
        others = [
            caller_class.value
            for caller_class, own in _OWN_BUCKET_MEMBERS.items()
            if rule.applies_to(caller_class) and rule.scope[0] not in own
        ]
        if others:
            what = f"needs a second call on a Redis cluster for {', '.join(others)}: it counts by {rule.scope[0]}, not by caller"
            yield _build_finding(Severity.NOTE, "second-call", rule, what)


def _find_never_passing(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each method or endpoint that costs more points than the lowest ceiling of a rule."""
    points_rules = [rule for rule in rules.rules if rule.counts is CountedUnit.POINTS]
    for cost in (*_iter_method_costs(rules, points_rules), *_iter_endpoint_costs(rules, points_rules)):
        lowest = min((ceiling for ceiling in cost.rule.ceilings.values() if ceiling), default=UNLIMITED)
        if cost.points > lowest:
            message = f"{cost.subject} costs {cost.points} points and is always refused: the ceiling is {lowest}"
            yield LintFinding(Severity.ERROR, "never-passes", cost.file, cost.line, cost.rule.name, message)


class _Cost(NamedTuple):
    """A number of points that a rule charges for a method or an endpoint."""

    rule: Rule
    points: int
    subject: str
    """What costs them, such as `GET`."""
    file: str
    line: int


def _iter_method_costs(rules: RuleSet, points_rules: Sequence[Rule]) -> Iterator[_Cost]:
    """Yield the default points of a read and a write under each rule in `points_rules`.

    Patterns for which an endpoint rule sets other points are left out.
    """
    patterns_with_points: RouteTree[EndpointRule] = RouteTree()
    for endpoint in rules.endpoints:
        if endpoint.points is not None:
            for text in endpoint.match:
                patterns_with_points.add(parse_pattern(text), endpoint)
    for rule in points_rules:
        if rule.interface and set(rule.interface) <= {Interface.GRAPHQL}:
            continue
        default_patterns = [
            pattern for pattern in map(parse_pattern, rule.match) if not patterns_with_points.find_covering(pattern)
        ]
        if not rule.match or any(pattern.matches_method("GET") for pattern in default_patterns):
            yield _Cost(rule, rules.points.read, "GET", rule.file, rule.line)
        write_method = next(
            (method for method in WRITE_METHODS if any(p.matches_method(method) for p in default_patterns)), None
        )
        if not rule.match or write_method:
            yield _Cost(rule, rules.points.write, write_method or WRITE_METHODS[0], rule.file, rule.line)


def _iter_endpoint_costs(rules: RuleSet, points_rules: Sequence[Rule]) -> Iterator[_Cost]:
    """Yield the costs that endpoint rules set, for each points rule that matches all requests of the endpoint."""
    coverage = _RuleCoverage(points_rules)
    for endpoint in rules.endpoints:
        for rule in coverage.list_rules_of(endpoint):
            yield from _iter_costs_at(endpoint, rule, rules)
    for interface in Interface:
        # For rules that match all requests, checking the most expensive endpoint of each interface is enough.
        endpoints = [endpoint for endpoint in rules.endpoints if endpoint.interface is interface]
        if endpoints:
            most_expensive = max(endpoints, key=lambda endpoint: endpoint.points or 0)
            for rule in points_rules:
                if not rule.match and (not rule.interface or interface in rule.interface):
                    yield from _iter_costs_at(most_expensive, rule, rules)


def _iter_costs_at(endpoint: EndpointRule, rule: Rule, rules: RuleSet) -> Iterator[_Cost]:
    """Yield the costs in points of one endpoint under one points rule: of query and mutation for GraphQL, else its points."""
    if endpoint.interface is Interface.GRAPHQL:
        yield _Cost(rule, rules.graphql.query_points, "a GraphQL query", rule.file, rule.line)
        yield _Cost(rule, rules.graphql.mutation_points, "a GraphQL mutation", rule.file, rule.line)
    elif endpoint.points is not None:
        yield _Cost(rule, endpoint.points, " and ".join(endpoint.match), endpoint.file, endpoint.line)


def _find_repeated_patterns(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each endpoint pattern that occurs in an earlier endpoint rule, so that it has no effect."""
    described: set[str] = set()
    for endpoint in rules.endpoints:
        for text in endpoint.match:
            if text in described:
                yield LintFinding(
                    Severity.WARNING,
                    "unreachable",
                    endpoint.file,
                    endpoint.line,
                    "endpoint",
                    f"{text!r} is described by an earlier endpoint: this one is never reached",
                )
        described.update(endpoint.match)


def _find_misplaced_patterns(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each pattern that repeats the base path, or that looks for it outside of it."""
    if not rules.base_path:
        return
    repeated_path = rules.api_path + rules.base_path
    entries: list[Rule | EndpointRule] = [*rules.rules, *rules.endpoints]
    for entry in entries:
        name = entry.name if isinstance(entry, Rule) else "endpoint"
        for pattern in map(parse_pattern, entry.match):
            if pattern.is_outside and find_path_below(rules.api_path, pattern.path) is not None:
                what = (
                    f"{pattern.text!r} matches nothing: the path is below the base path, so write it without `outside:`"
                )
            elif not pattern.is_outside and find_path_below(repeated_path, pattern.path) is not None:
                what = f"a pattern repeats the base path {rules.base_path!r}: write only what follows it"
            else:
                continue
            yield LintFinding(Severity.WARNING, "misplaced", entry.file, entry.line, name, what)


def _find_same_resource(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each rule with the bucket name of an earlier rule for the same class of callers."""
    seen: dict[str, Rule] = {}
    for rule in rules.rules:
        if rule.resource is None:
            continue
        first = seen.setdefault(rule.resource, rule)
        if first is not rule and _list_classes(first) & _list_classes(rule):
            what = f"its resource {rule.resource!r} is also that of {first.name}: callers see one name for two counters"
            yield _build_finding(Severity.WARNING, "same-resource", rule, what)


def _find_lost_counters(rules: RuleSet, previous: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each rule whose counters would be lost when `rules` replace the rules `previous`."""
    names = {rule.name for rule in rules.rules} | {rule.was for rule in rules.rules}
    known = {rule.name: rule for rule in previous.rules}
    for rule in previous.rules:
        if rule.name not in names:
            what = "was removed, and its counters with it; if it was renamed, set `was` in the new rule"
            yield _build_finding(Severity.WARNING, "counters-lost", rule, what)
    for rule in rules.rules:
        old = known.get(rule.name) or known.get(rule.was or "")
        if old is not None and old.algorithm is not rule.algorithm:
            what = f"counts by {rule.algorithm.value} and no longer by {old.algorithm.value}: its counters start at 0"
            yield _build_finding(Severity.WARNING, "counters-lost", rule, what)
        if rule.was is not None and rule.was not in known and rule.name not in known:
            what = f"has `was` = {rule.was!r}, but no current rule has that name"
            yield _build_finding(Severity.WARNING, "unknown-name", rule, what)


def _find_unlimited_waiting(rules: RuleSet) -> Iterator[LintFinding]:
    """Yield a finding for each endpoint with `waiting` if no rule limits how many of its requests wait at a time."""
    if any(rule.connection is ConnectionClass.WAITING for rule in rules.rules):
        return
    for endpoint in rules.endpoints:
        if endpoint.waiting:
            yield LintFinding(
                Severity.WARNING,
                "unlimited-waiting",
                endpoint.file,
                endpoint.line,
                "endpoint",
                f"no rule limits how many requests to {' and '.join(endpoint.match)} wait at a time: add a rule with "
                '`counts = "connections"` and `connection = "waiting"`',
            )
