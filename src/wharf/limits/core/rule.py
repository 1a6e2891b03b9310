"""What a rule is: a limit with a name, a scope, an algorithm and a ceiling; and what an endpoint costs.

These are the words that rules files are read into. They hold no compiled form and no counters.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import ORDINARY_CLASSES, Caller, CallerClass

UNLIMITED: Final = 10**15 - 1
"""A ceiling that nobody reaches: the largest number that headers may hold. The use is counted, so that it can be seen."""

DEFAULT_SLICES: Final = 12
MINUTE_MS: Final = 60_000


class Algorithm(Enum):
    WINDOW = "window"
    """Opened by the first admitted request, with a stored end."""
    SLICES = "slices"
    """A sliding window in slices, the oldest counted whole: never more than the ceiling in any window."""
    LEASES = "leases"
    """How many run at once; each holds a lease that expires unless it is renewed."""
    METER = "meter"
    """Charged afterwards, so it may go into debt; the debt leaves with its slices."""


class CountedUnit(Enum):
    """What a rule counts."""

    REQUESTS = "requests"
    QUERY_COST = "query_cost"
    """Points of a GraphQL query by the size of its connections; any other request counts 1."""
    POINTS = "points"
    """Points by method, or as the endpoint says."""
    CONTENT = "content"
    """Requests that make content, over all interfaces."""
    CPU_MS = "cpu_ms"
    CONNECTIONS = "connections"
    FAILED_LOGINS = "failed_logins"


# What is counted decides how, where a rule does not say.
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
    """How a request occupies the service; each class has its own concurrency limit."""

    PLAIN = "plain"
    WEBSOCKET = "websocket"
    WAITING = "waiting"
    """Blocking queries and streams, whose waiting is no work."""


class StoreOutagePolicy(Enum):
    """What a rule answers while its counters cannot be asked."""

    OPEN = "open"
    CLOSED = "closed"
    LOCAL = "local"


class PerItem(Enum):
    ALL = "all"
    """Once there are more than the threshold, every item counts."""
    BEYOND = "beyond"
    """Only the items beyond the threshold count."""


class Scale(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an installation's ceiling grows with what it is installed on."""

    per_repository: int = 0
    per_user: int = 0
    above: int = 20
    most: int = UNLIMITED
    per_item: PerItem = PerItem.ALL

    def compute_ceiling(self, base: int, *, repositories: int, users: int) -> int:
        grown = base + self._items(repositories) * self.per_repository + self._items(users) * self.per_user
        return max(base, min(grown, self.most))

    def _items(self, count: int) -> int:
        if count <= self.above:
            return 0
        return count if self.per_item is PerItem.ALL else count - self.above


class Interface(Enum):
    """Which body, if any, is read before a decision, and in which form a refusal is told."""

    REST = "rest"
    GRAPHQL = "graphql"
    LARGE_FILES = "large_files"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    was: str | None = None
    """Its name before it was renamed: the counters move over."""
    match: tuple[str, ...] = ()
    """Patterns of method and path; none means every request."""
    interface: tuple[Interface, ...] = ()
    """Which interfaces it is about; none means all."""
    resource: str | None = None
    """The primary bucket, told in headers; a rule without one is a secondary limit."""
    counts: CountedUnit = CountedUnit.REQUESTS
    algorithm: Algorithm = Algorithm.WINDOW
    scope: tuple[str, ...] = ("caller",)
    per_endpoint: bool = False
    window_ms: int = 60 * MINUTE_MS
    slices: int = DEFAULT_SLICES
    ceilings: Mapping[CallerClass, int] = {}
    scale: Scale | None = None
    connection: ConnectionClass = ConnectionClass.PLAIN
    keys_most: int = 256
    """Keys below one owner (endpoints, addresses of a user); all further ones share one. 0 is without bound."""
    objects_most: int | None = None
    """Objects in one large-file batch; more are refused with 413."""
    hidden: bool = False
    shadow: bool = False
    enforce_percent: int = 100
    on_store_loss: StoreOutagePolicy = StoreOutagePolicy.LOCAL
    status: int | None = None
    """The status of its refusals; by default 403, and 429 for large files."""
    line: int = 0
    """Where it stands in its file; 0 for a rule that was not read from one."""
    file: str = ""

    @property
    def is_primary(self) -> bool:
        return self.resource is not None

    @property
    def is_partitioned(self) -> bool:
        """Whether one owner has several counters."""
        return self.per_endpoint or len(self.scope) > 1

    def applies_to(self, case: CallerClass) -> bool:
        return case in self.ceilings or ORDINARY_CLASSES.get(case) in self.ceilings

    def get_ceiling(self, caller: Caller) -> int:
        """What this caller may use in a window, before grants. Only for callers that the rule applies to."""
        case = caller.caller_class
        base = self.ceilings.get(case)
        if base is None:
            base = self.ceilings[ORDINARY_CLASSES[case]]
        if self.scale is None or case is not CallerClass.INSTALLATION:
            return base
        return self.scale.compute_ceiling(base, repositories=caller.repositories, users=caller.members)


class EndpointRule(msgspec.Struct, frozen=True, kw_only=True):
    """What requests that match cost and are."""

    match: tuple[str, ...]
    points: int | None = None
    """By default by method."""
    content: bool = False
    interface: Interface = Interface.REST
    free: bool = False
    """Counts against no primary limit and never leads to a ban: the endpoint that shows the limits."""
    hidden: bool = False
    """Its cost is kept from callers: limits fed by it show no remaining."""
    line: int = 0
    file: str = ""


class MethodPoints(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    read: int = 1
    write: int = 5

    def get_points(self, method: str) -> int:
        return self.read if method in READ_METHODS else self.write


READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class GraphqlRules(msgspec.Struct, frozen=True, kw_only=True):
    query_points: int = 1
    mutation_points: int = 5
    content_mutations: tuple[str, ...] = ()
    nodes_most: int = 500_000
    tokens_most: int = 10_000
    depth_most: int = 100
    entries_most: int = 100
    """Queries in one array."""


class BanRules(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When those who go on while limited are banned."""

    refusals_least: int = 60
    percent: int = 10
    """Of the limit that refuses; the larger of the two bounds counts."""
    minutes: int = 3
    grace_ms: int = 2_000
    """A refusal counts once its predecessor has been told for so long."""
    first_ms: int = 10 * MINUTE_MS
    most_ms: int = 24 * 60 * MINUTE_MS
    forget_ms: int = 24 * 60 * MINUTE_MS
    shadow: bool = False
    addresses_shadow: bool = True


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rules file says, in order: the first rule that matches wins among those of a kind."""

    rules: tuple[Rule, ...]
    endpoints: tuple[EndpointRule, ...] = ()
    points: MethodPoints = MethodPoints()
    graphql: GraphqlRules = GraphqlRules()
    ban: BanRules = BanRules()
    disclose_secondary: bool = False
    documentation: str = "/docs/rate-limits"
    keys_most: int = 1_000_000
    """Addresses without a credential that are counted one by one; further ones share the bucket of their network."""
