"""Which rule is about a name: the one with the name as its label, else the closest glob (reference 5.4, rule 3).

A glob has `*` for any run of characters, also none; everything else in it stands for itself. How far it is from a name
is the length of the name, less its own, plus one for each `*`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=StrEnum)

WILDCARD: Final = "*"
DENY: Final = "deny"
MAX_CACHED_NAMES: Final = 1_000
"""Names come from callers, so how many answers are kept is bounded; when there are more, all are forgotten."""


def unite_capabilities(sets: Iterable[frozenset[K]]) -> frozenset[K]:
    """All of them together; a deny in any of them leaves nothing else."""
    found: frozenset[K] = frozenset().union(*sets)
    denying = frozenset(capability for capability in found if capability == DENY)
    return denying or found


class Glob:
    __slots__ = ("_first", "_last", "_middle", "_shortest", "literal_length")

    def __init__(self, text: str) -> None:
        self._first, *self._middle, self._last = text.split(WILDCARD)
        self._shortest = len(text) - text.count(WILDCARD)
        self.literal_length = len(text) - text.count(WILDCARD)
        """What it takes from the length of a name to give its distance."""

    def matches(self, name: str) -> bool:
        if len(name) < self._shortest or not (name.startswith(self._first) and name.endswith(self._last)):
            return False
        # Taking each piece as early as it comes leaves the most room for the next, so nothing is tried twice.
        at, end = len(self._first), len(name) - len(self._last)
        for piece in self._middle:
            found = name.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class LabelCapabilities(Generic[K]):
    """Capabilities by label. Those of one label are united before they come here."""

    def __init__(self, granted: Mapping[str, frozenset[K]]) -> None:
        self._exact = {label: capabilities for label, capabilities in granted.items() if WILDCARD not in label}
        globs = [(Glob(label), capabilities) for label, capabilities in granted.items() if WILDCARD in label]
        # The heaviest are the closest, whatever the name: the first that matches decides, with those of its weight.
        self._globs = sorted(globs, key=lambda entry: -entry[0].literal_length)
        self._remembered: dict[str, frozenset[K] | None] = {}

    def find_exact(self, name: str) -> frozenset[K] | None:
        return self._exact.get(name)

    def find_closest_glob(self, name: str) -> frozenset[K] | None:
        if name in self._remembered:
            return self._remembered[name]
        found = self._find_closest(name)
        if len(self._remembered) >= MAX_CACHED_NAMES:
            self._remembered.clear()
        self._remembered[name] = found
        return found

    def _find_closest(self, name: str) -> frozenset[K] | None:
        closest: list[frozenset[K]] = []
        weight = 0
        for glob, capabilities in self._globs:
            if closest and glob.literal_length < weight:
                break
            if glob.matches(name):
                closest.append(capabilities)
                weight = glob.literal_length
        # Globs that are equally close count as one label: the answer cannot hang on their order.
        return unite_capabilities(closest) if closest else None

    def find_capabilities(self, name: str) -> frozenset[K]:
        """What the name has; nothing where no label is about it."""
        found = self._exact.get(name)
        return found if found is not None else self.find_closest_glob(name) or frozenset()

    def list_all(self) -> Iterable[frozenset[K]]:
        """The capabilities of every label."""
        yield from self._exact.values()
        for _, capabilities in self._globs:
            yield capabilities

    def has_match(self, name: str) -> bool:
        """Whether any label, close or not, is about the name."""
        return name in self._exact or any(glob.matches(name) for glob, _ in self._globs)
