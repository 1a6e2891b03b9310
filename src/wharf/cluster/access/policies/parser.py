"""Parses the text of a policy (reference 5.4).

A policy that a caller writes is checked strictly: a misspelled key would grant nothing and, worse, deny nothing. A
stored policy was checked when it was written, perhaps by another version, so unknown keys are ignored.

The first words of error texts are those that Nomad's clients match.
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
from wharf.languages.hcl import Block, Body, HclError, TextValue, parse_document
from wharf.languages.hcl.queries import find_attributes, find_blocks, require_text, require_texts
from wharf.languages.hcl.tree import get_item_name
from wharf.languages.source_locations import SourceLocation
from wharf.languages.suggestions import find_nearest_name


class InvalidPolicy(Exception):
    """The document is not a policy: it cannot be parsed, or names unknown keys, levels or capabilities. `text` says
    what, where, and how to fix it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


K = TypeVar("K", bound=StrEnum)

MAX_POLICY_CHARACTERS: Final = 262_144
MAX_POLICY_LABELS: Final = 2_000
"""Protects lookups: the search for the closest label may examine all labels and paths of a policy."""
MAX_PATH_CHARACTERS: Final = 256
_MAX_QUOTED_CHARACTERS: Final = 200

_LABELLED_SCOPES: Final = (PolicyScope.NAMESPACE, PolicyScope.NODE_POOL, PolicyScope.HOST_VOLUME)
_LABEL_PATTERNS: Final = {
    PolicyScope.NAMESPACE: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
    PolicyScope.NODE_POOL: ("^[a-zA-Z0-9-_*]{1,128}$", re.compile(r"[a-zA-Z0-9_*-]{1,128}")),
    PolicyScope.HOST_VOLUME: ("^[a-zA-Z0-9-*]{1,128}$", re.compile(r"[a-zA-Z0-9*-]{1,128}")),
}
_LEVEL_KEYS: Final = ("policy",)
_LEVEL_AND_CAPABILITY_KEYS: Final = ("policy", "capabilities")


def parse_policy_strict(text: str) -> PolicyRules:
    """Parse a policy that a caller wants to write. Raises `InvalidPolicy`."""
    return _parse(text, strict=True)


def parse_policy(text: str) -> PolicyRules:
    """Parse a stored policy; ignores unknown keys. Raises `InvalidPolicy`."""
    return _parse(text, strict=False)


def _parse(text: str, *, strict: bool) -> PolicyRules:
    """Parse a policy. Raises `InvalidPolicy`."""
    if not text.strip():
        return PolicyRules()
    try:
        body = parse_document(text, max_chars=MAX_POLICY_CHARACTERS)
        return _PolicyReader(text, strict=strict).read_rules(body)
    except HclError as error:
        raise InvalidPolicy(f"Failed to parse ACL Policy: {error.text}") from None


class _PolicyReader:
    """Reads the blocks of a document as rules."""

    def __init__(self, text: str, *, strict: bool) -> None:
        self._text = text
        self._strict = strict
        self._labels = 0

    def read_rules(self, body: Body) -> PolicyRules:
        """Return the rules of the whole document. Raises `InvalidPolicy`."""
        self._check_keys(body)
        return PolicyRules(
            namespaces=tuple(
                self._read_namespace(block) for block in self._find_labelled_blocks(body, PolicyScope.NAMESPACE)
            ),
            node_pools=tuple(
                self._read_node_pool(block) for block in self._find_labelled_blocks(body, PolicyScope.NODE_POOL)
            ),
            host_volumes=tuple(
                self._read_host_volume(block) for block in self._find_labelled_blocks(body, PolicyScope.HOST_VOLUME)
            ),
            agent=self._read_level_rules(body, PolicyScope.AGENT),
            node=self._read_level_rules(body, PolicyScope.NODE),
            operator=tuple(
                self._read_operator(block) for block in self._find_unlabelled_blocks(body, PolicyScope.OPERATOR)
            ),
            quota=self._read_level_rules(body, PolicyScope.QUOTA),
            plugin=self._read_level_rules(body, PolicyScope.PLUGIN, PLUGIN_LEVELS),
            sentinel=tuple(
                self._read_sentinel(block) for block in self._find_unlabelled_blocks(body, PolicyScope.SENTINEL)
            ),
        )

    # -- keys ----------------------------------------------------------------------------------------------------

    def _check_keys(self, body: Body) -> None:
        """Reject a document without any known block and, if strict, unknown or repeated keys."""
        names = [get_item_name(item) for item in body.items]
        if not any(name in tuple(PolicyScope) for name in names):
            known = ", ".join(sorted(PolicyScope))
            raise InvalidPolicy(f"Invalid policy: {_shorten(self._text.strip())}: it has no block of {known}")
        if self._strict:
            once = frozenset(PolicyScope) - frozenset(_LABELLED_SCOPES)
            self._reject_wrong_keys(body, tuple(PolicyScope), once=once, prefix="")

    def _check_block_keys(self, block: Block, known: Sequence[str]) -> None:
        """If strict, reject unknown keys in a block."""
        if self._strict:
            prefix = f'{block.type} "{_shorten(block.labels[0].value)}" ' if block.labels else f"{block.type} "
            self._reject_wrong_keys(block.body, known, once=(), prefix=prefix)

    def _reject_wrong_keys(self, body: Body, known: Sequence[str], *, once: Iterable[str], prefix: str) -> None:
        """Raise `InvalidPolicy` for keys that are unknown, or that are in `once` and repeated."""
        wrong_keys, suggestions = [], []
        seen: set[str] = set()
        for item in body.items:
            name = get_item_name(item)
            if name not in known:
                nearest = find_nearest_name(name, known)
                suggestions += [f'did you mean "{nearest}"?'] if nearest else []
            if name not in known or (name in seen and name in once):
                wrong_keys.append((name, item.location))
            seen.add(name)
        if wrong_keys:
            key_names = ", ".join(dict.fromkeys(f"{prefix}{_shorten(name)}" for name, _ in wrong_keys))
            advice = suggestions[0] if suggestions else f"known are {', '.join(sorted(known))}, and each may occur once"
            raise _build_error(f"Invalid or duplicate policy keys: {_shorten(key_names)}", advice, wrong_keys[0][1])

    # -- scopes --------------------------------------------------------------------------------------------------

    def _find_labelled_blocks(self, body: Body, scope: PolicyScope) -> Iterable[Block]:
        """Yield the blocks of a scope with labels. Raises `InvalidPolicy` for an invalid label."""
        spelling, pattern = _LABEL_PATTERNS[scope]
        for block in find_blocks(body, scope, label_count=1):
            self._count_label(block)
            label = block.labels[0]
            if pattern.fullmatch(label.value) is None:
                raise _build_error(
                    f"Invalid {scope} name: {_shorten(label.value)!r}", f"it must match {spelling}", label.location
                )
            yield block

    def _find_unlabelled_blocks(self, body: Body, scope: PolicyScope) -> Iterable[Block]:
        return find_blocks(body, scope, label_count=0)

    def _count_label(self, block: Block) -> None:
        """Raise `InvalidPolicy` if the document has too many labels."""
        self._labels += 1
        if self._labels > MAX_POLICY_LABELS:
            raise _build_error("Invalid policy: it has too many labels", f"at most {MAX_POLICY_LABELS}", block.location)

    def _read_namespace(self, block: Block) -> NamespaceRule:
        """Read a `namespace` block."""
        self._check_block_keys(block, (*_LEVEL_AND_CAPABILITY_KEYS, "variables"))
        name = block.labels[0].value
        return NamespaceRule(
            name=name,
            policy=_read_level(block, tuple(NAMESPACE_LEVELS)),
            capabilities=_read_capabilities(block, Capability, "namespace"),
            variables=self._read_variables(block, name),
        )

    def _read_variables(self, block: Block, namespace: str) -> VariablesRule | None:
        found = list(find_blocks(block.body, "variables", label_count=0))
        return VariablesRule(paths=tuple(self._read_paths(found, namespace))) if found else None

    def _read_paths(self, variables: Iterable[Block], namespace: str) -> Iterable[PathRule]:
        """Yield the path rules of a namespace's `variables` blocks."""
        for block in variables:
            self._check_block_keys(block, ("path",))
            for path in find_blocks(block.body, "path", label_count=1):
                self._count_label(path)
                self._check_block_keys(path, ("capabilities",))
                label = path.labels[0]
                if not 1 <= len(label.value) <= MAX_PATH_CHARACTERS or not label.value.isprintable():
                    problem = f"Invalid variable path {_shorten(label.value)!r} in namespace {namespace}"
                    raise _build_error(
                        problem, f"it has 1 to {MAX_PATH_CHARACTERS} printable characters", label.location
                    )
                capabilities = _read_capabilities(
                    path, VariableCapability, "variable", where=f" in namespace {namespace}"
                )
                yield PathRule(path=label.value, capabilities=capabilities)

    def _read_node_pool(self, block: Block) -> NodePoolRule:
        """Read a `node_pool` block."""
        self._check_block_keys(block, _LEVEL_AND_CAPABILITY_KEYS)
        return NodePoolRule(
            name=block.labels[0].value,
            policy=_read_level(block, tuple(POOL_LEVELS)),
            capabilities=_read_capabilities(block, NodePoolCapability, PolicyScope.NODE_POOL),
        )

    def _read_host_volume(self, block: Block) -> HostVolumeRule:
        """Read a `host_volume` block."""
        self._check_block_keys(block, _LEVEL_AND_CAPABILITY_KEYS)
        return HostVolumeRule(
            name=block.labels[0].value,
            policy=_read_level(block, tuple(HOST_VOLUME_LEVELS)),
            capabilities=_read_capabilities(block, HostVolumeMountCapability, PolicyScope.HOST_VOLUME),
        )

    def _read_level_rules(
        self, body: Body, scope: PolicyScope, levels: Sequence[PolicyLevel] = UNLABELLED_LEVELS
    ) -> tuple[LevelRule, ...]:
        """Read the blocks of a scope that has only levels."""
        found = []
        for block in self._find_unlabelled_blocks(body, scope):
            self._check_block_keys(block, _LEVEL_KEYS)
            found.append(LevelRule(policy=_read_level(block, levels)))
        return tuple(found)

    def _read_operator(self, block: Block) -> OperatorRule:
        self._check_block_keys(block, _LEVEL_AND_CAPABILITY_KEYS)
        level = _read_level(block, UNLABELLED_LEVELS)
        return OperatorRule(
            policy=level, capabilities=_read_capabilities(block, OperatorCapability, PolicyScope.OPERATOR)
        )

    def _read_sentinel(self, block: Block) -> SentinelRule:
        self._check_block_keys(block, _LEVEL_AND_CAPABILITY_KEYS)
        level = _read_level(block, UNLABELLED_LEVELS)
        return SentinelRule(policy=level, capabilities=tuple(text.value for text in _list_capability_texts(block)))


# -- contents of a block --------------------------------------------------------------------------------------------


def _read_level(block: Block, levels: Sequence[PolicyLevel]) -> PolicyLevel | None:
    """Return the level of a block; None if it has none."""
    text = _find_single_text(block, "policy")
    if text is None or not text.value:
        return None
    if text.value not in levels:
        raise _build_error(
            f"Invalid {block.type} policy: {_shorten(text.value)!r}", _suggest(text.value, levels), text.location
        )
    return PolicyLevel(text.value)


def _find_single_text(block: Block, name: str) -> TextValue | None:
    """Return the text of an attribute that may occur once; None if it is missing."""
    found = find_attributes(block.body, name)
    if len(found) > 1:
        raise _build_error(
            f"Invalid or duplicate policy keys: {block.type} {name}", "it may occur only once", found[1].location
        )
    return require_text(found[0].value, name) if found else None


def _list_capability_texts(block: Block) -> Iterable[TextValue]:
    for attribute in find_attributes(block.body, "capabilities"):
        yield from require_texts(attribute.value, "capabilities")


def _read_capabilities(block: Block, known: type[K], kind: str, *, where: str = "") -> tuple[K, ...]:
    """Return the capabilities of a block, each once. Raises `InvalidPolicy` for an unknown one."""
    found: dict[K, None] = {}
    for text in _list_capability_texts(block):
        if text.value not in tuple(known):
            problem = f"Invalid {kind} capability '{_shorten(text.value)}'{where}"
            raise _build_error(problem, _suggest(text.value, tuple(known)), text.location)
        found[known(text.value)] = None
    return tuple(found)


# -- errors ---------------------------------------------------------------------------------------------------------


def _build_error(problem: str, advice: str, location: SourceLocation) -> InvalidPolicy:
    return InvalidPolicy(f"{problem}: {advice} (at {location.line}:{location.column})")


def _suggest(word: str, known: Sequence[str]) -> str:
    """Return a suggestion for an unknown word: the nearest known one, or all known ones."""
    nearest = find_nearest_name(word, known)
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    return f"it is one of {', '.join(sorted(known))}"


def _shorten(text: str) -> str:
    """Shorten a quoted text for an error message."""
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}…"
