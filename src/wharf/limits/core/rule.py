"""The model of a rules file: a rule is a limit with a name, scope, algorithm and ceilings; an endpoint rule sets
costs.

The field names are the keys of the file. Rules in a form that is fast to evaluate are in `rulebook`; counters are in
`counting`.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import ORDINARY_CLASSES, Caller, CallerClass

UNLIMITED: Final = 10**15 - 1
"""The ceiling of an unlimited caller: the largest number that headers can hold. Usage is still counted."""

DEFAULT_SLICES: Final = 12
"""The number of slices of a sliding window, unless the rule sets one."""
MINUTE_MS: Final = 60_000


class Algorithm(Enum):
    """The algorithm by which a rule counts."""

    WINDOW = "window"
    """A fixed window that the first admitted request opens, with a stored end."""
    SLICES = "slices"
    """A sliding window in slices. The oldest slice counts fully, so no window exceeds the ceiling."""
    LEASES = "leases"
    """The number of running requests. Each holds a lease that expires unless it is renewed."""
    METER = "meter"
    """A sliding window that is charged after the request, so that it can exceed the ceiling."""


class CountedUnit(Enum):
    """What a rule counts: requests, or points or time of requests."""

    REQUESTS = "requests"
    QUERY_COST = "query_cost"
    """Points of a GraphQL query by the size of its connections; any other request counts 1."""
    POINTS = "points"
    """Points by method, or the points that the endpoint rule sets."""
    CONTENT = "content"
    """Requests that create content, over all interfaces."""
    CPU_MS = "cpu_ms"
    """Milliseconds of CPU time, charged after the request."""
    CONNECTIONS = "connections"
    """Requests that run at the same time."""
    FAILED_LOGINS = "failed_logins"


# The algorithm of a rule that sets none.
DEFAULT_ALGORITHMS: Final = {
    CountedUnit.REQUESTS: Algorithm.WINDOW,
    CountedUnit.QUERY_COST: Algorithm.WINDOW,
    CountedUnit.POINTS: Algorithm.SLICES,
    CountedUnit.CONTENT: Algorithm.SLICES,
    CountedUnit.CPU_MS: Algorithm.METER,
    CountedUnit.CONNECTIONS: Algorithm.LEASES,
    CountedUnit.FAILED_LOGINS: Algorithm.SLICES,
}


class ConnectionClass(Enum):
    """How a request occupies the service. Each class has its own concurrency limit."""

    PLAIN = "plain"
    """A request that is answered as soon as it is processed."""
    WEBSOCKET = "websocket"
    WAITING = "waiting"
    """Blocking queries and streams, which use no CPU time while they wait."""


class StoreOutagePolicy(Enum):
    """What a rule does while its store is unavailable: admit, refuse, or count in this process."""

    OPEN = "open"
    """Admit every request."""
    CLOSED = "closed"
    """Refuse every request."""
    LOCAL = "local"
    """Count in this process, which may use its share of the limit."""


class PerItem(Enum):
    """Which items raise the ceiling of an installation."""

    ALL = "all"
    """All items, once there are more than the threshold."""
    BEYOND = "beyond"
    """Only the items above the threshold."""


class Scale(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the ceiling of an installation grows with its repositories and users."""

    per_repository: int = 0
    """What each repository adds to the ceiling."""
    per_user: int = 0
    """What each user adds to the ceiling."""
    above: int = 20
    """The threshold: up to this number of repositories (or users) nothing is added."""
    most: int = UNLIMITED
    """The maximum of the increased ceiling."""
    per_item: PerItem = PerItem.ALL

    def compute_ceiling(self, base: int, *, repositories: int, users: int) -> int:
        """Return the ceiling of an installation: never below `base`, and never above `most` unless `base` is."""
        scaled = base + self._count_items(repositories) * self.per_repository + self._count_items(users) * self.per_user
        return max(base, min(scaled, self.most))

    def _count_items(self, count: int) -> int:
        """Return how many of `count` repositories or users raise the ceiling: none up to the threshold."""
        if count <= self.above:
            return 0
        return count if self.per_item is PerItem.ALL else count - self.above


class Interface(Enum):
    """The interface of an endpoint: which body is read before the decision, and the format of refusals."""

    REST = "rest"
    GRAPHQL = "graphql"
    LARGE_FILES = "large_files"
    FILES = "files"
    """Transfers of files, such as packages, raw files and git: they need bandwidth, and hardly any computation."""


class SegmentTreatment(Enum):
    """What happens to a request whose path contains segments of a kind that services read differently."""

    REFUSE = "refuse"
    """The request is refused with 400."""
    REMOVE = "remove"
    """The gateway removes the segments before it judges and forwards the path. Other entry points refuse the request."""
    KEEP = "keep"
    """The segments are text like all others."""


class EscapedSlash(Enum):
    """How the service reads `%2F` in a path."""

    BOTH = "both"
    """It is not known: the limits of both readings apply."""
    SEPARATOR = "separator"
    TEXT = "text"
    """As a part of its segment."""
    REFUSE = "refuse"
    """Requests with it are refused with 400."""


class PathDifference(Enum):
    """Whether a difference in the spelling of a path matters to the service."""

    BOTH = "both"
    """It is not known: the limits of both readings apply."""
    EXACT = "exact"
    """The difference makes another path."""
    IGNORE = "ignore"


class MethodOverride(Enum):
    """Whether the service serves a request as another method that it names, such as in `X-HTTP-Method-Override`."""

    BOTH = "both"
    """It is not known: the limits of both methods apply. Forms are not considered."""
    FORMS = "forms"
    """The same, and also for a method that the field `_method` of a form names."""
    BODIES = "bodies"
    """The same, and also for a method that the member `_method` of a JSON body names."""
    IGNORE = "ignore"
    REFUSE = "refuse"
    """Requests that name another method are refused."""


class PathRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the service reads paths and methods, where services differ. By default no spelling of a path avoids a limit."""

    dot_segments: SegmentTreatment = SegmentTreatment.REFUSE
    """What happens to `.` and `..`."""
    empty_segments: SegmentTreatment = SegmentTreatment.REFUSE
    """What happens to the segment between the slashes of `//`."""
    escaped_slash: EscapedSlash = EscapedSlash.BOTH
    parameters: PathDifference = PathDifference.BOTH
    """Whether `;` and the text after it belong to a segment (`EXACT`)."""
    case: PathDifference = PathDifference.BOTH
    """Whether uppercase and lowercase letters differ (`EXACT`)."""
    formats: tuple[str, ...] = ("*",)
    """The formats that a service may cut from the end of a path, such as `json`; `*` for any."""
    method_override: MethodOverride = MethodOverride.BOTH

    def replace_removal(self) -> "PathRules":
        """Return these rules for requests that the limiter does not forward: they refuse the segments instead of removing them.

        The service receives such a request as its caller sent it, so no other path may be judged (decision record 0134).
        """
        return msgspec.structs.replace(
            self,
            dot_segments=_replace_removal(self.dot_segments),
            empty_segments=_replace_removal(self.empty_segments),
        )


def _replace_removal(treatment: SegmentTreatment) -> SegmentTreatment:
    return SegmentTreatment.REFUSE if treatment is SegmentTreatment.REMOVE else treatment


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, as a rules file or a profile defines it."""

    name: str
    was: str | None = None
    """The previous name of a renamed rule; its counters are kept under the new name."""
    match: tuple[str, ...] = ()
    """Patterns of method and path; empty matches every request."""
    interface: tuple[Interface, ...] = ()
    """The interfaces that the rule applies to; empty means all."""
    resource: str | None = None
    """The primary bucket that headers report. A rule without one is a secondary limit."""
    counts: CountedUnit = CountedUnit.REQUESTS
    algorithm: Algorithm = Algorithm.WINDOW
    scope: tuple[str, ...] = ("caller",)
    """What identifies a counter, in order: `caller` or members such as `user`, `app` and `address`; the first is the owner."""
    per_endpoint: bool = False
    """Whether each endpoint has its own counter."""
    window_ms: int = 60 * MINUTE_MS
    slices: int = DEFAULT_SLICES
    ceilings: Mapping[CallerClass, int] = {}
    """The ceiling by class of caller; the rule does not apply to other classes."""
    scale: Scale | None = None
    connection: ConnectionClass = ConnectionClass.PLAIN
    """The kind of requests that a concurrency limit counts."""
    keys_most: int = 256
    """The maximum number of counters of one owner (for endpoints or addresses); others share one. 0: no maximum."""
    objects_most: int | None = None
    """The maximum number of objects in a large-file batch; larger batches are refused with 413."""
    hidden: bool = False
    """Whether replies never name this limit."""
    shadow: bool = False
    """Whether the rule is only counted and logged, and refuses nothing."""
    enforce_percent: int = 100
    """The share of owners for whom the rule is enforced; for the others it is in shadow mode."""
    on_store_loss: StoreOutagePolicy = StoreOutagePolicy.LOCAL
    status: int | None = None
    """The HTTP status of its refusals; `None` selects 403, or 429 for large files."""
    line: int = 0
    """The line in its file; 0 if the rule was not read from a file."""
    file: str = ""

    @property
    def is_primary(self) -> bool:
        return self.resource is not None

    @property
    def is_partitioned(self) -> bool:
        """Whether one owner can have several counters of this rule."""
        return self.per_endpoint or len(self.scope) > 1

    def applies_to(self, caller_class: CallerClass) -> bool:
        """Return whether the rule has a ceiling for this class of callers, or for its class without the enterprise tier."""
        return caller_class in self.ceilings or ORDINARY_CLASSES.get(caller_class) in self.ceilings

    def get_base_ceiling(self, caller_class: CallerClass) -> int:
        """Return the ceiling of a class of callers, without what `scale` and grants add. The rule must apply to the class."""
        base = self.ceilings.get(caller_class)
        return self.ceilings[ORDINARY_CLASSES[caller_class]] if base is None else base

    def get_ceiling(self, caller: Caller) -> int:
        """Return the ceiling of this caller, before grants. The rule must apply to the caller."""
        caller_class = caller.caller_class
        base = self.get_base_ceiling(caller_class)
        if self.scale is None or caller_class is not CallerClass.INSTALLATION:
            return base
        return self.scale.compute_ceiling(base, repositories=caller.repositories, users=caller.members)


class EndpointRule(msgspec.Struct, frozen=True, kw_only=True):
    """The cost and properties of the requests that match these patterns."""

    match: tuple[str, ...]
    points: int | None = None
    """`None`: the points of the method."""
    content: bool = False
    interface: Interface = Interface.REST
    free: bool = False
    """Requests charge no primary limit and cannot lead to a ban, such as the status endpoint."""
    hidden: bool = False
    """The cost is not disclosed: limits that count it do not report their remaining points."""
    waiting: bool = False
    """Requests mostly wait, such as long polls and event streams: they have the class `waiting`."""
    content_marked: bool = False
    """The service marks which of its requests created content. Requests are refused while a content limit is full."""
    line: int = 0
    file: str = ""


class MethodPoints(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The points of a request by its method."""

    read: int = 1
    write: int = 5

    def get_points(self, method: str) -> int:
        """Return the points of a request with this method."""
        return self.read if method in READ_METHODS else self.write


READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class GraphqlRules(msgspec.Struct, frozen=True, kw_only=True):
    """Points of GraphQL queries, and the limits on query size."""

    query_points: int = 1
    mutation_points: int = 5
    content_mutations: tuple[str, ...] = ()
    nodes_most: int = 500_000
    tokens_most: int = 10_000
    depth_most: int = 100
    entries_most: int = 100
    """The maximum number of queries in one array."""


class BanRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When callers are banned that continue to send requests while they are limited."""

    refusals_least: int = 60
    """The number of refusals in a minute that is always tolerated."""
    percent: int = 10
    """The tolerated refusals in a minute as a percentage of the ceiling that refused; the larger of both numbers applies."""
    minutes: int = 3
    """The number of consecutive minutes with too many refusals that leads to a ban."""
    grace_ms: int = 2_000
    """A refusal is counted only if the refusal that started the current wait was sent at least this long before."""
    first_ms: int = 10 * MINUTE_MS
    """The length of the first ban; each further ban is twice as long."""
    most_ms: int = 24 * 60 * MINUTE_MS
    """The maximum length of a ban."""
    forget_ms: int = 24 * 60 * MINUTE_MS
    """After this time without a counted refusal, the next ban is a first ban again."""
    shadow: bool = False
    """Whether bans are only recorded, not enforced."""
    addresses_shadow: bool = True
    """Whether bans of addresses are only recorded, because several users can share an address."""


class DescriptorRule(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the descriptors that a proxy such as Envoy sends: which descriptors it matches, and the rule that counts."""

    domain: str
    entries: tuple[tuple[str, str], ...]
    """Key and value of each entry. An empty value matches all values, and one that ends in `*` those with this beginning."""
    rule: Rule


OVERRIDE_UNITS: Final[Mapping[str, int]] = {
    "second": 1_000,
    "minute": MINUTE_MS,
    "hour": 60 * MINUTE_MS,
    "day": 24 * 60 * MINUTE_MS,
    "week": 7 * 24 * 60 * MINUTE_MS,
    "month": 30 * 24 * 60 * MINUTE_MS,
    "year": 365 * 24 * 60 * MINUTE_MS,
}
"""The units of time of limits that a proxy sends with a descriptor, in milliseconds."""
OVERRIDE_PREFIX: Final = "override_"
"""Begins the names of the rules that count such limits. No rule of a file may have such a name if it has domains."""
DESCRIPTOR_STATUS: Final = 429
"""The status in the body of a refusal by a descriptor rule; proxies refuse with 429 by default."""
OVERRIDE_RULES: Final = tuple(
    Rule(
        name=f"{OVERRIDE_PREFIX}{unit}",
        window_ms=window_ms,
        status=DESCRIPTOR_STATUS,
        file="limit sent by the proxy",
    )
    for unit, window_ms in OVERRIDE_UNITS.items()
)
"""One rule for each unit: it counts descriptors whose limit the proxy sends."""


DEFAULT_OWNER_PATHS: Final = (
    "* /repos/{owner}/{repository}",
    "* /repos/{owner}/{repository}/*",
    "* /orgs/{owner}",
    "* /orgs/{owner}/*",
    "* /enterprises/{enterprise}",
    "* /enterprises/{enterprise}/*",
    "* /repositories/{project}",
    "* /repositories/{project}/*",
    "* /organizations/{group}",
    "* /organizations/{group}/*",
    "* /api/v1/repos/{owner}/{repository}",
    "* /api/v1/repos/{owner}/{repository}/*",
    "* /api/v1/orgs/{owner}",
    "* /api/v1/orgs/{owner}/*",
    "* /api/v3/repos/{owner}/{repository}",
    "* /api/v3/repos/{owner}/{repository}/*",
    "* /api/v3/orgs/{owner}",
    "* /api/v3/orgs/{owner}/*",
    "* /v2/{owner}/*",
    "* /{owner}/{repository}.git/*",
    "* /{owner}/{repository}/info/lfs/*",
    "* /{owner}/{repository}/info/refs",
    "* /{owner}/{repository}/git-upload-pack",
    "* /{owner}/{repository}/git-receive-pack",
    "* outside:/v2/{owner}/*",
    "* outside:/orgs/{owner}",
    "* outside:/orgs/{owner}/*",
    "* outside:/enterprises/{enterprise}",
    "* outside:/enterprises/{enterprise}/*",
    "* outside:/{owner}/{repository}.git/*",
    "* outside:/{owner}/{repository}",
    "* outside:/{owner}/{repository}/*",
    "* outside:/{owner}",
)
"""The paths of the contract's code host that name the owner of a resource: of the API, below the prefixes of two widespread
APIs, of registries, of Git and large files, and outside of the API also of pages. The first pattern that matches applies."""


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """The complete content of a rules file, in order. Of the primary rules that match, the first applies."""

    rules: tuple[Rule, ...]
    endpoints: tuple[EndpointRule, ...] = ()
    points: MethodPoints = MethodPoints()
    graphql: GraphqlRules = GraphqlRules()
    paths: PathRules = PathRules()
    ban: BanRules = BanRules()
    shadow: bool = False
    """Whether all rules and bans are in shadow mode. Each of them has its own `shadow` set then; see `with_shadow`."""
    disclose_secondary: bool = False
    documentation: str = "/docs/rate-limits"
    base_path: str = ""
    """The path of the API below `site_path`, such as `/api/v3`; empty if the API is the whole site."""
    site_path: str = ""
    """The path below which the host serves everything; empty for the root."""
    keys_most: int = 1_000_000
    """The maximum number of addresses without a credential that are counted separately; others share a counter of
    their network.
    """
    owner_paths: tuple[str, ...] = DEFAULT_OWNER_PATHS
    """Patterns of the paths that name the owner of a resource. Those that begin with `outside:` need an API path."""
    domains: tuple[str, ...] = ()
    """The domains whose descriptors are limited."""
    descriptors: tuple[DescriptorRule, ...] = ()

    def with_shadow(self) -> "RuleSet":
        """Return these rules with every rule and all bans in shadow mode."""
        return msgspec.structs.replace(
            self,
            shadow=True,
            rules=tuple(msgspec.structs.replace(rule, shadow=True) for rule in self.rules),
            descriptors=tuple(
                msgspec.structs.replace(descriptor, rule=msgspec.structs.replace(descriptor.rule, shadow=True))
                for descriptor in self.descriptors
            ),
            ban=msgspec.structs.replace(self.ban, shadow=True),
        )

    @property
    def counted_rules(self) -> tuple[Rule, ...]:
        """All rules that have counters: those for requests, and those for descriptors."""
        if not self.domains:
            return self.rules
        return (*self.rules, *(descriptor.rule for descriptor in self.descriptors), *OVERRIDE_RULES)

    @property
    def api_path(self) -> str:
        """The complete path below which the API lies; empty for the root."""
        return self.site_path + self.base_path
