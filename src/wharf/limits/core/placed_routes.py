"""Patterns of method and path, applied to requests under the path rules and below the base path of one set of rules."""

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from wharf.limits.core.paths import PathReading, list_readings, split_path
from wharf.limits.core.route import OUTSIDE_PREFIX, RoutePattern, RouteTree, parse_pattern, place_pattern
from wharf.limits.core.rule import PathDifference, PathRules, RuleSet

T = TypeVar("T")


class PlacedRoutes(Generic[T]):
    """Patterns of complete paths with their values. Lookups know which paths are outside of the API."""

    def __init__(self, paths: PathRules, api_path: str = "") -> None:
        """`api_path` is the complete path of the API; without one, no path is outside of it."""
        self._paths: Final = paths
        self._api_segments = split_path(api_path)
        self._folded_api_segments = tuple(map(str.casefold, self._api_segments))
        self._routes: RouteTree[T] = RouteTree()
        self._folded_routes: RouteTree[T] = RouteTree(is_folded=True)

    @property
    def has_api_path(self) -> bool:
        """Whether paths can be outside of the API."""
        return bool(self._api_segments)

    @property
    def has_upper_case(self) -> bool:
        """Whether the path of the API has uppercase letters."""
        return self._api_segments != self._folded_api_segments

    def add(self, pattern: RoutePattern, value: T) -> None:
        """Add a pattern of complete paths with the value that lookups return for it."""
        self._routes.add(pattern, value)
        if self._paths.case is not PathDifference.EXACT:
            self._folded_routes.add(pattern, value)

    def find_matches(self, method: str, reading: PathReading) -> list[tuple[RoutePattern, T]]:
        """Return all patterns that match a method and one reading of a path, with their values, the most specific first."""
        return [pair for pair in self.find_path_matches(reading) if pair[0].matches_method(method)]

    def find_path_matches(self, reading: PathReading) -> list[tuple[RoutePattern, T]]:
        """Return all patterns that match one reading of a path with any method, with their values."""
        routes = self._folded_routes if reading.is_folded else self._routes
        return routes.find_path_matches(reading.segments, is_outside=self._is_outside_api(reading))

    def matches_all_readings(self, method: str, path: str) -> bool:
        """Return whether a pattern matches the request, however a service reads its path. `path` is in normal form."""
        return all(self.find_matches(method, reading) for reading in list_readings(path, self._paths))

    def _is_outside_api(self, reading: PathReading) -> bool:
        """Return whether a reading of a path is outside of the base path of the API."""
        api = self._folded_api_segments if reading.is_folded else self._api_segments
        return reading.segments[: len(api)] != api


def place_patterns(texts: tuple[str, ...], rules: RuleSet) -> PlacedRoutes[str]:
    """Return patterns of a settings file, which are written like those of the rules, each with its text as value."""
    routes: PlacedRoutes[str] = PlacedRoutes(rules.paths, rules.api_path)
    for text in texts:
        routes.add(parse_pattern(place_pattern(text, rules.site_path, rules.base_path)), text)
    return routes


def find_misplaced_pattern(texts: Iterable[str], rules: RuleSet) -> str:
    """Return what is wrong with the first pattern that seems to be a complete path; empty if none does.

    A pattern that begins like the base path was probably written for the whole site, and would never match.
    """
    first_segment = next(iter(split_path(rules.base_path)), "")
    for text in texts:
        pattern = parse_pattern(text)
        if first_segment and not pattern.is_outside and pattern.segments[:1] == (first_segment,):
            return (
                f"{text!r} begins like the base path {rules.base_path!r}: write only what follows it, such as '* /*' for all of "
                f"the API, and begin paths outside of it with {OUTSIDE_PREFIX!r}"
            )
    return ""
