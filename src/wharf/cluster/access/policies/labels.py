"""Finds the rule that applies to a name: the one whose label is the name, else the closest glob (reference 5.4, rule
3).

In a glob, `*` matches any characters, or none; all other characters match themselves. The distance of a glob from a
name is the length of the name minus the number of the glob's literal characters.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=StrEnum)

WILDCARD: Final = "*"
DENY: Final = "deny"
MAX_CACHED_NAMES: Final = 1_000
"""Protects memory: names come from callers, so the cache of results is cleared when it has more entries."""


def unite_capabilities(sets: Iterable[frozenset[K]]) -> frozenset[K]:
    """Unite capabilities; if one of the sets has `deny`, return only that."""
    found: frozenset[K] = frozenset().union(*sets)
    denying = frozenset(capability for capability in found if capability == DENY)
    return denying or found


class Glob:
    """A label of a policy that contains `*`, such as `prod-*`, which matches any characters."""

    __slots__ = ("_first", "_last", "_middle", "_shortest", "literal_length")

    def __init__(self, text: str) -> None:
        self._first, *self._middle, self._last = text.split(WILDCARD)
        self._shortest = len(text) - text.count(WILDCARD)
        self.literal_length = len(text) - text.count(WILDCARD)
        """Number of characters that are not `*`. Globs with more literal characters are closer to any name they match.
        """

    def matches(self, name: str) -> bool:
        """Return whether the glob matches the name."""
        if len(name) < self._shortest or not (name.startswith(self._first) and name.endswith(self._last)):
            return False
        # The earliest match of each piece leaves the most characters for the next, so no backtracking is needed.
        position, end = len(self._first), len(name) - len(self._last)
        for piece in self._middle:
            found = name.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True


class LabelCapabilities(Generic[K]):
    """Returns the capabilities that rules grant for a name. A rule's label is a name or a pattern with `*`."""

    def __init__(self, granted: Mapping[str, frozenset[K]]) -> None:
        self._exact = {label: capabilities for label, capabilities in granted.items() if WILDCARD not in label}
        globs = [(Glob(label), capabilities) for label, capabilities in granted.items() if WILDCARD in label]
        # Sorted by closeness: the first glob that matches decides, together with those of the same length.
        self._globs = sorted(globs, key=lambda entry: -entry[0].literal_length)
        self._glob_cache: dict[str, frozenset[K] | None] = {}

    def find_exact(self, name: str) -> frozenset[K] | None:
        return self._exact.get(name)

    def find_closest_glob(self, name: str) -> frozenset[K] | None:
        """Return the capabilities of the closest glob that matches the name; None if there is none. Cached."""
        if name in self._glob_cache:
            return self._glob_cache[name]
        capabilities = self._match_globs(name)
        if len(self._glob_cache) >= MAX_CACHED_NAMES:
            self._glob_cache.clear()
        self._glob_cache[name] = capabilities
        return capabilities

    def _match_globs(self, name: str) -> frozenset[K] | None:
        """Return the united capabilities of the closest globs."""
        closest: list[frozenset[K]] = []
        literal_length = 0
        for glob, capabilities in self._globs:
            if closest and glob.literal_length < literal_length:
                break
            if glob.matches(name):
                closest.append(capabilities)
                literal_length = glob.literal_length
        # Equally close globs count as one label, so that their order makes no difference.
        return unite_capabilities(closest) if closest else None

    def find_capabilities(self, name: str) -> frozenset[K]:
        """Return the capabilities for a name; empty if no label applies."""
        exact = self._exact.get(name)
        return exact if exact is not None else self.find_closest_glob(name) or frozenset()

    def list_all(self) -> Iterable[frozenset[K]]:
        """Yield the capabilities of every label."""
        yield from self._exact.values()
        for _, capabilities in self._globs:
            yield capabilities

    def has_match(self, name: str) -> bool:
        """Return whether any label matches the name."""
        return name in self._exact or any(glob.matches(name) for glob, _ in self._globs)
