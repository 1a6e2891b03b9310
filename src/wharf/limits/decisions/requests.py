"""What a request shows when it arrives, and what is answered when the service is not asked.

One admitted request, from its decision to its last byte: what it is told, what its work costs, when its slot is free.

Its work is the time that passes less the time spent waiting for the caller. Whoever carries the request says when that is.

The CPU time of requests: small amounts are kept by owner until they are worth a charge, so that none is lost.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.responses import Headers
from wharf.limits.core.rule import ConnectionClass, Interface


class IncomingRequest(msgspec.Struct, frozen=True, eq=False, gc=False):
    method: str
    path: str
    """Without its query, as it was sent."""
    query: str
    peer: str
    """The address of the socket."""
    authorization: str | None = None
    is_conditional: bool = False
    """Whether it asks for what changed only."""
    connection: ConnectionClass = ConnectionClass.PLAIN
    forwarded_for: tuple[str, ...] = ()
    forwarded: tuple[str, ...] = ()
    has_origin: bool = False
    """Whether a page of another origin asks, in a browser."""


class LocalReply(msgspec.Struct, frozen=True, gc=False):
    """An answer that is not the service's: a refusal, a wrong credential, a page of ours."""

    status: int
    headers: Headers
    body: bytes
    is_refusal: bool = False
    """Whether a limit or a wrong credential answers, and not a page."""


class AdmittedRequest(msgspec.Struct, eq=False, gc=False):
    # Whoever sets `on_long` makes a circle; it is broken at the end, so that there is nothing to collect.
    id: str
    decision: LimitDecision | None
    """None while limits are off."""
    caller: Caller
    is_conditional: bool
    started_s: float
    working_since_s: float | None
    """Since when the service works; None while the caller is waited for."""
    work_s: float = 0.0
    """What it worked before that."""
    charged_ms: int = 0
    """What was charged of its work while it ran."""
    measured_ms: int | None = None
    """Its work, if the service says."""
    is_ended: bool = False
    on_long_running: Callable[[], None] | None = None
    """Called once when the request has run for a second."""

    def pause_work(self, now_s: float) -> None:
        """The caller is waited for from now on."""
        if self.working_since_s is not None:
            self.work_s += now_s - self.working_since_s
            self.working_since_s = None

    def resume_work(self, now_s: float) -> None:
        """The service works from now on."""
        if self.working_since_s is None:
            self.working_since_s = now_s

    def compute_work_ms(self, now_s: float) -> float:
        running_s = 0.0 if self.working_since_s is None else now_s - self.working_since_s
        return (self.work_s + running_s) * 1_000


MIN_CHARGE_MS: Final = 10
MIN_SLICE_MS: Final = 5_000
MAX_OWNERS: Final = 65_536


class CpuMeter:
    def __init__(self) -> None:
        self._owed_ms: dict[str, float] = {}
        self._owed_graphql_ms: dict[str, float] = {}

    def take_due_ms(self, passage: AdmittedRequest, decision: LimitDecision, now_s: float) -> int:
        """What of the work of a request that ended is to be charged now."""
        meters = decision.plan.meter_charges
        if not meters:
            return 0
        work_ms: float | None = passage.measured_ms
        if work_ms is None:
            work_ms = passage.work_s * 1_000 if passage.working_since_s is None else passage.compute_work_ms(now_s)
        owed = self._owed_graphql_ms if decision.plan.interface is Interface.GRAPHQL else self._owed_ms
        owner = meters[0].owner
        total_ms = owed.get(owner, 0.0) + work_ms - passage.charged_ms
        if total_ms < MIN_CHARGE_MS:
            if len(owed) >= MAX_OWNERS:
                owed.clear()
            owed[owner] = total_ms
            return 0
        whole_ms = int(total_ms)
        owed[owner] = total_ms - whole_ms
        return whole_ms

    def take_slice_ms(self, passage: AdmittedRequest, now_s: float) -> int:
        """What of the work of a request that runs on is to be charged now."""
        decision = passage.decision
        if decision is None or not decision.plan.meter_charges or passage.measured_ms is not None:
            return 0
        slice_ms = int(passage.compute_work_ms(now_s)) - passage.charged_ms
        if slice_ms < MIN_SLICE_MS:
            return 0
        passage.charged_ms += slice_ms
        return slice_ms
