"""Versions and version constraints, for the operands `version` and `semver` (scheduling.md 2.4).

`version` accepts many notations but is strict about pre-releases: only a constraint that names a pre-release of the same release
accepts one. `semver` orders pre-releases like other versions and does not support `~>`.
"""

import re
from enum import StrEnum
from functools import lru_cache, total_ordering
from typing import Final

MAX_VERSION_CHARS: Final = 512
"""Length of a version or a list of constraints; limits the time to parse it."""
MAX_COMPARISONS: Final = 32
"""Comparisons in one list of constraints; limits the time to evaluate it."""


class VersionError(ValueError):
    """The error that a text is not a version, or not a list of version constraints."""


class VersionDialect(StrEnum):
    """The notation and the order of versions."""

    VERSION = "version"  # Accepts many notations, such as `1.2rc1`; is strict about pre-releases.
    SEMVER = "semver"  # Semantic versioning; without the operator `~>`.


_PART = r"[0-9A-Za-z~-]+"
_RELEASE = r"v?(?P<release>\d{1,18}(?:\.\d{1,18})*)"
_BUILD = rf"(?:\+{_PART}(?:\.{_PART})*)?"
_PATTERNS: Final = {
    # `1.2rc1` is a version, though not a semantic one.
    VersionDialect.VERSION: re.compile(
        rf"{_RELEASE}(?:-(?P<pre>{_PART}(?:\.{_PART})*)|(?P<tight>[A-Za-z~]{_PART}(?:\.{_PART})*|[A-Za-z]))?{_BUILD}\Z"
    ),
    VersionDialect.SEMVER: re.compile(rf"{_RELEASE}(?:-(?P<pre>{_PART}(?:\.{_PART})*))?(?P<tight>){_BUILD}\Z"),
}
_CONSTRAINT = re.compile(r"(?P<operator>=|!=|>=|<=|>|<|~>)?\s*(?P<version>\S+)\Z")


@total_ordering
class Version:
    """A version, ordered by its release numbers, then by its pre-release. Build metadata (`+abc`) is ignored.

    Raises `VersionError` if the text is not a version.
    """

    __slots__ = ("_key", "is_prerelease", "part_count", "release")

    def __init__(self, text: str, dialect: VersionDialect = VersionDialect.VERSION) -> None:
        if len(text) > MAX_VERSION_CHARS:
            raise VersionError("the version is too long")
        match = _PATTERNS[dialect].match(text.strip())
        if match is None:
            raise VersionError(f'"{text}" is not a version')
        parts = [int(part) for part in match["release"].split(".")]
        self.part_count = len(parts)  # Before zeros are added; `~>` needs it.
        self.release = tuple(parts + [0] * (3 - len(parts)))
        prerelease = match["pre"] or match["tight"] or ""
        self.is_prerelease = bool(prerelease)
        self._key = (_without_zeros(self.release), _get_prerelease_sort_key(prerelease))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: "Version") -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _without_zeros(release: tuple[int, ...]) -> tuple[int, ...]:
    """Return the release numbers without trailing zeros, so that `1.2` and `1.2.0.0` compare as equal."""
    end = len(release)
    while end and release[end - 1] == 0:
        end -= 1
    return release[:end]


def _get_prerelease_sort_key(prerelease: str) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    """Return a sort key for the pre-release of a version, such as `rc.1`.

    A release (empty text) sorts after its pre-releases. Numeric parts sort before text, as semantic versioning
    requires.
    """
    if not prerelease:
        return 1, ()
    parts = prerelease.split(".")
    return 0, tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


class _Constraint:
    """One comparison with a version, such as `>= 1.2`. Raises `VersionError` if the text is not one."""

    __slots__ = ("dialect", "operator", "version")

    def __init__(self, text: str, dialect: VersionDialect) -> None:
        match = _CONSTRAINT.match(text.strip())
        if match is None:
            raise VersionError(f'"{text.strip()}" is not a constraint on a version')
        self.operator = match["operator"] or "="
        self.dialect = dialect
        if dialect is VersionDialect.SEMVER and self.operator == "~>":
            raise VersionError("semver does not support ~>")
        self.version = Version(match["version"], dialect)

    def allows(self, version: Version) -> bool:
        """Return whether the version satisfies this comparison."""
        if self.operator == "=":
            return version == self.version
        if self.operator == "!=":
            return version != self.version
        if self.dialect is VersionDialect.VERSION and not self._is_order_defined(version):
            return False
        if self.operator == ">":
            return version > self.version
        if self.operator == ">=":
            return version >= self.version
        if self.operator == "<":
            return version < self.version
        if self.operator == "<=":
            return version <= self.version
        return self._satisfies_pessimistic(version)

    def _is_order_defined(self, version: Version) -> bool:
        """Return whether an ordering comparison such as `>=` may accept the version.

        A pre-release is accepted only if the constraint names a pre-release of the same release: `>= 1.2.0-a` accepts
        `1.2.0-b`, `>= 1.1.0` does not.
        """
        if not version.is_prerelease:
            return True
        return self.version.is_prerelease and version.release == self.version.release

    def _satisfies_pessimistic(self, version: Version) -> bool:
        """Return whether the version satisfies the operator `~>`: only the last given number may increase.

        `~> 1.2.3` accepts every `1.2.x` from `1.2.3` on.
        """
        if version < self.version:
            return False
        unchanged_parts = self.version.part_count - 1
        return version.release[:unchanged_parts] == self.version.release[:unchanged_parts]


class VersionConstraints:
    """A list of comparisons that a version must satisfy, such as `>= 1.2, < 2`.

    Raises `VersionError` if the text is not one.
    """

    __slots__ = ("_constraints", "_dialect")

    def __init__(self, text: str, dialect: VersionDialect = VersionDialect.VERSION) -> None:
        if len(text) > MAX_VERSION_CHARS:
            raise VersionError("the constraint is too long")
        parts = text.split(",")
        if len(parts) > MAX_COMPARISONS:
            raise VersionError(f"more than {MAX_COMPARISONS} comparisons")
        self._constraints = tuple([_Constraint(part, dialect) for part in parts])
        self._dialect = dialect

    def allows(self, text: str) -> bool:
        """Return whether a version satisfies all comparisons; `False` if the text is not a version."""
        try:
            version = Version(text, self._dialect)
        except VersionError:
            return False
        return all(constraint.allows(version) for constraint in self._constraints)


@lru_cache(maxsize=1024)
def parse_version_constraints(text: str, dialect: VersionDialect = VersionDialect.VERSION) -> VersionConstraints:
    """Parse a list of comparisons such as `>= 1.2, < 2`. Results are cached.

    Raises `VersionError` if the text is invalid.
    """
    return VersionConstraints(text, dialect)
