"""Which account and repository own the resource that a request is about, by patterns of its path.

A pattern names the account by its segment `{owner}`, and the repository by `{repository}` if it has one. Activity is
counted for the organization that owns the resource, not for that of the sender.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from wharf.limits.core.caches import BoundedCache
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.callers.directory import Directory
from wharf.limits.core.paths import read_segments
from wharf.limits.core.route import BadPattern, RoutePattern, RouteTree, parse_pattern

OWNER_SEGMENT: Final = "{owner}"
REPOSITORY_SEGMENT: Final = "{repository}"
REPOSITORY_ENDING: Final = ".git"
"""The end of the name of a repository in the paths of Git and large files. It is not part of the name."""
DEFAULT_OWNER_PATTERNS: Final = (
    "* /repos/{owner}/{repository}",
    "* /repos/{owner}/{repository}/*",
    "* /orgs/{owner}",
    "* /orgs/{owner}/*",
    "* /api/v1/repos/{owner}/{repository}",
    "* /api/v1/repos/{owner}/{repository}/*",
    "* /api/v1/orgs/{owner}",
    "* /api/v1/orgs/{owner}/*",
    "* /api/v3/repos/{owner}/{repository}",
    "* /api/v3/repos/{owner}/{repository}/*",
    "* /api/v3/orgs/{owner}",
    "* /api/v3/orgs/{owner}/*",
    "* /{owner}/{repository}.git/*",
    "* /{owner}/{repository}/info/lfs/*",
)
"""The paths of code hosts: at the root, below the prefixes of two widespread APIs, and of Git and large files."""
MAX_RESOURCE_CHARACTERS: Final = 200
"""Requests for a repository with a longer name are counted for its owner alone. Limits the memory of activity rows."""
MAX_CACHED_RESOURCES: Final = 32_768
"""Limits the memory of the cache of resources by path, in entries; the oldest entries of a full cache are removed."""
MAX_CACHED_PATH_CHARACTERS: Final = 256
"""Longer paths are not cached, so that callers cannot fill the memory with them."""


def parse_owner_pattern(text: str) -> RoutePattern:
    """Return a parsed pattern with an owner. Raises `BadPattern` if it is invalid or has no segment `{owner}`."""
    pattern = parse_pattern(text)
    if OWNER_SEGMENT not in pattern.segments:
        raise BadPattern(f"{text!r} names no owner: write a segment {{owner}}, such as '* /repos/{{owner}}/*'")
    return pattern


ResourceName = tuple[str, str]
"""The owner and the resource, such as `acme` and `acme/site`. A plain tuple, because every request makes or reads one."""


class ResourceFinder:
    """Finds the resource of a request by its path: `acme/site`, `acme`, or nothing. Caches its results."""

    def __init__(self, patterns: Iterable[str] = DEFAULT_OWNER_PATTERNS) -> None:
        self._routes: RouteTree[tuple[int, int]] = RouteTree()
        for text in patterns:
            pattern = parse_owner_pattern(text)
            names = [segment.partition("}")[0] + "}" for segment in pattern.segments]
            repository_index = names.index(REPOSITORY_SEGMENT) if REPOSITORY_SEGMENT in names else -1
            self._routes.add(pattern, (names.index(OWNER_SEGMENT), repository_index))
        self._names: BoundedCache[tuple[str, str], ResourceName] = BoundedCache(MAX_CACHED_RESOURCES)

    def find_name(self, method: str, path: str) -> ResourceName:
        """Return the resource that a path in normal form names; two empty texts if it names none."""
        key = (method, path)
        name = self._names.get(key)
        if name is None:
            resource = self._read_resource(method, read_segments(path))
            name = (get_organization(resource), resource)
            if len(path) <= MAX_CACHED_PATH_CHARACTERS:
                self._names.store(key, name)
        return name

    def _read_resource(self, method: str, segments: Sequence[str]) -> str:
        """Return owner and repository, or the owner alone; empty if the segments of a path name none."""
        matches = self._routes.find_matches(method, segments)
        if not matches:
            return ""
        owner_index, repository_index = matches[0][1]
        owner = segments[owner_index]
        if len(owner) > MAX_RESOURCE_CHARACTERS:
            return ""
        if repository_index < 0:
            return owner
        resource = f"{owner}/{segments[repository_index].removesuffix(REPOSITORY_ENDING)}"
        return resource if len(resource) <= MAX_RESOURCE_CHARACTERS else owner


def select_organization_resource(resource: str, caller: Caller, directory: Directory) -> str:
    """Return the resource that a request is counted for: of an organization in the directory, or empty if it has none.

    If the path names no resource, the credential of an installation or a workflow decides: it gives access to the
    resources of one account only.
    """
    resource = resource or _find_credential_resource(caller, directory)
    owner, slash, repository = resource.partition("/")
    organization = directory.find_organization(owner) if owner else None
    if organization is None:
        return ""
    return resource if organization.login == owner else f"{organization.login}{slash}{repository}"


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
