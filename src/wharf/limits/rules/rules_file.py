"""Reads a rules file: all or nothing, every problem with its line and column.

A file starts from a built-in profile and adds to it or overrides it. What comes out is a `RuleSet`, complete and in
order; whether it is wise is for `lint` to say.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import ORDINARY_CLASSES, CallerClass
from wharf.limits.core.route import BadPattern, parse_pattern
from wharf.limits.core.rule import (
    DEFAULT_ALGORITHMS,
    Algorithm,
    BanRules,
    CountedUnit,
    EndpointRule,
    GraphqlRules,
    MethodPoints,
    Rule,
    RuleSet,
    Scale,
)
from wharf.limits.rules.document import TableEntry, TomlDocument, format_key, suggest_name
from wharf.limits.rules.schema import BAN, ENDPOINT, GRAPHQL, POINTS, REQUIRED, ROOT, RULE, SCALE
from wharf.limits.toml.problems import FileProblem, InvalidFile, SourceLocation

DEFAULT_PROFILE: Final = "code-host"
PROFILES: Final = ("code-host", "cluster")
SCOPE_MEMBERS: Final = frozenset({"caller", "address", "user", "app", "installation", "repository", "token"})

_TABLES: Final = frozenset({"rule", "endpoint", "points", "graphql", "ban"})
# Keys of the file whose field has another name, and so are not passed on under their own.
_RULE_FIELDS: Final = {"window": "window_ms", "ceiling": "ceilings", "enforce": "enforce_percent"}
_BAN_FIELDS: Final = {"grace": "grace_ms", "first": "first_ms", "most": "most_ms", "forget": "forget_ms"}


def read_rules(text: str, file: str = "rules.toml") -> RuleSet:
    """Read a rules file. Raises InvalidFile with everything that is wrong with it."""
    document = TomlDocument(text, file)
    document.check_names({key.name for key in ROOT.keys} | _TABLES)
    plain = {name: value for name, value in document.raw.items() if ROOT.find_key(name) is not None}
    top = document.read_entry(ROOT, plain, (), set())
    base = _base(top, document)
    own = _Read(document)
    document.raise_problems()
    written = _merged(base, own) if base is not None else own
    rules = RuleSet(
        rules=tuple(_rule(entry, scale) for entry, scale in written.rules),
        endpoints=tuple(_endpoint(entry) for entry in written.endpoints),
        points=MethodPoints(**written.points),
        graphql=GraphqlRules(**written.graphql),
        ban=BanRules(**written.ban),
        **{name: value for name, value in top.values.items() if name != "profile"},
    )
    problems = list(_contradictions(rules, written, file))
    if problems:
        raise InvalidFile(problems)
    return rules


def read_profile_text(name: str) -> str:
    return files("wharf.limits.rules").joinpath(f"profiles/{name}.toml").read_text("utf-8")


def read_profile(name: str = DEFAULT_PROFILE) -> RuleSet:
    """The rules of a built-in profile, unchanged."""
    return read_rules(f'profile = "{name}"\n', name)


class _Read:
    """What one file says, not yet merged with what it starts from."""

    def __init__(self, document: TomlDocument) -> None:
        self.file = document.file
        self.rules: list[tuple[TableEntry, TableEntry | None]] = []
        self.endpoints: list[TableEntry] = []
        names: set[str] = set()
        for entry in document.read_entries(RULE, document.raw, (), "rule", {"scale"}):
            scale = entry.raw.get("scale")
            path = (*entry.path, "scale")
            if scale is not None and not isinstance(scale, dict):
                document.add_problem(
                    document.get_location(path), format_key(entry.path, "scale"), "is a table: write [rule.scale]"
                )
                scale = None
            self.rules.append((entry, None if scale is None else document.read_entry(SCALE, scale, path, set())))
            _check_rule(entry, document)
            if entry.values.get("name") in names:
                document.add_problem(
                    entry.location, format_key(entry.path, "name"), f"{entry.values['name']!r} is the name of two rules"
                )
            names.add(entry.values.get("name", ""))
        for entry in document.read_entries(ENDPOINT, document.raw, (), "endpoint", set()):
            self.endpoints.append(entry)
            _check_patterns(entry, document)
        self.points = dict(document.read_table(POINTS, "points").values)
        self.graphql = dict(document.read_table(GRAPHQL, "graphql").values)
        ban = document.read_table(BAN, "ban").values
        self.ban = {_BAN_FIELDS.get(name, name): value for name, value in ban.items()}


def _base(top: TableEntry, document: TomlDocument) -> _Read | None:
    """What the file starts from. A rule of the file that is in there may leave out what it does not change."""
    name = top.values.get("profile", DEFAULT_PROFILE)
    if name == "none":
        return None
    if name not in PROFILES:
        what = f"{name!r} is no profile{suggest_name(name, {*PROFILES, 'none'})}"
        document.add_problem(top.locations.get("profile", SourceLocation(1, 1)), "profile", what)
        return None
    profile = TomlDocument(read_profile_text(name), f"{name} (built in)")
    read = _Read(profile)
    profile.raise_problems()
    known = {entry.values["name"] for entry, _ in read.rules}
    needed = {f"{key.name}" for key in RULE.keys if key.default == REQUIRED}
    forgiven = {
        format_key(("rule", index), key)
        for index, raw in enumerate(document.raw.get("rule", []) if isinstance(document.raw.get("rule"), list) else [])
        if isinstance(raw, dict) and raw.get("name") in known
        for key in needed - raw.keys()
    }
    document.set_optional_keys(forgiven)
    return read


def _check_rule(entry: TableEntry, document: TomlDocument) -> None:
    _check_patterns(entry, document)
    values, places = entry.values, entry.locations
    scope = values.get("scope", ("caller",))
    for member in scope:
        if member not in SCOPE_MEMBERS:
            document.add_problem(
                places["scope"],
                format_key(entry.path, "scope"),
                f"{member!r} is not known{suggest_name(member, set(SCOPE_MEMBERS))}",
            )
    if not 1 <= len(scope) <= 2 or len(set(scope)) != len(scope):
        document.add_problem(
            places["scope"], format_key(entry.path, "scope"), "is one member or a pair of two different ones"
        )


def _check_patterns(entry: TableEntry, document: TomlDocument) -> None:
    for index, text in enumerate(entry.values.get("match", ())):
        try:
            parse_pattern(text)
        except BadPattern as problem:
            document.add_problem(
                document.get_location((*entry.path, "match", index)), format_key(entry.path, "match"), str(problem)
            )


def _merged(base: _Read, own: _Read) -> _Read:
    """The rules of the file, those that are new first; what has a name of the base changes it in its place."""
    named = {entry.values["name"]: (entry, scale) for entry, scale in own.rules}
    known = {entry.values["name"] for entry, _ in base.rules}
    changed = []
    for entry, scale in base.rules:
        over, over_scale = named.get(entry.values["name"], (None, None))
        changed.append((entry if over is None else _over(entry, over), over_scale or scale))
    base.rules = [(e, s) for e, s in own.rules if e.values["name"] not in known] + changed
    base.endpoints = [*own.endpoints, *base.endpoints]
    base.points |= own.points
    base.graphql |= own.graphql
    base.ban |= own.ban
    return base


def _over(entry: TableEntry, over: TableEntry) -> TableEntry:
    values = {**entry.values, **over.values}
    if isinstance(over.raw.get("ceiling"), dict):
        # Who writes a table names the callers that change; a number means all of them.
        values["ceiling"] = {**entry.values["ceiling"], **over.values["ceiling"]}
    return msgspec.structs.replace(
        over, values=values, locations={**dict.fromkeys(entry.locations, over.location), **over.locations}
    )


def _rule(entry: TableEntry, scale: TableEntry | None) -> Rule:
    values: dict[str, Any] = {_RULE_FIELDS.get(name, name): value for name, value in entry.values.items()}
    values.setdefault("algorithm", DEFAULT_ALGORITHMS[values.get("counts", CountedUnit.REQUESTS)])
    if scale is not None:
        values["scale"] = Scale(**scale.values)
    return Rule(**values, line=entry.location.line, file=entry.file)


def _endpoint(entry: TableEntry) -> EndpointRule:
    return EndpointRule(**entry.values, line=entry.location.line, file=entry.file)


# -- what fits no single key -------------------------------------------------------------------------------------------

_AFTERWARDS: Final = frozenset({CountedUnit.CPU_MS})
_BUCKETS: Final = frozenset({CountedUnit.REQUESTS, CountedUnit.QUERY_COST})

RuleCheck = Callable[[Rule, Mapping[str, Rule]], tuple[str, str] | None]


def _check_bucket(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    if rule.is_primary and (rule.counts not in _BUCKETS or rule.algorithm is not Algorithm.WINDOW):
        return "counts", "a primary limit counts requests or query_cost, in a window: its end is told in headers"
    return None


def _check_hidden(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    return ("hidden", "a primary limit is always told") if rule.is_primary and rule.hidden else None


def _check_algorithm(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    if (rule.counts is CountedUnit.CONNECTIONS) is not (rule.algorithm is Algorithm.LEASES):
        return "algorithm", "connections are counted by leases, and leases count nothing else"
    if (rule.counts in _AFTERWARDS) is not (rule.algorithm is Algorithm.METER):
        return "algorithm", "CPU time is counted by a meter, and a meter counts nothing else"
    return None


def _check_scale(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    if rule.scale is not None and CallerClass.INSTALLATION not in rule.ceilings:
        return "scale", "needs a ceiling for `installation` to begin from"
    return None


def _check_was(rule: Rule, by_name: Mapping[str, Rule]) -> tuple[str, str] | None:
    if rule.was is not None and rule.was in by_name:
        return "was", f"{rule.was!r} is still the name of a rule: a counter cannot belong to both"
    return None


def _check_objects(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    if rule.objects_most is not None and not rule.is_primary:
        return "objects_most", "is for a primary limit: give the rule a `resource`"
    return None


_CHECKS: Final[Sequence[RuleCheck]] = (
    _check_bucket,
    _check_hidden,
    _check_algorithm,
    _check_scale,
    _check_was,
    _check_objects,
)


def _contradictions(rules: RuleSet, written: _Read, file: str) -> Iterator[FileProblem]:
    by_name = {rule.name: rule for rule in rules.rules}
    for rule, (entry, _) in zip(rules.rules, written.rules, strict=True):
        for check in _CHECKS:
            found = check(rule, by_name)
            if found is not None:
                key, what = found
                yield FileProblem(
                    entry.file, entry.locations.get(key, entry.location), f"rule {rule.name}: {key}", what
                )
    needing = [case for case in CallerClass if case not in ORDINARY_CLASSES and case is not CallerClass.MACHINE]
    without = [case.value for case in needing if not _has_rest(rules, case)]
    if without:
        what = (
            "no primary limit holds for all other requests of "
            f"{', '.join(without)}: give a rule with a `resource`, without `match`, with a ceiling for them"
        )
        yield FileProblem(file, SourceLocation(1, 1), "", what)


def _has_rest(rules: RuleSet, case: CallerClass) -> bool:
    return any(rule.is_primary and not rule.match and rule.applies_to(case) for rule in rules.rules)
