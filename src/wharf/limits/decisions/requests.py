"""Incoming requests with their ids, admitted requests, and local replies.

The work of a request is the time from when it is forwarded to the service until the first byte of the reply, without the
time spent waiting for the caller. Time on an open stream is not work. The gateway and the middleware report when work starts,
pauses and ends.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.limits.core.callers.acceptance import CredentialProof
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.responses import Headers
from wharf.limits.core.rule import ConnectionClass


class IncomingRequest(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The parts of a request that a decision needs."""

    method: str
    path: str
    """The path in normal form (`core.paths`), without the query: the path that the service receives."""
    query: str
    peer: str
    """The address of the other end of the socket."""
    authorization: str | None = None
    """The value of the `Authorization` header."""
    is_conditional: bool = False
    """Whether the request has `If-None-Match` or `If-Modified-Since`."""
    connection: ConnectionClass = ConnectionClass.PLAIN
    forwarded_for: tuple[str, ...] = ()
    """The lines of the `X-Forwarded-For` header."""
    forwarded: tuple[str, ...] = ()
    """The lines of the `Forwarded` header."""
    has_origin: bool = False
    """Whether the request has an `Origin` header: a browser sends it for a page of another origin."""
    carried: tuple[tuple[str, str], ...] = ()
    """The configured headers and cookies that carry credentials, each as carrier and value."""
    host: str = ""
    """The `Host` header; empty if it is missing."""
    is_tls: bool = False
    """Whether the caller's connection uses TLS."""
    method_overrides: tuple[str, ...] = ()
    """The values of the headers that name another method."""
    has_form: bool = False
    """Whether the body may be a form, which can name another method."""
    has_json: bool = False
    """Whether the body may be JSON, which can name another method."""
    is_body_coded: bool = False
    """Whether the body is compressed or not in UTF-8, as its headers say: a service then reads other content than the limiter."""


class LocalReply(msgspec.Struct, frozen=True, gc=False):
    """A reply that does not come from the service: a refusal, an error, or one of the limiter's pages."""

    status: int
    headers: Headers
    body: bytes
    is_refusal: bool = False
    """Whether a limit or a wrong credential is the reason for this reply."""


class AdmittedRequest(msgspec.Struct, eq=False, gc=False):
    """An admitted request, from its decision to its last byte.

    `on_long_running` usually refers to an object that refers to this one. `end_request` sets it to `None`, which breaks
    the reference cycle, so that the garbage collector has nothing to do.
    """

    id: str
    decision: LimitDecision | None
    """`None` if the request was admitted without an evaluation: limits are off, or a machine of the cluster sent it."""
    caller: Caller
    is_conditional: bool
    started_s: float
    """When it was admitted, by the monotonic clock."""
    working_since_s: float | None
    """When the service last started to work, by the monotonic clock; `None` while it does not work."""
    is_timed: bool = True
    """Whether elapsed time can count as work: until the reply begins, and never for requests of the class `waiting`."""
    method: str = ""
    """The method by which it was judged; several joined ones if the service may serve it as any of them."""
    path: str = ""
    """The path as it was sent, without the query."""
    sent_method: str = ""
    """The method of its request line. With the path, it names the action that the reply may mark."""
    work_s: float = 0.0
    """The work before `working_since_s`."""
    charged_ms: int = 0
    """The work that was charged while the request ran."""
    slices: list[tuple[int, int]] | None = None
    """The parts of it, each as the time when it was charged, in Unix milliseconds, and the amount; `None` without one."""
    measured_ms: int | None = None
    """The work as the service measured it, if it did."""
    proof: CredentialProof | None = None
    """What the reply can prove about an unlisted credential; `None` for all other requests."""
    is_ended: bool = False
    on_long_running: Callable[[], None] | None = None
    """Called once when the request has run for a second."""

    @property
    def reports_limits(self) -> bool:
        """Whether the limiter's headers replace those of the service: not if limits are off or in shadow mode."""
        return self.decision is not None and self.decision.reports_bucket

    def pause_work(self, now_s: float) -> None:
        """Stop measuring work: the service waits for the caller, or has not received the request yet."""
        if self.working_since_s is not None:
            self.work_s += now_s - self.working_since_s
            self.working_since_s = None

    def resume_work(self, now_s: float) -> None:
        """Measure work again: the service works on the request. After the reply has begun, this does nothing."""
        if self.working_since_s is None and self.is_timed:
            self.working_since_s = now_s

    def finish_work(self, now_s: float) -> None:
        """Stop measuring work for good: the first byte of the reply was received, or the connection is a tunnel."""
        self.pause_work(now_s)
        self.is_timed = False

    def compute_work_ms(self, now_s: float) -> float:
        """Return how long the service has worked on the request until now, in milliseconds."""
        running_s = 0.0 if self.working_since_s is None else now_s - self.working_since_s
        return (self.work_s + running_s) * 1_000


class RequestIds:
    """Makes the request ids of one process. `prefix` is random and identifies the process."""

    def __init__(self, random_bytes: bytes) -> None:
        """Nine bytes make the prefix."""
        digits = random_bytes.hex().upper()
        self.prefix: Final = f"{digits[:4]}:{digits[4:10]}:{digits[10:]}"
        self._number = 0
        self._second = 0
        self._suffix = ""

    def make(self, now_ms: int) -> str:
        """Return a new request id: five groups of hexadecimal digits, as existing clients expect.

        The first three identify this process, the fourth is a number, and the last is the Unix time in seconds.
        """
        self._number += 1
        second = now_ms // 1_000
        if second != self._second:
            self._second, self._suffix = second, f"{second:X}"
        return f"{self.prefix}:{self._number:04X}:{self._suffix}"
