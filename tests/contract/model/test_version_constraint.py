"""Versions and version constraints (scheduling.md 2.4)."""

import pytest

from wharf.contract.model.jobs.version_constraints import (
    Version,
    VersionConstraints,
    VersionDialect,
    VersionError,
    parse_version_constraints,
)

VERSION, SEMVER = VersionDialect.VERSION, VersionDialect.SEMVER


@pytest.mark.parametrize(
    ("constraint", "version", "dialect", "allowed"),
    [
        (">= 1.2, < 2", "1.5", VERSION, True),
        (">= 1.2, < 2", "2.0", VERSION, False),
        ("1.2", "1.2.0", VERSION, True),
        ("= 1.2", "v1.2", VERSION, True),
        ("=1.2", "1.2+build", VERSION, True),
        ("!= 1.2", "1.2.1", VERSION, True),
        ("!= 1.2", "1.2.0", VERSION, False),
        ("> 1.9", "1.10", VERSION, True),
        ("<= 1.9", "1.9.0.0", VERSION, True),
        ("~> 1.2.3", "1.2.9", VERSION, True),
        ("~> 1.2.3", "1.2.2", VERSION, False),
        ("~> 1.2.3", "1.3.0", VERSION, False),
        ("~> 1.2", "1.9", VERSION, True),
        ("~> 1.2", "2.0", VERSION, False),
        # A pre-release matches only if the constraint names a pre-release of the same release.
        (">= 1.0", "1.1-beta", VERSION, False),
        (">= 1.1-alpha", "1.1-beta", VERSION, True),
        (">= 1.1-beta", "1.1-alpha", VERSION, False),
        ("> 1.0-alpha", "1.1-beta", VERSION, False),
        ("> 1.0-alpha", "1.0", VERSION, True),
        ("= 1.1-beta", "1.1-beta", VERSION, True),
        (">= 1", "1.2rc1", VERSION, False),
        (">= 1.2rc1", "1.2rc2", VERSION, True),
        # Semantic version constraints treat pre-releases like other versions.
        (">= 1.0", "1.1-beta", SEMVER, True),
        ("< 1.0.0", "1.0.0-rc.1", SEMVER, True),
        ("< 1.0.0-rc.2", "1.0.0-rc.11", SEMVER, False),
        ("> 1.0.0-alpha.1", "1.0.0-alpha.beta", SEMVER, True),
        ("> 1.0.0-alpha", "1.0.0-alpha.1", SEMVER, True),
        (">= 5.4", "5.15.0-91-generic", SEMVER, True),
        (">= 1.0", "1.2rc1", SEMVER, False),
        # An invalid version satisfies no constraint, not even `!=`.
        ("!= 1.0", "latest", VERSION, False),
        (">= 0", "", SEMVER, False),
    ],
)
def test_a_constraint_allows_these_versions(
    constraint: str, version: str, dialect: VersionDialect, allowed: bool
) -> None:
    assert parse_version_constraints(constraint, dialect).allows(version) == allowed


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("", VERSION), (">=", VERSION), ("a.b", VERSION), (">> 1", VERSION), ("1,,2", VERSION), ("1.2.x", VERSION),
        ("~> 1.2", SEMVER), ("1.2rc1", SEMVER), ("1 2", SEMVER), ("1.", SEMVER), ("9" * 600, VERSION),
        (", ".join(["> 1"] * 40), VERSION),
    ],
)  # fmt: skip
def test_an_invalid_constraint_is_refused(text: str, dialect: VersionDialect) -> None:
    with pytest.raises(VersionError):
        VersionConstraints(text, dialect)


def test_versions_are_ordered_like_semantic_versions() -> None:
    in_order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
    ]

    assert sorted(in_order, key=Version, reverse=True) == in_order[::-1]


def test_equal_versions_are_one_in_a_set() -> None:
    assert len({Version("1.0"), Version("1.0.0"), Version("v1+build")}) == 1
