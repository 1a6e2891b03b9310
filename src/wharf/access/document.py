"""From the text of a policy to its rules, or InvalidRules with the words that clients know (reference 5.4).

What is written is checked whole: a misspelled key grants nothing and, worse, denies nothing. What is only evaluated was
checked when it was written, perhaps elsewhere and by others: there, keys that nobody knows are passed over.
"""

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from wharf.access.errors import InvalidRules
from wharf.access.expansion import (
    HOST_VOLUME_LEVELS,
    NAMESPACE_LEVELS,
    PLUGIN_LEVELS,
    POOL_LEVELS,
    UNLABELLED_LEVELS,
)
from wharf.access.rules import (
    HostVolumeRule,
    LevelRule,
    NamespaceRule,
    NodePoolRule,
    OperatorRule,
    PathRule,
    Rules,
    SentinelRule,
    VariablesRule,
)
from wharf.filters.errors import nearest
from wharf.hcl import Block, Body, HclError, Place, Text, read
from wharf.hcl.reading import attributes, blocks, text_of, texts_of
from wharf.hcl.tree import name_of
from wharf.model.capability import (
    Capability,
    HostVolumeCapability,
    Level,
    OperatorCapability,
    PoolCapability,
    Scope,
    VariableCapability,
)

K = TypeVar("K", bound=StrEnum)

LENGTH_MAX: Final = 262_144
LABELS_MAX: Final = 2_000
"""Labels and paths of one policy together: each may have to be looked at to find the closest."""
PATH_LENGTH_MAX: Final = 256
_SHOWN_MAX: Final = 200

_LABELLED: Final = (Scope.NAMESPACE, Scope.NODE_POOL, Scope.HOST_VOLUME)
_LABELS: Final = {
    Scope.NAMESPACE: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
    Scope.NODE_POOL: ("^[a-zA-Z0-9-_*]{1,128}$", re.compile(r"[a-zA-Z0-9_*-]{1,128}")),
    Scope.HOST_VOLUME: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
}
_LEVEL: Final = ("policy",)
_LEVEL_AND_CAPABILITIES: Final = ("policy", "capabilities")


def check_rules(text: str) -> Rules:
    """The rules of a policy that somebody wants to write."""
    return _read(text, strict=True)


def read_rules(text: str) -> Rules:
    """The rules of a policy that is in force."""
    return _read(text, strict=False)


def _read(text: str, *, strict: bool) -> Rules:
    if not text.strip():
        return Rules()
    try:
        body = read(text, length_max=LENGTH_MAX)
        return _Reader(text, strict=strict).rules(body)
    except HclError as error:
        raise InvalidRules(f"Failed to parse ACL Policy: {error.text}") from None


class _Reader:
    def __init__(self, text: str, *, strict: bool) -> None:
        self._text = text
        self._strict = strict
        self._labels = 0

    def rules(self, body: Body) -> Rules:
        self._check_keys(body)
        return Rules(
            namespaces=tuple(self._namespace(block) for block in self._labelled(body, Scope.NAMESPACE)),
            node_pools=tuple(self._node_pool(block) for block in self._labelled(body, Scope.NODE_POOL)),
            host_volumes=tuple(self._host_volume(block) for block in self._labelled(body, Scope.HOST_VOLUME)),
            agent=self._level_rules(body, Scope.AGENT),
            node=self._level_rules(body, Scope.NODE),
            operator=tuple(self._operator(block) for block in self._unlabelled(body, Scope.OPERATOR)),
            quota=self._level_rules(body, Scope.QUOTA),
            plugin=self._level_rules(body, Scope.PLUGIN, PLUGIN_LEVELS),
            sentinel=tuple(self._sentinel(block) for block in self._unlabelled(body, Scope.SENTINEL)),
        )

    # -- keys ----------------------------------------------------------------------------------------------------

    def _check_keys(self, body: Body) -> None:
        names = [name_of(item) for item in body.items]
        if not any(name in tuple(Scope) for name in names):
            known = ", ".join(sorted(Scope))
            raise InvalidRules(f"Invalid policy: {_cut(self._text.strip())}: it has no block of {known}")
        if self._strict:
            once = frozenset(Scope) - frozenset(_LABELLED)
            self._refuse_wrong_keys(body, tuple(Scope), once=once, prefix="")

    def _check_inside(self, block: Block, known: Sequence[str]) -> None:
        if self._strict:
            named = f'{block.type} "{_cut(block.labels[0].value)}" ' if block.labels else f"{block.type} "
            self._refuse_wrong_keys(block.body, known, once=(), prefix=named)

    def _refuse_wrong_keys(self, body: Body, known: Sequence[str], *, once: Iterable[str], prefix: str) -> None:
        wrong, mends = [], []
        seen: set[str] = set()
        for item in body.items:
            name = name_of(item)
            if name not in known:
                meant = nearest(name, known)
                mends += [f'did you mean "{meant}"?'] if meant else []
            if name not in known or (name in seen and name in once):
                wrong.append((name, item.at))
            seen.add(name)
        if wrong:
            told = ", ".join(dict.fromkeys(f"{prefix}{_cut(name)}" for name, _ in wrong))
            mend = mends[0] if mends else f"known are {', '.join(sorted(known))}, and each stands once"
            raise _invalid(f"Invalid or duplicate policy keys: {_cut(told)}", mend, wrong[0][1])

    # -- scopes --------------------------------------------------------------------------------------------------

    def _labelled(self, body: Body, scope: Scope) -> Iterable[Block]:
        spelling, pattern = _LABELS[scope]
        for block in blocks(body, scope, labels=1):
            self._count_label(block)
            label = block.labels[0]
            if pattern.fullmatch(label.value) is None:
                raise _invalid(f"Invalid {scope} name: {_cut(label.value)!r}", f"it must match {spelling}", label.at)
            yield block

    def _unlabelled(self, body: Body, scope: Scope) -> Iterable[Block]:
        return blocks(body, scope, labels=0)

    def _count_label(self, block: Block) -> None:
        self._labels += 1
        if self._labels > LABELS_MAX:
            raise _invalid("Invalid policy: it has too many labels", f"at most {LABELS_MAX}", block.at)

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
        found = list(blocks(block.body, "variables", labels=0))
        return VariablesRule(paths=tuple(self._paths(found, namespace))) if found else None

    def _paths(self, variables: Iterable[Block], namespace: str) -> Iterable[PathRule]:
        for block in variables:
            self._check_inside(block, ("path",))
            for path in blocks(block.body, "path", labels=1):
                self._count_label(path)
                self._check_inside(path, ("capabilities",))
                label = path.labels[0]
                if not 1 <= len(label.value) <= PATH_LENGTH_MAX or not label.value.isprintable():
                    head = f"Invalid variable path {_cut(label.value)!r} in namespace {namespace}"
                    raise _invalid(head, f"it has 1 to {PATH_LENGTH_MAX} printable characters", label.at)
                capabilities = _capabilities(path, VariableCapability, "variable", where=f" in namespace {namespace}")
                yield PathRule(path=label.value, capabilities=capabilities)

    def _node_pool(self, block: Block) -> NodePoolRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        return NodePoolRule(
            name=block.labels[0].value,
            policy=_level(block, tuple(POOL_LEVELS)),
            capabilities=_capabilities(block, PoolCapability, Scope.NODE_POOL),
        )

    def _host_volume(self, block: Block) -> HostVolumeRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        return HostVolumeRule(
            name=block.labels[0].value,
            policy=_level(block, tuple(HOST_VOLUME_LEVELS)),
            capabilities=_capabilities(block, HostVolumeCapability, Scope.HOST_VOLUME),
        )

    def _level_rules(
        self, body: Body, scope: Scope, levels: Sequence[Level] = UNLABELLED_LEVELS
    ) -> tuple[LevelRule, ...]:
        found = []
        for block in self._unlabelled(body, scope):
            self._check_inside(block, _LEVEL)
            found.append(LevelRule(policy=_level(block, levels)))
        return tuple(found)

    def _operator(self, block: Block) -> OperatorRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        level = _level(block, UNLABELLED_LEVELS)
        return OperatorRule(policy=level, capabilities=_capabilities(block, OperatorCapability, Scope.OPERATOR))

    def _sentinel(self, block: Block) -> SentinelRule:
        self._check_inside(block, _LEVEL_AND_CAPABILITIES)
        level = _level(block, UNLABELLED_LEVELS)
        return SentinelRule(policy=level, capabilities=tuple(text.value for text in _texts(block)))


# -- what stands in a block ----------------------------------------------------------------------------------------


def _level(block: Block, levels: Sequence[Level]) -> Level | None:
    text = _only_text(block, "policy")
    if text is None or not text.value:
        return None
    if text.value not in levels:
        raise _invalid(f"Invalid {block.type} policy: {_cut(text.value)!r}", _mend(text.value, levels), text.at)
    return Level(text.value)


def _only_text(block: Block, name: str) -> Text | None:
    found = attributes(block.body, name)
    if len(found) > 1:
        raise _invalid(f"Invalid or duplicate policy keys: {block.type} {name}", "it stands once", found[1].at)
    return text_of(found[0].value, name) if found else None


def _texts(block: Block) -> Iterable[Text]:
    for attribute in attributes(block.body, "capabilities"):
        yield from texts_of(attribute.value, "capabilities")


def _capabilities(block: Block, known: type[K], kind: str, *, where: str = "") -> tuple[K, ...]:
    found: dict[K, None] = {}
    for text in _texts(block):
        if text.value not in tuple(known):
            head = f"Invalid {kind} capability '{_cut(text.value)}'{where}"
            raise _invalid(head, _mend(text.value, tuple(known)), text.at)
        found[known(text.value)] = None
    return tuple(found)


# -- saying what is wrong ------------------------------------------------------------------------------------------


def _invalid(head: str, mend: str, at: Place) -> InvalidRules:
    return InvalidRules(f"{head}: {mend} (at {at.line}:{at.column})")


def _mend(word: str, known: Sequence[str]) -> str:
    meant = nearest(word, known)
    if meant is not None:
        return f'did you mean "{meant}"?'
    return f"it is one of {', '.join(sorted(known))}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
