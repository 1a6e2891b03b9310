"""Admission of requests: limits how many are in flight, by class of caller, so that each is answered in time, and how much
memory their bodies take.

A request beyond the limit of its class is refused with 503 and `Retry-After` before it is decoded, authenticated or
executed. Each class has a limit of its own, so a flood of registrations cannot delay a heartbeat. How often a caller may
send requests does not belong here: that is rate limiting.
"""

import enum
import logging
import math
from collections.abc import Mapping
from hmac import compare_digest
from types import MappingProxyType
from typing import Final

import msgspec

from wharf.cluster.api.asgi import App, Receive, Scope, Send
from wharf.cluster.api.held_memory import HeldMemory, MemoryLimit
from wharf.cluster.api.node_callers import (
    HEARTBEAT_ENDPOINT,
    NODE_ENDPOINTS,
    REGISTER_ENDPOINT,
    NodeProof,
    classify_node_proof,
)
from wharf.cluster.api.requests.request import Request
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import Overloaded
from wharf.contract.wire.credentials import SERVER_SECRET_HEADER
from wharf.contract.wire.endpoint_table import Endpoint, EndpointKind

log = logging.getLogger(__name__)

LOG_INTERVAL_S: Final = 60.0
"""A class of requests that is refused is logged once in this time. Protects the log in a flood."""


class RequestClass(enum.Enum):
    """A class of requests that has a limit of its own. The values appear in messages."""

    HEARTBEAT = "heartbeats of registered nodes"
    SERVER = "requests of other servers"
    NODE = "requests of registered nodes"
    NEW_NODE = "node registrations"
    UNPROVED_NODE = "requests of unknown nodes"
    READ = "reads"
    QUERY = "blocking queries that do not wait yet"
    WRITE = "writes"
    LOGIN = "logins"
    LOCAL = "requests about agents and tasks"
    HEALTH = "health checks"


class AdmissionLimit(msgspec.Struct, frozen=True):
    """The limit of one class in one api process, and how soon refused callers may return."""

    max_in_flight: int
    """How many requests of the class may wait for their reply. Protects memory, and the time in which they are answered."""
    returns_per_s: float
    """The rate at which refused callers are asked to return: `Retry-After` grows with the number of refused ones."""
    max_retry_after_s: int
    """The longest `Retry-After`."""


DEFAULT_LIMITS: Final[Mapping[RequestClass, AdmissionLimit]] = MappingProxyType({
    # The leader answers over 1,000 heartbeats a second. Nodes wait 10 s for a reply, and have 10 s of grace.
    RequestClass.HEARTBEAT: AdmissionLimit(4_096, returns_per_s=1_000.0, max_retry_after_s=3),
    # The other server has admitted them, so this limit is reached only if several servers are full.
    RequestClass.SERVER: AdmissionLimit(8_192, returns_per_s=1_000.0, max_retry_after_s=3),
    RequestClass.NODE: AdmissionLimit(512, returns_per_s=200.0, max_retry_after_s=15),
    # Each is a write with a commit; a hundred take about a second. No work depends on a node that is not registered.
    RequestClass.NEW_NODE: AdmissionLimit(128, returns_per_s=100.0, max_retry_after_s=30),
    # Nearly all are refused at once. A node that registered on another server is unknown for a moment, and so is one whose
    # older agent registers without its secret in a header.
    RequestClass.UNPROVED_NODE: AdmissionLimit(64, returns_per_s=50.0, max_retry_after_s=30),
    RequestClass.READ: AdmissionLimit(1_024, returns_per_s=200.0, max_retry_after_s=15),
    # After a restart all callers of blocking queries return at once. Two seconds of work; a query that waits costs nothing.
    RequestClass.QUERY: AdmissionLimit(8_192, returns_per_s=1_000.0, max_retry_after_s=15),
    RequestClass.WRITE: AdmissionLimit(512, returns_per_s=200.0, max_retry_after_s=15),
    # Callers need no token, and may wait 25 s for an identity provider. Each takes a few milliseconds of CPU time.
    RequestClass.LOGIN: AdmissionLimit(64, returns_per_s=20.0, max_retry_after_s=15),
    # They may wait for a node or a peer that does not reply, so they must not use up the slots of reads and writes.
    RequestClass.LOCAL: AdmissionLimit(512, returns_per_s=100.0, max_retry_after_s=15),
    RequestClass.HEALTH: AdmissionLimit(64, returns_per_s=50.0, max_retry_after_s=3),
})  # fmt: skip
"""The limits of each api process. Blocking queries count until they begin to wait, streams and websockets until they begin."""

PACED_ENDPOINTS: Final = NODE_ENDPOINTS - {HEARTBEAT_ENDPOINT}
"""Requests of nodes that begin a few at a time, so that heartbeats and requests of users come first (ADR 132)."""
CLASS_BY_ENDPOINT: Final = MappingProxyType({
    "agent.health": RequestClass.HEALTH, "acl.login": RequestClass.LOGIN,
    "acl.oidc.auth-url": RequestClass.LOGIN, "acl.oidc.complete": RequestClass.LOGIN,
    "acl.token.exchange": RequestClass.LOGIN, "acl.bootstrap": RequestClass.LOGIN,
})  # fmt: skip
"""Endpoints whose class does not follow from their kind."""
SERVER_ENDPOINT: Final = "server.ask"
UNTIMED_ENDPOINTS: Final = NODE_ENDPOINTS | {SERVER_ENDPOINT}
"""Actions that do not wait for `TimedLoopSlots`: heartbeats never wait, and the others of nodes have slots of their own."""
MAX_SMALL_HEAD_BYTES: Final = 2_048
"""A larger head takes a slot. Reading a head of this size takes some tenths of a millisecond, one of 40 kB up to ten."""


DEFAULT_MAX_BODY_MEMORY: Final[Mapping[RequestClass, int]] = MappingProxyType({
    RequestClass.WRITE: 256_000_000,
    # A node sends up to 2 MB at a time, and registers with less than 64 kB.
    RequestClass.NODE: 128_000_000,
    RequestClass.NEW_NODE: 32_000_000,
    RequestClass.UNPROVED_NODE: 16_000_000,
    # The body of a login has 64 kB at most.
    RequestClass.LOGIN: 8_000_000,
})  # fmt: skip
"""Bytes of large bodies that an api process holds at a time, by class; `WRITE` is for all other classes. Callers without a
token can use up those of logins and unknown nodes only. Bodies that arrive in one part do not count.
"""


class AdmissionGate:
    """Counts the requests of one class that are in flight, and refuses more than its limit."""

    __slots__ = ("_class", "_limit", "_logged_at_s", "_refused", "_refused_at_s", "in_flight")

    def __init__(self, request_class: RequestClass, limit: AdmissionLimit) -> None:
        self.in_flight = 0
        self._class = request_class
        self._limit = limit
        self._refused = 0.0
        """Refused callers that have not been asked to return yet, at `_refused_at_s`."""
        self._refused_at_s = 0.0
        self._logged_at_s = -math.inf

    def enter(self, now_s: float) -> None:
        """Count a request until `leave`. Raises `Overloaded` if the class is full; the request then does not count."""
        if self.in_flight < self._limit.max_in_flight:
            self.in_flight += 1
            return
        retry_after_s = self._draw_return(now_s)
        if now_s - self._logged_at_s >= LOG_INTERVAL_S:
            self._logged_at_s = now_s
            log.warning("server overloaded, refusing requests class=%s in_flight=%d", self._class.value, self.in_flight)
        raise Overloaded(f"{self._limit.max_in_flight} {self._class.value} are in progress", retry_after_s)

    def leave(self) -> None:
        """Stop counting a request that has its reply."""
        self.in_flight -= 1

    def _draw_return(self, now_s: float) -> int:
        """Count a refused caller and return after how many seconds it may return.

        Refused callers form an imaginary queue that shrinks by `returns_per_s`, so that they do not return all at once.
        """
        limit = self._limit
        elapsed_s = now_s - self._refused_at_s
        self._refused_at_s = now_s
        self._refused = max(0.0, self._refused - elapsed_s * limit.returns_per_s) + 1
        return max(1, min(limit.max_retry_after_s, math.ceil(self._refused / limit.returns_per_s)))


class QueryPass:
    """Counts one blocking query in its gate until it begins to wait, or ends without a wait."""

    __slots__ = ("_gate",)

    def __init__(self, gate: AdmissionGate) -> None:
        self._gate: AdmissionGate | None = gate

    def leave(self) -> None:
        """Stop counting the query. Further calls do nothing."""
        if self._gate is not None:
            self._gate.leave()
            self._gate = None


class AdmissionController:
    """The gates of one api process: assigns each request to a class and counts it while it is in flight."""

    def __init__(
        self,
        server: Server,
        limits: Mapping[RequestClass, AdmissionLimit] = DEFAULT_LIMITS,
        max_body_memory: Mapping[RequestClass, int] = DEFAULT_MAX_BODY_MEMORY,
    ) -> None:
        self._server = server
        self._body_memory = {
            request_class: MemoryLimit(size, "the bodies of the requests in progress")
            for request_class, size in max_body_memory.items()
        }
        self._server_secret = server.identity.door_secret.encode()
        self._gates = {request_class: AdmissionGate(request_class, limits[request_class]) for request_class in limits}
        self._gate_by_endpoint: dict[str, AdmissionGate] = {}

    def enter(self, request: Request) -> "AdmissionGate | QueryPass | None":
        """Count the request until `leave` of the result. Raises `Overloaded` if too many are in flight.

        Return a `QueryPass` for a blocking query, which calls `leave` when it begins to wait, and `None` for an upload,
        which lasts as long as the caller takes.
        """
        endpoint = request.endpoint
        if endpoint.has_streamed_body:
            return None
        if (
            endpoint.kind is EndpointKind.READ
            and endpoint.can_block
            and request.query.get("index", "0") not in ("", "0")
        ):
            gate = self._gates[RequestClass.QUERY]
            gate.enter(self._server.meter.now_s())
            return QueryPass(gate)
        gate = self._gate_by_endpoint.get(endpoint.name) or self._find_gate(endpoint, request)
        gate.enter(self._server.meter.now_s())
        return gate

    def hold_body(self, request: Request) -> HeldMemory:
        """Return the count of a request's body. Call its `release` when the request has its reply."""
        name, request_class = request.endpoint.name, RequestClass.WRITE
        if name in NODE_ENDPOINTS or name in CLASS_BY_ENDPOINT:
            known = CLASS_BY_ENDPOINT.get(name) or self._classify_node_request(name, request)
            request_class = known if known in self._body_memory else RequestClass.NODE
        return HeldMemory(self._body_memory[request_class])

    def _find_gate(self, endpoint: Endpoint, request: Request) -> AdmissionGate:
        """Return the gate of the request. Gates that depend on the endpoint alone are stored for the next request."""
        name = endpoint.name
        if name in NODE_ENDPOINTS:
            return self._gates[self._classify_node_request(name, request)]
        if name == SERVER_ENDPOINT:
            presented = request.headers.get(SERVER_SECRET_HEADER, b"")
            is_server = bool(self._server_secret) and compare_digest(presented, self._server_secret)
            return self._gates[RequestClass.SERVER if is_server else RequestClass.LOCAL]
        request_class = CLASS_BY_ENDPOINT.get(name)
        if request_class is None:
            is_local = endpoint.kind is EndpointKind.LOCAL
            is_read = endpoint.kind is EndpointKind.READ
            request_class = RequestClass.LOCAL if is_local else RequestClass.READ if is_read else RequestClass.WRITE
        return self._gate_by_endpoint.setdefault(name, self._gates[request_class])

    def _classify_node_request(self, endpoint_name: str, request: Request) -> RequestClass:
        """Return the class of a request of a node agent, which follows from what its sender has proved."""
        proof = classify_node_proof(self._server, request)
        if proof is NodeProof.UNPROVED:
            return RequestClass.UNPROVED_NODE
        if endpoint_name == REGISTER_ENDPOINT:
            return RequestClass.NEW_NODE
        return RequestClass.HEARTBEAT if endpoint_name == HEARTBEAT_ENDPOINT else RequestClass.NODE


class LargeHeadPacer:
    """ASGI middleware: of the requests with large heads, one begins in each iteration of the event loop.

    Reading the parameters of a query takes some milliseconds of CPU time in the worst case, and is done before the caller
    and its rights are known. The slots are its own: callers without a token must not delay the large replies of others.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._slots = LoopSlots()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and _measure_head_bytes(scope) > MAX_SMALL_HEAD_BYTES:
            await self._slots.begin()
        await self._app(scope, receive, send)


def _measure_head_bytes(scope: Scope) -> int:
    """Return how long the target and the values of the headers are together."""
    return len(scope["query_string"]) + len(scope["path"]) + sum([len(value) for _, value in scope["headers"]])
