"""Versions and the constraints on them, as the operands `version` and `semver` use them (scheduling.md 2.4).

`version` is lenient in what a version looks like and strict about pre-releases: one is let through only by a constraint
that names a pre-release of the same release. `semver` orders pre-releases as any version and knows no `~>`.
"""

import re
from enum import StrEnum
from functools import lru_cache, total_ordering
from typing import Final

MAX_VERSION_CHARS: Final = 512
MAX_COMPARISONS: Final = 32


class VersionError(ValueError):
    """The text is no version, or no list of constraints."""


class VersionDialect(StrEnum):
    """Which of the two rules is meant."""

    VERSION = "version"
    SEMVER = "semver"


_PART = r"[0-9A-Za-z~-]+"
_RELEASE = r"v?(?P<release>\d{1,18}(?:\.\d{1,18})*)"
_BUILD = rf"(?:\+{_PART}(?:\.{_PART})*)?"
_SHAPES: Final = {
    # `1.2rc1` is a version, though not a semantic one.
    VersionDialect.VERSION: re.compile(
        rf"{_RELEASE}(?:-(?P<pre>{_PART}(?:\.{_PART})*)|(?P<tight>[A-Za-z~]{_PART}(?:\.{_PART})*|[A-Za-z]))?{_BUILD}\Z"
    ),
    VersionDialect.SEMVER: re.compile(rf"{_RELEASE}(?:-(?P<pre>{_PART}(?:\.{_PART})*))?(?P<tight>){_BUILD}\Z"),
}
_CONSTRAINT = re.compile(r"(?P<operator>=|!=|>=|<=|>|<|~>)?\s*(?P<version>\S+)\Z")


@total_ordering
class Version:
    """A version, ordered as semantic versions are: release, then pre-release; the build says nothing."""

    __slots__ = ("_key", "is_prerelease", "part_count", "release")

    def __init__(self, text: str, dialect: VersionDialect = VersionDialect.VERSION) -> None:
        if len(text) > MAX_VERSION_CHARS:
            raise VersionError("the version is too long")
        match = _SHAPES[dialect].match(text.strip())
        if match is None:
            raise VersionError(f'"{text}" is not a version')
        parts = [int(part) for part in match["release"].split(".")]
        self.part_count = len(parts)
        self.release = tuple(parts + [0] * (3 - len(parts)))
        prerelease = match["pre"] or match["tight"] or ""
        self.is_prerelease = bool(prerelease)
        self._key = (_without_zeros(self.release), _prerelease_key(prerelease))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: "Version") -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _without_zeros(release: tuple[int, ...]) -> tuple[int, ...]:
    """`1.2` and `1.2.0.0` are equal."""
    end = len(release)
    while end and release[end - 1] == 0:
        end -= 1
    return release[:end]


def _prerelease_key(prerelease: str) -> tuple[int, tuple[tuple[int, int, str], ...]]:
    """A release comes after its pre-releases; their parts compare as numbers before texts."""
    if not prerelease:
        return 1, ()
    parts = prerelease.split(".")
    return 0, tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


class _Constraint:
    """One comparison of the list."""

    __slots__ = ("dialect", "operator", "version")

    def __init__(self, text: str, dialect: VersionDialect) -> None:
        match = _CONSTRAINT.match(text.strip())
        if match is None:
            raise VersionError(f'"{text.strip()}" is not a constraint on a version')
        self.operator = match["operator"] or "="
        self.dialect = dialect
        if dialect is VersionDialect.SEMVER and self.operator == "~>":
            raise VersionError("~> is not known to semver")
        self.version = Version(match["version"], dialect)

    def allows(self, version: Version) -> bool:
        if self.operator == "=":
            return version == self.version
        if self.operator == "!=":
            return version != self.version
        if self.dialect is VersionDialect.VERSION and not self._may_compare(version):
            return False
        if self.operator == ">":
            return version > self.version
        if self.operator == ">=":
            return version >= self.version
        if self.operator == "<":
            return version < self.version
        if self.operator == "<=":
            return version <= self.version
        return self._is_close(version)

    def _may_compare(self, version: Version) -> bool:
        if not version.is_prerelease:
            return True
        return self.version.is_prerelease and version.release == self.version.release

    def _is_close(self, version: Version) -> bool:
        """`~> 1.2.3` is at least that, and still 1.2; the last part given may rise, those before it may not."""
        if version < self.version:
            return False
        kept = self.version.part_count - 1
        return version.release[:kept] == self.version.release[:kept]


class VersionConstraints:
    """A list of comparisons, all of which must hold: `>= 1.2, < 2`."""

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
        """Whether a version satisfies all of them; a text that is no version satisfies none."""
        try:
            version = Version(text, self._dialect)
        except VersionError:
            return False
        return all(constraint.allows(version) for constraint in self._constraints)


@lru_cache(maxsize=1024)
def parse_version_constraints(text: str, dialect: VersionDialect = VersionDialect.VERSION) -> VersionConstraints:
    """The constraints of that text, parsed once; a VersionError says what is wrong with them."""
    return VersionConstraints(text, dialect)
