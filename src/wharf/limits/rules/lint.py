"""What is unwise about rules that can be read: rules that never act, keys without bound, limits that cannot be met.

A pure function of the rules, and of the rules before them where a change is judged.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import ORDINARY_CLASSES, CallerClass
from wharf.limits.core.route import RouteTree, parse_pattern
from wharf.limits.core.rule import UNLIMITED, Algorithm, CountedUnit, EndpointRule, Interface, Rule, RuleSet


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class LintFinding(msgspec.Struct, frozen=True):
    severity: Severity
    code: str
    file: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity.value}: {self.rule}: {self.what}"


# Members of a scope that are the caller's own bucket for these callers, and so are counted with it in one call.
_OWN_MEMBERS: Final = {
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
"""What nodes of our own cluster say."""


def lint_rules(rules: RuleSet, previous: RuleSet | None = None) -> list[LintFinding]:
    """Every finding, errors first, then by place. `before` are the rules in force that these would replace."""
    found = [
        *_limiting_machines(rules),
        *_unreachable(rules),
        *_unbounded(rules),
        *_above_parent(rules),
        *_second_calls(rules),
        *_never_passing(rules),
        *_unknown_names(rules),
        *_same_resource(rules),
        *(_lost_counters(rules, previous) if previous is not None else ()),
    ]
    order = list(Severity)
    return sorted(found, key=lambda f: (order.index(f.severity), f.file, f.line, f.rule, f.code))


def _finding(severity: Severity, code: str, rule: Rule, what: str) -> LintFinding:
    return LintFinding(severity, code, rule.file, rule.line, rule.name, what)


def _cases(rule: Rule) -> set[CallerClass]:
    return {case for case in CallerClass if rule.applies_to(case)}


class _Reach:
    """Of some rules, which of them match all that another rule matches: found in the tree of their patterns, so that looking
    at all rules costs by their number and not by that of their pairs."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._everywhere = {index for index, rule in enumerate(rules) if not rule.match}
        self._tree: RouteTree[int] = RouteTree()
        for index, rule in enumerate(rules):
            for text in rule.match:
                self._tree.add(parse_pattern(text), index)

    def meeting(self, endpoint: EndpointRule) -> Iterator[Rule]:
        """The rules whose patterns match all requests to one of the endpoint's."""
        by_text = [self._tree.find_covering(parse_pattern(text)) for text in endpoint.match]
        for index in sorted({index for found in by_text for index in found}):
            rule = self._rules[index]
            if not rule.interface or endpoint.interface in rule.interface:
                yield rule

    def covering(self, narrow: Rule) -> Iterator[tuple[int, Rule]]:
        """With their numbers, in order. A rule covers itself."""
        by_text = [set(self._tree.find_covering(parse_pattern(text))) for text in narrow.match]
        found = self._everywhere | set.intersection(*by_text) if by_text else self._everywhere
        for index in sorted(found):
            wide = self._rules[index]
            if not wide.interface or (narrow.interface and set(narrow.interface) <= set(wide.interface)):
                yield index, wide


def _limiting_machines(rules: RuleSet) -> Iterator[LintFinding]:
    """A node whose heartbeat is refused counts as lost, and its work is placed elsewhere: so nothing may refuse one."""
    has_machines = any(CallerClass.MACHINE in rule.ceilings for rule in rules.rules)
    for rule in rules.rules:
        ceiling = rule.ceilings.get(CallerClass.MACHINE)
        if ceiling is not None and ceiling < UNLIMITED:
            what = (
                "would refuse heartbeats: node agents and servers are never limited. "
                'Write `machine = "unlimited"`, or leave `machine` out'
            )
            yield _finding(Severity.ERROR, "limits-machines", rule, what)
        elif has_machines and rule.match and all(text.partition(" ")[2] in NODE_ROUTES for text in rule.match):
            what = "is about nothing but what nodes say, and these are never limited: take it out"
            yield _finding(Severity.ERROR, "limits-machines", rule, what)


def _unreachable(rules: RuleSet) -> Iterator[LintFinding]:
    """A primary rule that others before it take everything from; any rule that holds for nobody."""
    primaries = [rule for rule in rules.rules if rule.is_primary]
    reach = _Reach(primaries)
    for index, rule in enumerate(primaries):
        earlier = [wide for number, wide in reach.covering(rule) if number < index]
        taken = {case for wide in earlier for case in _cases(wide)}
        if _cases(rule) and _cases(rule) <= taken:
            names = ", ".join(wide.name for wide in earlier)
            yield _finding(
                Severity.ERROR, "unreachable", rule, f"is never reached: {names} before it matches all that it matches"
            )
    for rule in rules.rules:
        if not _cases(rule):
            yield _finding(Severity.ERROR, "unreachable", rule, "is never reached: its ceiling names no kind of caller")


def _unbounded(rules: RuleSet) -> Iterator[LintFinding]:
    for rule in rules.rules:
        if rule.is_partitioned and rule.keys_most == 0:
            what = "one owner can open counters without bound: give `keys_most`, such as 256"
            yield _finding(Severity.WARNING, "unbounded", rule, what)
        elif rule.scope[0] == "address" and _cases(rule) - {CallerClass.NONE}:
            what = "callers with credentials can open a counter from every address they have; count by `caller`, or only `none`"
            yield _finding(Severity.WARNING, "unbounded", rule, what)


def _above_parent(rules: RuleSet) -> Iterator[LintFinding]:
    """A narrower limit in no longer a window that is higher than a wider one is never the one that refuses."""
    secondaries = [rule for rule in rules.rules if not rule.is_primary and rule.algorithm is not Algorithm.LEASES]
    reach = _Reach(secondaries)
    for rule in secondaries:
        for _, parent in reach.covering(rule):
            if rule is parent or not _is_parent(parent, rule):
                continue
            higher = [
                case.value
                for case in CallerClass
                if rule.applies_to(case) and parent.applies_to(case) and _base(rule, case) > _base(parent, case)
            ]
            if higher:
                what = f"its ceiling is above that of {parent.name}, which counts the same and more: {parent.name} refuses first"
                yield _finding(Severity.WARNING, "above-parent", rule, what)


def _is_parent(parent: Rule, rule: Rule) -> bool:
    """Whether all that the rule counts in its window, the parent counts in its own, under a key as wide. It covers it."""
    if parent.counts is not rule.counts or parent.shadow or parent.enforce_percent < 100:
        return False
    if parent.window_ms < rule.window_ms:
        return False
    return parent.scope[0] == rule.scope[0] and (
        not parent.is_partitioned or (parent.scope == rule.scope and parent.per_endpoint == rule.per_endpoint)
    )


def _base(rule: Rule, case: CallerClass) -> int:
    found = rule.ceilings.get(case)
    return rule.ceilings[ORDINARY_CLASSES[case]] if found is None else found


def _second_calls(rules: RuleSet) -> Iterator[LintFinding]:
    """On a cluster of stores, a limit whose owner is not the caller's own costs another call."""
    for rule in rules.rules:
        if rule.counts is CountedUnit.FAILED_LOGINS:
            continue  # Asked for instead of a request's limits, not beside them.
        others = [
            case.value for case, own in _OWN_MEMBERS.items() if rule.applies_to(case) and rule.scope[0] not in own
        ]
        if others:
            what = f"costs a second call on a cluster of stores, for {', '.join(others)}: it counts by {rule.scope[0]}, not by caller"
            yield _finding(Severity.NOTE, "second-call", rule, what)


def _never_passing(rules: RuleSet) -> Iterator[LintFinding]:
    """Costs in points above the whole ceiling of a rule that they count against."""
    counting = [rule for rule in rules.rules if rule.counts is CountedUnit.POINTS]
    for rule, cost, what, file, line in (*_costs_by_method(rules, counting), *_costs_of_endpoints(rules, counting)):
        lowest = min((ceiling for ceiling in rule.ceilings.values() if ceiling), default=UNLIMITED)
        if cost > lowest:
            said = f"{what} costs {cost} points and can never pass: the ceiling is {lowest}"
            yield LintFinding(Severity.ERROR, "never-passes", file, line, rule.name, said)


_Cost = tuple[Rule, int, str, str, int]
"""Against which rule, how many points, of what, and where that stands."""


def _costs_by_method(rules: RuleSet, counting: Sequence[Rule]) -> Iterator[_Cost]:
    """What is asked where no endpoint has a price of its own."""
    priced: RouteTree[EndpointRule] = RouteTree()
    for endpoint in rules.endpoints:
        if endpoint.points is not None:
            for text in endpoint.match:
                priced.add(parse_pattern(text), endpoint)
    for rule in counting:
        if rule.interface and set(rule.interface) <= {Interface.GRAPHQL}:
            continue
        plain = [pattern for pattern in map(parse_pattern, rule.match) if not priced.find_covering(pattern)]
        if not rule.match or any(pattern.matches_method("GET") for pattern in plain):
            yield rule, rules.points.read, "GET", rule.file, rule.line
        writing = next((method for method in WRITE_METHODS if any(p.matches_method(method) for p in plain)), None)
        if not rule.match or writing:
            yield rule, rules.points.write, writing or WRITE_METHODS[0], rule.file, rule.line


def _costs_of_endpoints(rules: RuleSet, counting: Sequence[Rule]) -> Iterator[_Cost]:
    reach = _Reach(counting)
    for endpoint in rules.endpoints:
        for rule in reach.meeting(endpoint):
            yield from _costs_at(endpoint, rule, rules)
    for interface in Interface:
        # Of those that count everything the dearest endpoint of each kind says it all: their pairs would be too many.
        speaking = [endpoint for endpoint in rules.endpoints if endpoint.interface is interface]
        if speaking:
            dearest = max(speaking, key=lambda endpoint: endpoint.points or 0)
            for rule in counting:
                if not rule.match and (not rule.interface or interface in rule.interface):
                    yield from _costs_at(dearest, rule, rules)


def _costs_at(endpoint: EndpointRule, rule: Rule, rules: RuleSet) -> Iterator[_Cost]:
    if endpoint.interface is Interface.GRAPHQL:
        yield rule, rules.graphql.query_points, "a GraphQL query", rule.file, rule.line
        yield rule, rules.graphql.mutation_points, "a GraphQL mutation", rule.file, rule.line
    elif endpoint.points is not None:
        yield rule, endpoint.points, " and ".join(endpoint.match), endpoint.file, endpoint.line


def _unknown_names(rules: RuleSet) -> Iterator[LintFinding]:
    """What is a name of nothing: an endpoint's patterns that no other of them leaves anything to."""
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
                    f"{text!r} is described before: this is never reached",
                )
        described.update(endpoint.match)


def _same_resource(rules: RuleSet) -> Iterator[LintFinding]:
    """Two buckets of one name: callers cannot tell them apart."""
    seen: dict[str, Rule] = {}
    for rule in rules.rules:
        if rule.resource is None:
            continue
        first = seen.setdefault(rule.resource, rule)
        if first is not rule and _cases(first) & _cases(rule):
            what = f"its resource {rule.resource!r} is that of {first.name} too: callers see one name for two counts"
            yield _finding(Severity.WARNING, "same-resource", rule, what)


def _lost_counters(rules: RuleSet, before: RuleSet) -> Iterator[LintFinding]:
    names = {rule.name for rule in rules.rules} | {rule.was for rule in rules.rules}
    known = {rule.name: rule for rule in before.rules}
    for rule in before.rules:
        if rule.name not in names:
            what = "is gone, and its counters with it; if it was renamed, say so in the new rule with `was`"
            yield _finding(Severity.WARNING, "counters-lost", rule, what)
    for rule in rules.rules:
        old = known.get(rule.name) or known.get(rule.was or "")
        if old is not None and old.algorithm is not rule.algorithm:
            what = f"counts by {rule.algorithm.value} and no longer by {old.algorithm.value}: its counters begin anew"
            yield _finding(Severity.WARNING, "counters-lost", rule, what)
        if rule.was is not None and rule.was not in known and rule.name not in known:
            what = f"was {rule.was!r}, which is the name of no rule in force"
            yield _finding(Severity.WARNING, "unknown-name", rule, what)
