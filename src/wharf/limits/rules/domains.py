"""Reads the domains of a rules file: a tree of entries for each domain, whose leaves are limits on descriptors."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from wharf.languages.source_locations import SourceLocation
from wharf.limits.core.callers.caller import LIMITED_CLASSES
from wharf.limits.core.rule import (
    DESCRIPTOR_STATUS,
    MINUTE_MS,
    OVERRIDE_PREFIX,
    Algorithm,
    DescriptorRule,
    Rule,
    RuleSet,
)
from wharf.limits.rules.document import TableEntry, TomlDocument, format_key
from wharf.limits.rules.schema import DESCRIPTOR, DOMAIN
from wharf.limits.toml.problems import FileProblem

MAX_DEPTH: Final = 10
"""Entries inside of each other; limits how long the search for a limit takes."""
MAX_NAME_CHARACTERS: Final = 64
_LIST: Final = "descriptors"
_NO_NAME_SIGN: Final = re.compile(r"[^a-z0-9]+")
_LIMIT_FIELDS: Final = {"window": "window_ms", "enforce": "enforce_percent"}
"""Keys of the file whose field has another name."""


class DomainContent(msgspec.Struct, frozen=True):
    """The domains of a file, and their limits."""

    names: tuple[str, ...]
    descriptors: tuple[DescriptorRule, ...]


def read_domains(document: TomlDocument) -> DomainContent:
    """Return the domains of a file with their limits. Problems are recorded in the document."""
    names: list[str] = []
    descriptors: list[DescriptorRule] = []
    for entry in document.read_entries(DOMAIN, document.raw, (), "domain", {_LIST}):
        name = entry.values.get("name", "")
        if name in names:
            message = f"{name!r} is the name of two domains: write their descriptors into one"
            document.add_problem(entry.location, format_key(entry.path, "name"), message)
        names.append(name)
        descriptors += _read_descriptors(document, entry, name, ())
    return DomainContent(tuple(names), tuple(descriptors))


def _read_descriptors(
    document: TomlDocument, parent: TableEntry, domain: str, parents: tuple[tuple[str, str], ...]
) -> Iterator[DescriptorRule]:
    """Yield the limits of the entries in a domain or inside another entry. `parents` are the entries around them."""
    if len(parents) >= MAX_DEPTH:
        if parent.raw.get(_LIST):
            message = f"is nested more than {MAX_DEPTH} levels deep"
            document.add_problem(parent.location, format_key(parent.path, _LIST), message)
        return
    known: set[tuple[str, str]] = set()
    for entry in document.read_entries(DESCRIPTOR, parent.raw, parent.path, _LIST, {_LIST}):
        value = entry.values.get("value", "")
        own = (entry.values.get("key", ""), "" if value == "*" else value)
        if own in known:
            text = f"{own[0]}={own[1] or '*'}"
            message = f"{text} is listed twice: write one entry, with the descriptors of both inside it"
            document.add_problem(entry.location, format_key(entry.path, "key"), message)
        known.add(own)
        entries = (*parents, own)
        if "ceiling" in entry.values:
            yield DescriptorRule(domain=domain, entries=entries, rule=_build_rule(entry, domain, entries))
        else:
            _check_entry_without_limit(document, entry)
        yield from _read_descriptors(document, entry, domain, entries)


def _check_entry_without_limit(document: TomlDocument, entry: TableEntry) -> None:
    """Record a problem for keys of a limit in an entry that has none, and for an entry that leads to nothing."""
    for key in entry.values.keys() - {"key", "value"}:
        document.add_problem(
            entry.locations[key], format_key(entry.path, key), "has no effect without `ceiling`: add a ceiling"
        )
    if not entry.raw.get(_LIST) and "ceiling" not in entry.raw:
        document.add_problem(
            entry.location, format_key(entry.path, "ceiling"), "is missing: add it, or `descriptors` inside this entry"
        )


def _build_rule(entry: TableEntry, domain: str, entries: tuple[tuple[str, str], ...]) -> Rule:
    """Return the rule that counts the descriptors of an entry with a limit."""
    values: dict[str, Any] = {
        _LIMIT_FIELDS.get(key, key): value for key, value in entry.values.items() if key not in ("key", "value")
    }
    ceiling = values.pop("ceiling")
    texts = [f"{key}={value or '*'}" for key, value in entries]
    values.setdefault("name", build_name(domain, entries))
    values.setdefault("window_ms", MINUTE_MS)
    values.setdefault("algorithm", Algorithm.WINDOW)
    return Rule(
        **values,
        match=(f"{domain}: {', '.join(texts)}",),
        ceilings=dict.fromkeys(LIMITED_CLASSES, ceiling),
        status=DESCRIPTOR_STATUS,
        line=entry.location.line,
        file=entry.file,
    )


def build_name(domain: str, entries: tuple[tuple[str, str], ...]) -> str:
    """Return the default name of a limit, such as `shop_path_x_user` for the domain `shop` and `path=/x, user=*`."""
    texts = [domain, *(text for entry in entries for text in entry if text)]
    name = "_".join(_NO_NAME_SIGN.sub("_", text.lower()).strip("_") for text in texts)
    name = re.sub(r"_+", "_", name).strip("_")
    return (name if name[:1].isalpha() else f"d_{name}")[:MAX_NAME_CHARACTERS]


def find_name_problems(rules: RuleSet) -> Iterator[FileProblem]:
    """Yield a problem for each limit of a domain whose name another rule has, or whose name is reserved."""
    if not rules.domains:
        return
    names = {rule.name for rule in rules.rules}
    for rule in (*rules.rules, *(descriptor.rule for descriptor in rules.descriptors)):
        if rule.name.startswith(OVERRIDE_PREFIX):
            message = f"names that begin with {OVERRIDE_PREFIX!r} are reserved: choose another `name`"
            yield FileProblem(rule.file, SourceLocation(max(1, rule.line), 1), f"rule {rule.name}: name", message)
    all_names = names | {descriptor.rule.name for descriptor in rules.descriptors}
    for descriptor in rules.descriptors:
        rule = descriptor.rule
        if rule.was in all_names:
            message = f"{rule.was!r} is still the name of a rule: a counter cannot belong to both rules"
            yield FileProblem(rule.file, SourceLocation(rule.line, 1), f"{rule.match[0]}: was", message)
        if rule.name in names:
            message = f"{rule.name!r} is the name of another rule too: set another `name`"
            yield FileProblem(rule.file, SourceLocation(rule.line, 1), f"{rule.match[0]}: name", message)
        names.add(rule.name)
