"""What is said against the rules of a policy.

    InvalidRules   the document is no policy: it cannot be read, or it grants what does not exist

The writer mends it: `text` says what, where, and what would be right.

From the text of a policy to its rules, or InvalidRules with the words that clients know (reference 5.4).

What is written is checked whole: a misspelled key grants nothing and, worse, denies nothing. What is only evaluated was
checked when it was written, perhaps elsewhere and by others: there, keys that nobody knows are passed over.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from wharf.cluster.access.policies.levels import (
    HOST_VOLUME_LEVELS,
    NAMESPACE_LEVELS,
    PLUGIN_LEVELS,
    POOL_LEVELS,
    UNLABELLED_LEVELS,
)
from wharf.cluster.access.policies.rules import (
    HostVolumeRule,
    LevelRule,
    NamespaceRule,
    NodePoolRule,
    OperatorRule,
    PathRule,
    PolicyRules,
    SentinelRule,
    VariablesRule,
)
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)
from wharf.languages.filters.errors import find_nearest_name
from wharf.languages.hcl import Block, Body, HclError, SourceLocation, TextValue, parse_document
from wharf.languages.hcl.queries import find_attributes, find_blocks, require_text, require_texts
from wharf.languages.hcl.tree import get_item_name


class InvalidPolicy(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


K = TypeVar("K", bound=StrEnum)

MAX_POLICY_CHARACTERS: Final = 262_144
MAX_POLICY_LABELS: Final = 2_000
"""Labels and paths of one policy together: each may have to be looked at to find the closest."""
MAX_PATH_CHARACTERS: Final = 256
_SHOWN_MAX: Final = 200

_LABELLED: Final = (PolicyScope.NAMESPACE, PolicyScope.NODE_POOL, PolicyScope.HOST_VOLUME)
_LABELS: Final = {
    PolicyScope.NAMESPACE: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
    PolicyScope.NODE_POOL: ("^[a-zA-Z0-9-_*]{1,128}$", re.compile(r"[a-zA-Z0-9_*-]{1,128}")),
    PolicyScope.HOST_VOLUME: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
}
_LEVEL: Final = ("policy",)
_LEVEL_AND_CAPABILITIES: Final = ("policy", "capabilities")


def parse_policy_strict(text: str) -> PolicyRules:
    """The rules of a policy that somebody wants to write."""
    return _read(text, strict=True)


def parse_policy(text: str) -> PolicyRules:
    """The rules of a policy that is in force."""
    return _read(text, strict=False)


def _read(text: str, *, strict: bool) -> PolicyRules:
    if not text.strip():
        return PolicyRules()
    try:
        body = parse_document(text, max_chars=MAX_POLICY_CHARACTERS)
        return _Reader(text, strict=strict).rules(body)
    except HclError as error:
        raise InvalidPolicy(f"Failed to parse ACL Policy: {error.text}") from None


class _Reader:
    def __init__(self, text: str, *, strict: bool) -> None:
        self._text = text
        self._strict = strict
        self._labels = 0

    def rules(self, body: Body) -> PolicyRules:
        self._check_keys(body)
        return PolicyRules(
            namespaces=tuple(self._namespace(block) for block in self._labelled(body, PolicyScope.NAMESPACE)),
            node_pools=tuple(self._node_pool(block) for block in self._labelled(body, PolicyScope.NODE_POOL)),
            host_volumes=tuple(self._host_volume(block) for block in self._labelled(body, PolicyScope.HOST_VOLUME)),
            agent=self._level_rules(body, PolicyScope.AGENT),
            node=self._level_rules(body, PolicyScope.NODE),
            operator=tuple(self._operator(block) for block in self._unlabelled(body, PolicyScope.OPERATOR)),
            quota=self._level_rules(body, PolicyScope.QUOTA),
            plugin=self._level_rules(body, PolicyScope.PLUGIN, PLUGIN_LEVELS),
            sentinel=tuple(self._sentinel(block) for block in self._unlabelled(body, PolicyScope.SENTINEL)),
        )

    # -- keys ----------------------------------------------------------------------------------------------------

    def _check_keys(self, body: Body) -> None:
        names = [get_item_name(item) for item in body.items]
        if not any(name in tuple(PolicyScope) for name in names):
            known = ", ".join(sorted(PolicyScope))
            raise InvalidPolicy(f"Invalid policy: {_cut(self._text.strip())}: it has no block of {known}")
        if self._strict:
            once = frozenset(PolicyScope) - frozenset(_LABELLED)
            self._refuse_wrong_keys(body, tuple(PolicyScope), once=once, prefix="")

    def _check_inside(self, block: Block, known: Sequence[str]) -> None:
        if self._strict:
            named = f'{block.type} "{_cut(block.labels[0].value)}" ' if block.labels else f"{block.type} "
            self._refuse_wrong_keys(block.body, known, once=(), prefix=named)

    def _refuse_wrong_keys(self, body: Body, known: Sequence[str], *, once: Iterable[str], prefix: str) -> None:
        wrong, mends = [], []
        seen: set[str] = set()
        for item in body.items:
            name = get_item_name(item)
            if name not in known:
                meant = find_nearest_name(name, known)
                mends += [f'did you mean "{meant}"?'] if meant else []
            if name not in known or (name in seen and name in once):
                wrong.append((name, item.location))
            seen.add(name)
        if wrong:
            told = ", ".join(dict.fromkeys(f"{prefix}{_cut(name)}" for name, _ in wrong))
            mend = mends[0] if mends else f"known are {', '.join(sorted(known))}, and each stands once"
            raise _invalid(f"Invalid or duplicate policy keys: {_cut(told)}", mend, wrong[0][1])

    # -- scopes --------------------------------------------------------------------------------------------------

    def _labelled(self, body: Body, scope: PolicyScope) -> Iterable[Block]:
        spelling, pattern = _LABELS[scope]
        for block in find_blocks(body, scope, label_count=1):
            self._count_label(block)
            label = block.labels[0]
            if pattern.fullmatch(label.value) is None:
                raise _invalid(
                    f"Invalid {scope} name: {_cut(label.value)!r}", f"it must match {spelling}", label.location
                )
            yield block

    def _unlabelled(self, body: Body, scope: PolicyScope) -> Iterable[Block]:
        return find_blocks(body, scope, label_count=0)

    def _count_label(self, block: Block) -> None:
        self._labels += 1
        if self._labels > MAX_POLICY_LABELS:
            raise _invalid("Invalid policy: it has too many labels", f"at most {MAX_POLICY_LABELS}", block.location)

    def _namespace(self, block: Block) -> NamespaceRule:
        self._check_inside(block, (*_LEVEL_AND_CAPABILITIES, "variables"))
        name = block.labels[0].value
        return NamespaceRule(
            name=name,
            policy=_level(block, tuple(NAMESPACE_LEVELS)),
            capabilities=_capabilities(block, Capability, "namespace"),
            variables=self._variables(block, name),
        )

    def _variables(self, block: Block, namespace: str) -> VariablesRule | None:
        found = list(find_blocks(block.body, "variables", label_count=0))
        return VariablesRule(paths=tuple(self._paths(found, namespace))) if found else None

    def _paths(self, variables: Iterable[Block], namespace: str) -> Iterable[PathRule]:
        for block in variables:
            self._check_inside(block, ("path",))
            for path in find_blocks(block.body, "path", label_count=1):
                self._count_label(path)
                self._check_inside(path, ("capabilities",))
                label = path.labels[0]
                if not 1 <= len(label.value) <= MAX_PATH_CHARACTERS or not label.value.isprintable():
                    head = f"Invalid variable path {_cut(label.value)!r} in namespace {namespace}"
                    raise _invalid(head, f"it has 1 to {MAX_PATH_CHARACTERS} printable characters", label.location)
                capabilities = _capabilities(path, VariableCapability, "variable", where=f" in namespace {namespace}")
                yield PathRule(path=label.value, capabilities=capabilities)

    def _node_pool(self, block: Block) -> NodePoolRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        return NodePoolRule(
            name=block.labels[0].value,
            policy=_level(block, tuple(POOL_LEVELS)),
            capabilities=_capabilities(block, NodePoolCapability, PolicyScope.NODE_POOL),
        )

    def _host_volume(self, block: Block) -> HostVolumeRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        return HostVolumeRule(
            name=block.labels[0].value,
            policy=_level(block, tuple(HOST_VOLUME_LEVELS)),
            capabilities=_capabilities(block, HostVolumeMountCapability, PolicyScope.HOST_VOLUME),
        )

    def _level_rules(
        self, body: Body, scope: PolicyScope, levels: Sequence[PolicyLevel] = UNLABELLED_LEVELS
    ) -> tuple[LevelRule, ...]:
        found = []
        for block in self._unlabelled(body, scope):
            self._check_inside(block, _LEVEL)
            found.append(LevelRule(policy=_level(block, levels)))
        return tuple(found)

    def _operator(self, block: Block) -> OperatorRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        level = _level(block, UNLABELLED_LEVELS)
        return OperatorRule(policy=level, capabilities=_capabilities(block, OperatorCapability, PolicyScope.OPERATOR))

    def _sentinel(self, block: Block) -> SentinelRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        level = _level(block, UNLABELLED_LEVELS)
        return SentinelRule(policy=level, capabilities=tuple(text.value for text in _texts(block)))


# -- what stands in a block ----------------------------------------------------------------------------------------


def _level(block: Block, levels: Sequence[PolicyLevel]) -> PolicyLevel | None:
    text = _only_text(block, "policy")
    if text is None or not text.value:
        return None
    if text.value not in levels:
        raise _invalid(f"Invalid {block.type} policy: {_cut(text.value)!r}", _mend(text.value, levels), text.location)
    return PolicyLevel(text.value)


def _only_text(block: Block, name: str) -> TextValue | None:
    found = find_attributes(block.body, name)
    if len(found) > 1:
        raise _invalid(f"Invalid or duplicate policy keys: {block.type} {name}", "it stands once", found[1].location)
    return require_text(found[0].value, name) if found else None


def _texts(block: Block) -> Iterable[TextValue]:
    for attribute in find_attributes(block.body, "capabilities"):
        yield from require_texts(attribute.value, "capabilities")


def _capabilities(block: Block, known: type[K], kind: str, *, where: str = "") -> tuple[K, ...]:
    found: dict[K, None] = {}
    for text in _texts(block):
        if text.value not in tuple(known):
            head = f"Invalid {kind} capability '{_cut(text.value)}'{where}"
            raise _invalid(head, _mend(text.value, tuple(known)), text.location)
        found[known(text.value)] = None
    return tuple(found)


# -- saying what is wrong ------------------------------------------------------------------------------------------


def _invalid(head: str, mend: str, at: SourceLocation) -> InvalidPolicy:
    return InvalidPolicy(f"{head}: {mend} (at {at.line}:{at.column})")


def _mend(word: str, known: Sequence[str]) -> str:
    meant = find_nearest_name(word, known)
    if meant is not None:
        return f'did you mean "{meant}"?'
    return f"it is one of {', '.join(sorted(known))}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
