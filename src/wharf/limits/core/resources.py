"""Which account and repository own the resource that a request is about, by patterns of its path.

Activity is counted for the organization that owns the resource, and the ceiling of a workflow depends on the account. Both use
`ResourceFinder`. A path that services read in several ways can name several resources.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.paths import PathReading, list_readings
from wharf.limits.core.placed_routes import PlacedRoutes
from wharf.limits.core.route import ANY_SEGMENTS, BadPattern, RoutePattern, parse_pattern
from wharf.limits.core.rule import DEFAULT_OWNER_PATHS, PathRules, RuleSet

OWNER: Final = "{owner}"
REPOSITORY: Final = "{repository}"
PROJECT: Final = "{project}"
GROUP: Final = "{group}"
ENTERPRISE: Final = "{enterprise}"
OWNER_SEGMENTS: Final = frozenset({OWNER, PROJECT, GROUP, ENTERPRISE, ANY_SEGMENTS})
"""A pattern has one of these segments. `{project}` and `{group}` are a path with slashes, or an id, in one segment. `**` is an
owner with nested groups."""
GIT_ENDING: Final = ".git"
"""The end of the name of a repository in the paths of Git and large files. It is not part of the name."""
WIKI_ENDING: Final = ".wiki"
"""The end of the name of a repository before `.git`, if its wiki is meant."""
RESERVED_NAMES: Final = frozenset(
    {
        *("-", "api", "assets", "attachments", "avatars", "admin", "dashboard", "explore", "graphql", "health", "help"),
        *(
            "import",
            "jwt",
            "login",
            "logout",
            "marketplace",
            "metrics",
            "notifications",
            "oauth",
            "profile",
            "projects",
        ),
        *(
            "repo-avatars",
            "v2",
            "search",
            "sessions",
            "settings",
            "snippets",
            "swagger",
            "twirp",
            "uploads",
            "user",
            "users",
        ),
    }
)
"""First segments of paths of hosts themselves. Hosts give these names to no account."""
MAX_RESOURCE_CHARACTERS: Final = 200
"""Requests for a repository with a longer name are counted for its owner alone. Limits the memory of activity rows."""
MAX_ID_DIGITS: Final = 18
DEFAULT_PATH_RULES: Final = PathRules()
MAX_CACHED_RESOURCES: Final = 32_768
"""Limits the memory of the cache of resources by path, in entries; the oldest entries of a full cache are removed."""
MAX_CACHED_PATH_CHARACTERS: Final = 256
"""Longer paths are not cached, so that callers cannot fill the memory with them."""


class ResourceName(msgspec.Struct, frozen=True, gc=False):
    """What one reading of a path names: an account and a resource of it, by name or by id, or nothing."""

    owner: str = ""
    """The account, such as `acme`; empty if an id names the resource, or if the path names none."""
    resource: str = ""
    """The resource that activity is counted for: `acme/site` or `acme`. Empty for an enterprise and for ids."""
    repository_id: int | None = None
    organization_id: int | None = None


NO_RESOURCE: Final = ResourceName()
NO_RESOURCES: Final = (NO_RESOURCE,)
"""The result for a path that names no resource in any reading."""


def parse_owner_pattern(text: str) -> RoutePattern:
    """Return a parsed pattern with an owner. Raises `BadPattern` if it is invalid or has no segment for the owner."""
    pattern = parse_pattern(text)
    if OWNER_SEGMENTS.isdisjoint(map(_get_role, pattern.segments)):
        raise BadPattern(f"{text!r} names no owner: write a segment {{owner}}, such as '* /repos/{{owner}}/*'")
    return pattern


def _get_role(segment: str) -> str:
    """Return what a segment of a pattern stands for: `{name}` without a suffix, `**`, or literal text."""
    return segment.partition("}")[0] + "}" if segment.startswith("{") else segment


class ResourceFinder:
    """Finds the resources that a path names. Of the patterns that match a path, the first one applies. Caches its results.

    `patterns` are patterns of complete paths. `api_path` is the complete path of the API; without one, no path is outside of it.
    """

    def __init__(
        self, patterns: Iterable[str] = DEFAULT_OWNER_PATHS, paths: PathRules = DEFAULT_PATH_RULES, api_path: str = ""
    ) -> None:
        self._paths = paths
        self._routes: PlacedRoutes[int] = PlacedRoutes(paths, api_path)
        self._has_upper_case = self._routes.has_upper_case
        for order, text in enumerate(patterns):
            pattern = parse_owner_pattern(text)
            self._has_upper_case |= any(segment != segment.casefold() for segment in pattern.segments)
            if not pattern.is_outside or self._routes.has_api_path:
                self._routes.add(pattern, order)
        self._names: BoundedCache[tuple[str, str], tuple[ResourceName, ...]] = BoundedCache(MAX_CACHED_RESOURCES)

    def find_names(self, method: str, path: str) -> tuple[ResourceName, ...]:
        """Return what the readings of a path in normal form name, the most likely first; `NO_RESOURCES` if they name nothing.

        If only some readings name a resource, `NO_RESOURCE` is among the names.
        """
        key = (method, path)
        names = self._names.get(key)
        if names is None:
            names = tuple(dict.fromkeys(self._read_name(method, reading) for reading in self._list_readings(path)))
            if names == NO_RESOURCES:
                names = NO_RESOURCES  # The same object, so that callers can compare it fast.
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._names.store(key, names)
        return names

    def _list_readings(self, path: str) -> Iterable[PathReading]:
        """Return the readings of a path, without those that differ only in whether the case of their letters matters."""
        readings = list_readings(path, self._paths)
        if self._has_upper_case:
            return readings
        by_segments: dict[tuple[str, ...], PathReading] = {}
        for reading in readings:
            by_segments.setdefault(reading.segments, reading)
        return by_segments.values()

    def _read_name(self, method: str, reading: PathReading) -> ResourceName:
        """Return what one reading of a path names, by the first pattern that matches it."""
        matches = self._routes.find_matches(method, reading)
        if not matches:
            return NO_RESOURCE
        pattern = min(matches, key=lambda match: match[1])[0]
        return _build_name(pattern, reading.segments)


def build_finder(rules: RuleSet, owner_paths: Sequence[str] | None = None) -> ResourceFinder:
    """Return the finder for these rules. `owner_paths` replace their patterns, and match complete paths."""
    if owner_paths is None:
        return ResourceFinder(rules.owner_paths, rules.paths, rules.api_path)
    return ResourceFinder(owner_paths, rules.paths)


def _build_name(pattern: RoutePattern, segments: Sequence[str]) -> ResourceName:
    """Return the name that the segments of a path have at the places that a pattern marks."""
    parts: list[str] = []
    repository = ""
    at = 0
    for written in pattern.segments:
        role = _get_role(written)
        if role == ANY_SEGMENTS:
            count = pattern.count_any_segments(segments)
            parts = list(segments[at : at + count])
            at += count
            continue
        segment = segments[at].removesuffix(written.partition("}")[2]) if written.startswith("{") else segments[at]
        at += 1
        if role == OWNER:
            if segment in RESERVED_NAMES and (at == 1 or pattern.is_outside):
                return NO_RESOURCE
            parts = [segment]
        elif role == REPOSITORY:
            repository = segments[at - 1]
            if repository.endswith(GIT_ENDING):
                repository = repository.removesuffix(GIT_ENDING).removesuffix(WIKI_ENDING)
            else:
                repository = segment
        elif role in (PROJECT, GROUP):
            return _build_encoded_name(segment, is_project=role == PROJECT)
        elif role == ENTERPRISE:
            return ResourceName(segment[:MAX_RESOURCE_CHARACTERS])
    if parts[0] in RESERVED_NAMES and ANY_SEGMENTS in pattern.segments:
        return NO_RESOURCE
    return _join_name(parts[0], [*parts, repository] if repository else parts)


def _build_encoded_name(segment: str, *, is_project: bool) -> ResourceName:
    """Return the name of a project or group in one segment: an id, or a path such as `acme/web/site`."""
    if segment.isascii() and segment.isdecimal() and len(segment) <= MAX_ID_DIGITS:
        number = int(segment)
        return ResourceName(repository_id=number) if is_project else ResourceName(organization_id=number)
    parts = segment.split("/")
    if not is_project:
        return _join_name(parts[0], parts[:1])
    return _join_name(parts[0], parts) if len(parts) > 1 else NO_RESOURCE


def _join_name(owner: str, parts: Sequence[str]) -> ResourceName:
    """Return the name of a resource. One that is too long is that of its owner."""
    if len(owner) > MAX_RESOURCE_CHARACTERS:
        return ResourceName(owner[:MAX_RESOURCE_CHARACTERS])
    resource = "/".join(parts)
    return ResourceName(owner, resource if len(resource) <= MAX_RESOURCE_CHARACTERS else owner)


def resolve_name(name: ResourceName, directory: Directory) -> ResourceName:
    """Return a name without an id: that of the directory, or one with an empty owner if the directory has no such id."""
    if name.repository_id is not None:
        repository = directory.find_repository_by_id(name.repository_id)
        return NO_RESOURCE if repository is None else ResourceName(repository.owner, repository.name)
    if name.organization_id is not None:
        organization = directory.find_organization_by_id(name.organization_id)
        return NO_RESOURCE if organization is None else ResourceName(organization.login, organization.login)
    return name


def list_accounts(names: Iterable[ResourceName], own_account: str, directory: Directory) -> set[str]:
    """Return the accounts whose resources a workflow of `own_account` may request at a path with these names.

    A reading without a name stands for the workflow's own account. An id that the directory does not have stands for an empty name.
    """
    return {own_account if name == NO_RESOURCE else resolve_name(name, directory).owner for name in names}


def select_organization_resource(names: Iterable[ResourceName], caller: Caller, directory: Directory) -> str:
    """Return the resource that a request is counted for: of an organization in the directory, or empty if it has none.

    Of several names, the first one of an organization decides. If the path names no resource, or one by an unknown id, the
    credential of an installation or a workflow decides: it gives access to the resources of one account only.
    """
    resolved = [resolve_name(name, directory) for name in names]
    if not any(name.owner for name in resolved):
        resource = _find_credential_resource(caller, directory)
        resolved = [ResourceName(get_organization(resource), resource)]
    for name in resolved:
        organization = directory.find_organization(name.owner) if name.resource else None
        if organization is not None:
            _, slash, rest = name.resource.partition("/")
            return name.resource if organization.login == name.owner else f"{organization.login}{slash}{rest}"
    return ""


def _find_credential_resource(caller: Caller, directory: Directory) -> str:
    """Return the account of an installation, or the repository of a workflow; empty for other credentials."""
    if caller.repository is not None:
        return caller.repository.partition(":")[2]
    installation_id = "" if caller.installation is None else caller.installation.partition(":")[2]
    if installation_id.isdecimal():  # Those that the service reports may have names.
        installation = directory.find_installation(int(installation_id))
        return "" if installation is None else installation.account
    return ""


def get_organization(resource: str) -> str:
    """Return the organization of a resource: the text before its slash."""
    return resource.partition("/")[0]
