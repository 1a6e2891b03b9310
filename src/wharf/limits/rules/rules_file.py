"""Reads a rules file: the file is accepted completely, or rejected with all its problems and their locations.

A file starts from a built-in profile and adds to it or overrides it. The result is a complete `RuleSet`; `lint` finds
unwise rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from wharf.languages.source_locations import SourceLocation
from wharf.limits.core.callers.caller import ORDINARY_CLASSES, CallerClass
from wharf.limits.core.resources import parse_owner_pattern
from wharf.limits.core.route import OUTSIDE_PREFIX, BadPattern, parse_pattern, place_pattern
from wharf.limits.core.rule import (
    DEFAULT_ALGORITHMS,
    DEFAULT_OWNER_PATHS,
    Algorithm,
    BanRules,
    CountedUnit,
    EndpointRule,
    GraphqlRules,
    MethodPoints,
    PathRules,
    Rule,
    RuleSet,
    Scale,
)
from wharf.limits.rules.document import TableEntry, TomlDocument, format_key, suggest_name
from wharf.limits.rules.domains import find_name_problems, read_domains
from wharf.limits.rules.schema import BAN, ENDPOINT, GRAPHQL, PATHS, POINTS, REQUIRED, ROOT, RULE, SCALE
from wharf.limits.toml.problems import FileProblem, InvalidFile

DEFAULT_PROFILE: Final = "code-host"
PROFILES: Final = ("code-host", "gitea", "forgejo", "gitlab", "cluster")
SCOPE_MEMBERS: Final = frozenset({"caller", "address", "user", "app", "installation", "repository", "token"})

TABLE_NAMES: Final = frozenset({"rule", "endpoint", "points", "graphql", "paths", "ban", "domain"})
# Keys of the file whose field has another name.
_RULE_FIELDS: Final = {"window": "window_ms", "ceiling": "ceilings", "enforce": "enforce_percent"}
_BAN_FIELDS: Final = {"grace": "grace_ms", "first": "first_ms", "most": "most_ms", "forget": "forget_ms"}


def read_rules(text: str, file: str = "rules.toml") -> RuleSet:
    """Return the rules in a text, merged with the built-in profile that it names.

    `file` is the name of the file, for messages. Raises `InvalidFile` with all problems of the text.
    """
    document = TomlDocument(text, file)
    document.check_names({key.name for key in ROOT.keys} | TABLE_NAMES)
    top = _read_top(document)
    base = _read_base_profile(top, document)
    own = _FileContent(document, top)
    document.raise_problems()
    content = _merge_with_base(base, own) if base is not None else own
    site_path, base_path = content.top.get("site_path", ""), content.top.get("base_path", "")
    rules = RuleSet(
        rules=tuple(_build_rule(_place_patterns(entry, site_path, base_path), scale) for entry, scale in content.rules),
        endpoints=tuple(
            _build_endpoint_rule(_place_patterns(entry, site_path, base_path)) for entry in content.endpoints
        ),
        points=MethodPoints(**content.points),
        graphql=GraphqlRules(**content.graphql),
        paths=PathRules(**content.paths),
        ban=BanRules(**content.ban),
        domains=own.domains.names,
        descriptors=own.domains.descriptors,
        **(content.top | _place_owner_paths(content.top, site_path, base_path)),
    )
    problems = [*_find_contradictions(rules, content, file), *find_name_problems(rules)]
    if problems:
        raise InvalidFile(problems)
    return rules.with_shadow() if rules.shadow else rules


def read_profile_text(name: str) -> str:
    """Return the TOML text of a built-in profile."""
    return files("wharf.limits.rules").joinpath(f"profiles/{name}.toml").read_text("utf-8")


def read_profile(name: str = DEFAULT_PROFILE) -> RuleSet:
    """Return the unchanged rules of a built-in profile."""
    return read_rules(f'profile = "{name}"\n', name)


def _read_top(document: TomlDocument) -> TableEntry:
    """Return the keys of a file outside of any table, and record their problems in the document."""
    values = {name: value for name, value in document.raw.items() if ROOT.find_key(name) is not None}
    return document.read_entry(ROOT, values, (), set())


def _place_patterns(entry: TableEntry, site_path: str, base_path: str) -> TableEntry:
    """Return an entry whose patterns match complete paths: this is the one place where the base path is applied."""
    if "match" not in entry.values:
        return entry
    placed = tuple(place_pattern(text, site_path, base_path) for text in entry.values["match"])
    return msgspec.structs.replace(entry, values={**entry.values, "match": placed})


def _place_owner_paths(top: Mapping[str, Any], site_path: str, base_path: str) -> dict[str, tuple[str, ...]]:
    """Return the `owner_paths` as patterns of complete paths. Without a base path, no path is outside of it."""
    texts = top.get("owner_paths", DEFAULT_OWNER_PATHS)
    placed = (
        place_pattern(text, site_path, base_path) for text in texts if base_path or f" {OUTSIDE_PREFIX}" not in text
    )
    return {"owner_paths": tuple(placed)}


class _FileContent:
    """The content of one rules file or profile, before both are merged. `top` are its keys outside of any table.

    The constructor reads all tables, and records their problems in the document.
    """

    def __init__(self, document: TomlDocument, top: TableEntry) -> None:
        self.file = document.file
        self.top = {name: value for name, value in top.values.items() if name != "profile"}
        _check_owner_paths(top, document)
        self.rules: list[tuple[TableEntry, TableEntry | None]] = []
        """Each rule with its `scale` table, if it has one."""
        self.endpoints: list[TableEntry] = []
        names: set[str] = set()
        for entry in document.read_entries(RULE, document.raw, (), "rule", {"scale"}):
            scale = entry.raw.get("scale")
            path = (*entry.path, "scale")
            if scale is not None and not isinstance(scale, dict):
                document.add_problem(
                    document.get_location(path), format_key(entry.path, "scale"), "must be a table: write [rule.scale]"
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
        self.domains = read_domains(document)
        self.paths = dict(document.read_table(PATHS, "paths").values)
        ban = document.read_table(BAN, "ban").values
        self.ban = {_BAN_FIELDS.get(name, name): value for name, value in ban.items()}


def _read_base_profile(top: TableEntry, document: TomlDocument) -> _FileContent | None:
    """Return the content of the profile that the file starts from; `None` if it uses none or names an unknown one.

    An unknown name is recorded as a problem. A rule of the file with the name of a built-in rule may omit keys that are
    otherwise required; this is set in `document`.
    """
    name = top.values.get("profile", DEFAULT_PROFILE)
    if name == "none":
        return None
    if name not in PROFILES:
        message = f"{name!r} is not a profile{suggest_name(name, {*PROFILES, 'none'})}"
        document.add_problem(top.locations.get("profile", SourceLocation(1, 1)), "profile", message)
        return None
    content = _read_profile_content(name)
    known = {entry.values["name"] for entry, _ in content.rules}
    required_keys = {f"{key.name}" for key in RULE.keys if key.default == REQUIRED}
    optional_keys = {
        format_key(("rule", index), key)
        for index, raw in enumerate(document.raw.get("rule", []) if isinstance(document.raw.get("rule"), list) else [])
        if isinstance(raw, dict) and raw.get("name") in known
        for key in required_keys - raw.keys()
    }
    document.set_optional_keys(optional_keys)
    return content


def _read_profile_content(name: str) -> _FileContent:
    """Return the content of a built-in profile, merged with the profile that it starts from itself, if any."""
    document = TomlDocument(read_profile_text(name), f"{name} (built in)")
    top = _read_top(document)
    base = _read_base_profile(top, document)
    own = _FileContent(document, top)
    document.raise_problems()
    return own if base is None else _merge_with_base(base, own)


def _check_rule(entry: TableEntry, document: TomlDocument) -> None:
    """Record the problems of a rule's patterns and scope in the document."""
    _check_patterns(entry, document)
    values, locations = entry.values, entry.locations
    scope = values.get("scope", ("caller",))
    for member in scope:
        if member not in SCOPE_MEMBERS:
            document.add_problem(
                locations["scope"],
                format_key(entry.path, "scope"),
                f"{member!r} is not known{suggest_name(member, set(SCOPE_MEMBERS))}",
            )
    if not 1 <= len(scope) <= 2 or len(set(scope)) != len(scope):
        document.add_problem(
            locations["scope"], format_key(entry.path, "scope"), "must be one member or two different members"
        )


def _check_patterns(entry: TableEntry, document: TomlDocument) -> None:
    """Record a problem in the document for each pattern of an entry that cannot be parsed."""
    for index, text in enumerate(entry.values.get("match", ())):
        try:
            parse_pattern(text)
        except BadPattern as problem:
            document.add_problem(
                document.get_location((*entry.path, "match", index)), format_key(entry.path, "match"), str(problem)
            )


def _check_owner_paths(top: TableEntry, document: TomlDocument) -> None:
    """Record a problem in the document for each of the `owner_paths` that is no pattern, or names no owner."""
    for index, text in enumerate(top.values.get("owner_paths", ())):
        try:
            parse_owner_pattern(text)
        except BadPattern as problem:
            document.add_problem(document.get_location(("owner_paths", index)), "owner_paths", str(problem))


def _merge_with_base(base: _FileContent, own: _FileContent) -> _FileContent:
    """Return `base`, the content of a profile, after adding the content `own` of a rules file to it.

    New rules come before those of the profile. A rule with the name of a profile rule changes that rule in its position.
    """
    named = {entry.values["name"]: (entry, scale) for entry, scale in own.rules}
    known = {entry.values["name"] for entry, _ in base.rules}
    changed = []
    for entry, scale in base.rules:
        override, override_scale = named.get(entry.values["name"], (None, None))
        changed.append((entry if override is None else _override_entry(entry, override), override_scale or scale))
    base.rules = [(e, s) for e, s in own.rules if e.values["name"] not in known] + changed
    base.top |= own.top
    base.endpoints = [*own.endpoints, *base.endpoints]
    base.points |= own.points
    base.graphql |= own.graphql
    base.paths |= own.paths
    base.ban |= own.ban
    return base


def _override_entry(entry: TableEntry, override: TableEntry) -> TableEntry:
    """Return the profile rule `entry` with the keys that the rule `override` of the file changes."""
    values = {**entry.values, **override.values}
    if isinstance(override.raw.get("ceiling"), dict):
        # A table changes only the classes that it names; a number changes all.
        values["ceiling"] = {**entry.values["ceiling"], **override.values["ceiling"]}
    return msgspec.structs.replace(
        override, values=values, locations={**dict.fromkeys(entry.locations, override.location), **override.locations}
    )


def _build_rule(entry: TableEntry, scale: TableEntry | None) -> Rule:
    """Return the rule that a table and its `scale` table describe, with the defaults that depend on what it counts."""
    values: dict[str, Any] = {_RULE_FIELDS.get(name, name): value for name, value in entry.values.items()}
    values.setdefault("algorithm", DEFAULT_ALGORITHMS[values.get("counts", CountedUnit.REQUESTS)])
    if scale is not None:
        values["scale"] = Scale(**scale.values)
    return Rule(**values, line=entry.location.line, file=entry.file)


def _build_endpoint_rule(entry: TableEntry) -> EndpointRule:
    """Return the endpoint rule that a table describes."""
    return EndpointRule(**entry.values, line=entry.location.line, file=entry.file)


# -- checks of several keys -------------------------------------------------------------------------------------------

_METERED_UNITS: Final = frozenset({CountedUnit.CPU_MS})
_PRIMARY_UNITS: Final = frozenset({CountedUnit.REQUESTS, CountedUnit.QUERY_COST})

RuleCheck = Callable[[Rule, Mapping[str, Rule]], tuple[str, str] | None]
"""A check of one rule, given all rules by name. It returns the wrong key and the message, or `None` if all is right."""


def _check_bucket(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that a primary limit counts requests or query costs in a fixed window.

    Return the wrong key and the message, or `None` if the rule is right.
    """
    if rule.is_primary and (rule.counts not in _PRIMARY_UNITS or rule.algorithm is not Algorithm.WINDOW):
        return "counts", "a primary limit must count requests or query_cost in a window, because headers report its end"
    return None


def _check_hidden(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that a primary limit is not hidden. Return the wrong key and the message, or `None` if the rule is right."""
    return (
        ("hidden", "a primary limit cannot be hidden: headers always report it")
        if rule.is_primary and rule.hidden
        else None
    )


def _check_algorithm(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that connections, and nothing else, are counted by leases, and CPU time, and nothing else, by a meter.

    Return the wrong key and the message, or `None` if the rule is right.
    """
    if (rule.counts is CountedUnit.CONNECTIONS) is not (rule.algorithm is Algorithm.LEASES):
        return "algorithm", "connections must be counted by leases, and leases count nothing else"
    if (rule.counts in _METERED_UNITS) is not (rule.algorithm is Algorithm.METER):
        return "algorithm", "CPU time must be counted by a meter, and a meter counts nothing else"
    return None


def _check_scale(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that a rule whose ceiling grows with an installation (`scale`) has a ceiling for installations to start from.

    Return the wrong key and the message, or `None` if the rule is right.
    """
    if rule.scale is not None and CallerClass.INSTALLATION not in rule.ceilings:
        return "scale", "needs a ceiling for `installation` as its base"
    return None


def _check_was(rule: Rule, by_name: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that the previous name of a rule is no longer the name of a rule.

    Return the wrong key and the message, or `None` if the rule is right.
    """
    if rule.was is not None and rule.was in by_name:
        return "was", f"{rule.was!r} is still the name of a rule: a counter cannot belong to both rules"
    return None


def _check_objects(rule: Rule, _: Mapping[str, Rule]) -> tuple[str, str] | None:
    """Check that only a primary limit limits the objects of a large-file batch.

    Return the wrong key and the message, or `None` if the rule is right.
    """
    if rule.objects_most is not None and not rule.is_primary:
        return "objects_most", "is only allowed for a primary limit: set a `resource`"
    return None


_CHECKS: Final[Sequence[RuleCheck]] = (
    _check_bucket,
    _check_hidden,
    _check_algorithm,
    _check_scale,
    _check_was,
    _check_objects,
)


def _find_contradictions(rules: RuleSet, content: _FileContent, file: str) -> Iterator[FileProblem]:
    """Yield the problems that concern more than one key of a rule, and classes of callers without a core bucket."""
    by_name = {rule.name: rule for rule in rules.rules}
    for rule, (entry, _) in zip(rules.rules, content.rules, strict=True):
        for check in _CHECKS:
            found = check(rule, by_name)
            if found is not None:
                key, message = found
                yield FileProblem(
                    entry.file, entry.locations.get(key, entry.location), f"rule {rule.name}: {key}", message
                )
    required_classes = [
        caller_class
        for caller_class in CallerClass
        if caller_class not in ORDINARY_CLASSES and caller_class is not CallerClass.MACHINE
    ]
    missing_classes = [
        caller_class.value for caller_class in required_classes if not _has_core_rule(rules, caller_class)
    ]
    if missing_classes:
        message = (
            "no primary limit applies to all other requests of "
            f"{', '.join(missing_classes)}: add a rule with a `resource`, without `match`, and with a ceiling for them"
        )
        yield FileProblem(file, SourceLocation(1, 1), "", message)


def _has_core_rule(rules: RuleSet, caller_class: CallerClass) -> bool:
    """Return whether one primary limit applies to every request of this class of callers.

    That is a primary rule without patterns, such as `core` of the built-in profiles.
    """
    return any(rule.is_primary and not rule.match and rule.applies_to(caller_class) for rule in rules.rules)
