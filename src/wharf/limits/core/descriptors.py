"""Descriptors: how the requests of a proxy such as Envoy select rules, and the charge plan that they lead to.

A descriptor is a list of entries, each a key and a value, such as `path=/x, user=ada`. The rules of a domain form a tree
by entry. Nothing here parses messages of the protocol.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.plans import Charge, ChargePlan, build_plan, is_enforced_for
from wharf.limits.core.rule import OVERRIDE_RULES, Algorithm, DescriptorRule, Rule, RuleSet

MAX_HITS: Final = 10**12
"""A larger number of hits counts as this one. It is above all ceilings that a file can set but one, and fits into a double."""
MAX_KEY_CHARACTERS: Final = 256
"""Longer counter keys are hashed. Limits memory: callers choose values of descriptors, such as headers."""
SHOWN_CHARACTERS: Final = 64
"""Of a long value, counter keys and the decision log contain this much."""
MAX_PATH_CHARACTERS: Final = 512
"""The decision log contains this much of the text of a request's descriptors."""
OVERFLOW_KEY: Final = "other"
"""The key under which further values are counted when a rule has the maximum number of counters."""
_SAFE: Final = "!#$&'()*+-./:;<=>?@[]^_`|~"
"""Signs that stay as they are in counter keys: all printable ones but those that separate parts of a key, and `%`."""
_PLAIN: Final = re.compile(r"[0-9A-Za-z!#$&'()*+\-./:;<=>?@\[\]^_`|~]*")

Entries = tuple[tuple[str, str], ...]


class LimitOverride(msgspec.Struct, frozen=True, gc=False):
    """A limit that the proxy sends with a descriptor. It replaces the ceiling and the window of the rules."""

    ceiling: int
    unit_index: int
    """The index of its unit in `OVERRIDE_RULES`."""


class Descriptor(msgspec.Struct, frozen=True, gc=False):
    """One descriptor of a request."""

    entries: Entries
    hits: int = 1
    """What it adds to the counters that it matches. 0 only checks that something is left."""
    override: LimitOverride | None = None
    is_refund: bool = False
    """Whether the hits are taken back from the counter. Then nothing is checked."""


class DescriptorPlan(msgspec.Struct, frozen=True, eq=False):
    """The charge plan of all descriptors of a request, and which charge belongs to which descriptor."""

    plan: ChargePlan | None
    """`None` if no descriptor has a limit."""
    charge_indexes: tuple[int | None, ...]
    """For each descriptor, the index of its charge; `None` without a limit."""
    caller: Caller
    """Stands for the descriptors in logs and counts."""
    text: str
    """The domain and the descriptors, for the decision log."""
    meter_charges: tuple[Charge, ...]
    """The charges that are counted also if the request is refused, because what they count was used already."""
    refunds: Mapping[int, int]
    """What is taken back, by the index of the charge."""


class _DescriptorNode:
    """A node of the tree: the rules that begin with the same entries."""

    __slots__ = ("any_value", "by_prefix", "by_value", "descriptor_rule", "prefix_lengths")

    def __init__(self) -> None:
        self.by_value: dict[tuple[str, str], _DescriptorNode] = {}
        self.by_prefix: dict[tuple[str, str], _DescriptorNode] = {}
        """By key and the beginning of the value."""
        self.prefix_lengths: dict[str, list[int]] = {}
        """For each key, the lengths of these beginnings, the longest first."""
        self.any_value: dict[str, _DescriptorNode] = {}
        self.descriptor_rule: DescriptorRule | None = None

    def get_child(self, key: str, value: str) -> "_DescriptorNode":
        """Return the child for this entry of a rule; add it if it does not exist."""
        if not value:
            return self.any_value.setdefault(key, _DescriptorNode())
        if not value.endswith("*"):
            return self.by_value.setdefault((key, value), _DescriptorNode())
        prefix = value[:-1]
        lengths = self.prefix_lengths.setdefault(key, [])
        if len(prefix) not in lengths:
            lengths.append(len(prefix))
            lengths.sort(reverse=True)
        return self.by_prefix.setdefault((key, prefix), _DescriptorNode())

    def list_children(self, key: str, value: str) -> Iterator["_DescriptorNode"]:
        """Yield the children that match an entry, the most specific first."""
        if (exact := self.by_value.get((key, value))) is not None:
            yield exact
        for length in self.prefix_lengths.get(key, ()):
            if length <= len(value) and (child := self.by_prefix.get((key, value[:length]))) is not None:
                yield child
        if (child_of_all := self.any_value.get(key)) is not None:
            yield child_of_all


class DescriptorBook:
    """The rules for descriptors, indexed by domain and entry. It never changes; a reload builds another one."""

    def __init__(self, rules: RuleSet) -> None:
        self._ban_rules = rules.ban
        self._descriptor_rules = rules.descriptors
        self._is_shadow = rules.shadow
        self._domains: dict[str, _DescriptorNode] = {domain: _DescriptorNode() for domain in rules.domains}
        for descriptor_rule in rules.descriptors:
            node = self._domains[descriptor_rule.domain]
            for key, value in descriptor_rule.entries:
                node = node.get_child(key, value)
            node.descriptor_rule = descriptor_rule

    def find_rule(self, domain: str, entries: Entries) -> DescriptorRule | None:
        """Return the most specific rule that matches all entries of a descriptor, in their order; `None` without one.

        At each entry, an exact value comes before a beginning, and a beginning before a rule for all values.
        """
        root = self._domains.get(domain)
        return None if root is None else _find_rule(root, entries, 0)

    def find_caller(self, owner: str) -> Caller | None:
        """Return the caller with this owner, such as `shop/user:ada`; `None` if it is not of a domain of the rules."""
        domain, slash, key = owner.partition("/")
        return build_caller(domain, key) if slash and domain in self._domains else None

    def list_charges(self, owner: str) -> list[Charge]:
        """Return a charge for each limit that can count the descriptors of this owner, such as `shop/user:ada`."""
        domain, _, key = owner.partition("/")
        parts = key.split(",")
        return [
            _build_charge(found.rule, found.rule, key, ceiling=found.rule.ceilings[CallerClass.NONE], hits=1)
            for found in self._descriptor_rules
            if found.domain == domain
            and len(found.entries) == len(parts)
            and all(part.startswith(f"{_encode(name)}:") for part, (name, _) in zip(parts, found.entries, strict=True))
        ]

    def build_plan(self, domain: str, descriptors: Sequence[Descriptor]) -> DescriptorPlan:
        """Return the charge plan of all descriptors of a request.

        Descriptors that meet the same counter have one charge with the sum of their hits.
        """
        charges: dict[tuple[str, str, bool], Charge] = {}
        counters: list[tuple[str, str, bool] | None] = []
        refunds: dict[tuple[str, str, bool], int] = {}
        for descriptor in descriptors:
            charge = self._build_charge(domain, descriptor)
            if charge is None:
                counters.append(None)
                continue
            counter = (charge.name, charge.key, descriptor.is_refund)
            if descriptor.is_refund:
                refunds[counter] = min(refunds.get(counter, 0) + descriptor.hits, MAX_HITS)
            known = charges.get(counter)
            charges[counter] = charge if known is None else _add_charges(known, charge)
            counters.append(counter)
        indexes = {counter: index for index, counter in enumerate(charges)}
        all_charges = tuple(charges.values())
        limited = [d for d, counter in zip(descriptors, counters, strict=True) if counter is not None]
        caller = build_caller(domain, all_charges[0].key if all_charges else build_key(descriptors[0].entries))
        return DescriptorPlan(
            plan=self._build_plan(domain, limited, caller, all_charges) if all_charges else None,
            charge_indexes=tuple(None if counter is None else indexes[counter] for counter in counters),
            caller=caller,
            text=format_descriptors(domain, descriptors),
            meter_charges=tuple(c for c in all_charges if c.rule.algorithm is Algorithm.METER and c.cost),
            refunds={indexes[counter]: hits for counter, hits in refunds.items() if hits},
        )

    def _build_charge(self, domain: str, descriptor: Descriptor) -> Charge | None:
        """Return the charge of a descriptor; `None` if it has no limit."""
        if domain not in self._domains:
            return None
        descriptor_rule = self.find_rule(domain, descriptor.entries)
        override = descriptor.override
        if override is None:
            if descriptor_rule is None:
                return None
            rule = descriptor_rule.rule
            ceiling, key = rule.ceilings[CallerClass.NONE], build_key(descriptor.entries)
        else:
            rule = OVERRIDE_RULES[override.unit_index]
            # The counters of all domains are in one table.
            ceiling, key = override.ceiling, build_key((("domain", domain), *descriptor.entries))
        mode = rule if descriptor_rule is None else descriptor_rule.rule
        charge = _build_charge(rule, mode, key, ceiling=ceiling, hits=min(descriptor.hits, MAX_HITS))
        if descriptor.is_refund:
            return msgspec.structs.replace(charge, cost=0, required=0, is_enforced=False)
        if self._is_shadow and charge.is_enforced:  # A limit that the proxy sends has no rule of the file.
            return msgspec.structs.replace(charge, is_enforced=False)
        return charge

    def _build_plan(
        self, domain: str, descriptors: Iterable[Descriptor], caller: Caller, charges: tuple[Charge, ...]
    ) -> ChargePlan:
        """Return the charge plan with these charges. The plan counts as free, so that refusals lead to no ban."""
        keys = dict.fromkeys(",".join(_encode(key) for key, _ in descriptor.entries) for descriptor in descriptors)
        return build_plan(
            f"{domain} {' '.join(keys)}"[:MAX_PATH_CHARACTERS],
            caller,
            self._ban_rules,
            bucket_charge=charges[0],
            charges=charges,
            is_free=True,
        )


def _find_rule(node: _DescriptorNode, entries: Entries, depth: int) -> DescriptorRule | None:
    """Return the most specific rule below a node that matches the entries from `depth` on; `None` without one."""
    if depth == len(entries):
        return node.descriptor_rule
    for child in node.list_children(*entries[depth]):
        found = _find_rule(child, entries, depth + 1)
        if found is not None:
            return found
    return None


def _build_charge(rule: Rule, mode: Rule, key: str, *, ceiling: int, hits: int) -> Charge:
    """Return the charge of a counter of `rule`. `mode` is the rule that decides whether it is enforced."""
    return Charge(
        rule=rule,
        name=rule.name,
        key=key,
        ceiling=ceiling,
        cost=hits,
        required=_compute_required(rule, hits),
        is_enforced=not mode.shadow and is_enforced_for(key, mode.enforce_percent),
        overflow_key=OVERFLOW_KEY,
        owner=key,
    )


def _compute_required(rule: Rule, hits: int) -> int:
    """Return how much must be left below the ceiling: for a meter, which may exceed it, anything; else all hits, at least 1."""
    return 1 if rule.algorithm is Algorithm.METER else max(1, hits)


def _add_charges(first: Charge, second: Charge) -> Charge:
    """Return the charge of two descriptors that meet the same counter."""
    cost = first.cost + second.cost
    return msgspec.structs.replace(
        first,
        cost=cost,
        required=_compute_required(first.rule, cost) if first.required else 0,
        ceiling=min(first.ceiling, second.ceiling),
        is_enforced=first.is_enforced or second.is_enforced,
    )


def build_caller(domain: str, key: str) -> Caller:
    """Return the caller that stands for a request of a proxy in logs and counts, such as `shop/user:ada`.

    `key` is the counter key of the first descriptor with a limit.
    """
    owner = f"{_encode(domain)}/{key}"
    return Caller(
        kind=CredentialKind.NONE,
        caller_class=CallerClass.NONE,
        owner=owner,
        address="",
        display_name=owner,
    )


def build_key(entries: Entries) -> str:
    """Return the counter key of a descriptor, such as `path:/x,user:ada`.

    Spaces, commas, braces and other signs that separate parts of keys are percent-encoded. A long key is hashed, and then
    contains a `%` that no other key can contain.
    """
    if sum(len(key) + len(value) for key, value in entries) <= MAX_KEY_CHARACTERS:
        text = ",".join(f"{_encode(key)}:{_encode(value)}" for key, value in entries)
        if len(text) <= MAX_KEY_CHARACTERS:
            return text
    # Long values are not encoded, because that takes 0.1 us for each byte.
    digest = hashlib.sha256(msgspec.json.encode(entries)).hexdigest()
    key, value = entries[0]
    return f"{_encode(key[:SHOWN_CHARACTERS])}:{_encode(value[:SHOWN_CHARACTERS])}%sha256:{digest}"


def _encode(text: str) -> str:
    """Return a text without signs that separate parts of counter keys."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE)


def format_descriptors(domain: str, descriptors: Iterable[Descriptor]) -> str:
    """Return the domain and the descriptors as one text, such as `shop (path=/x, user=ada)`, for the decision log.

    Signs that are not printable are percent-encoded, and long values are cut.
    """
    texts = []
    length = 0
    for descriptor in descriptors:
        entries = [
            f"{_encode(key[:SHOWN_CHARACTERS])}={_encode(value[:SHOWN_CHARACTERS])}"
            for key, value in descriptor.entries
        ]
        texts.append(f"({', '.join(entries)})")
        length += len(texts[-1])
        if length > MAX_PATH_CHARACTERS:
            break
    return f"{domain} {' '.join(texts)}"[:MAX_PATH_CHARACTERS]
