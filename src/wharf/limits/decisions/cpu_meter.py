"""The meter for the CPU time of requests: how much work to charge, and when.

Work that was charged while a request ran is an estimate. The CPU time that the service reports replaces it (record 0219).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from wharf.limits.core.decision import LimitDecision
from wharf.limits.core.plans import Charge
from wharf.limits.core.rule import Interface, Rule
from wharf.limits.decisions.requests import AdmittedRequest

MIN_CHARGE_MS: Final = 10
"""Smaller amounts of work are added up for each owner until they reach this size, which saves calls of the store."""
MIN_SLICE_MS: Final = 5_000
"""Work of a running request is charged in parts of at least this size."""
MAX_SLICES: Final = 1_000
"""Parts of one request that are remembered, 83 minutes of work; limits memory. Older ones are not taken back."""
MAX_OWNERS: Final = 65_536
"""Owners with work that is not charged yet; limits memory."""


class CpuMeter:
    """Computes how much work to charge as CPU time, and stores amounts that are too small to be charged yet, by owner.

    An amount below 0 is work that was charged too much: `plan_take_back` says from which limits it is taken back.
    """

    def __init__(self) -> None:
        # Work that is not charged yet, by owner: of GraphQL requests, and of all others.
        self._owed_ms: dict[str, float] = {}
        self._owed_graphql_ms: dict[str, float] = {}

    def take_due_ms(self, request: AdmittedRequest, decision: LimitDecision, now_s: float) -> int:
        """Return how many milliseconds of work to charge now for a request that has ended; 0 if too few.

        The amount includes what its owner owes for earlier requests. A remainder is stored for the next request.
        """
        meters = decision.plan.meter_charges
        if not meters:
            return 0
        work_ms: float | None = request.measured_ms
        if work_ms is None:
            work_ms = request.work_s * 1_000 if request.working_since_s is None else request.compute_work_ms(now_s)
        owed = self._owed_graphql_ms if decision.plan.interface is Interface.GRAPHQL else self._owed_ms
        owner = meters[0].owner
        total_ms = owed.get(owner, 0.0) + work_ms - request.charged_ms
        if -MIN_CHARGE_MS < total_ms < MIN_CHARGE_MS:
            if len(owed) >= MAX_OWNERS:
                owed.clear()
            owed[owner] = total_ms
            return 0
        whole_ms = int(total_ms)
        owed[owner] = total_ms - whole_ms
        return whole_ms

    def take_slice_ms(self, request: AdmittedRequest, now_s: float, now_ms: int) -> int:
        """Return how many milliseconds of work to charge now for a running request, and record them as charged.

        Return 0 if fewer than `MIN_SLICE_MS` are due. The amount is below 0 if the service has reported less than was charged.
        """
        decision = request.decision
        if decision is None or not decision.plan.meter_charges:
            return 0
        work_ms = request.compute_work_ms(now_s) if request.measured_ms is None else request.measured_ms
        slice_ms = int(work_ms) - request.charged_ms
        if 0 <= slice_ms < MIN_SLICE_MS:
            return 0
        request.charged_ms += slice_ms
        if slice_ms > 0:
            slices = request.slices = request.slices or []
            slices.append((now_ms, slice_ms))
            del slices[:-MAX_SLICES]
        return slice_ms


def plan_take_back(request: AdmittedRequest, amount_ms: int, now_ms: int) -> Iterator[tuple[list[Charge], int]]:
    """Yield limits on CPU time, each group with the amount to take back from it because too much work was charged.

    A limit gives back only what it still counts of the request: the rest of its count belongs to other requests.
    """
    decision = request.decision
    if decision is None:
        return
    groups: dict[int, list[Charge]] = {}
    for charge in decision.plan.meter_charges:
        counted_ms = min(amount_ms, _sum_counted_ms(charge.rule, request.slices or (), now_ms))
        if counted_ms:
            groups.setdefault(counted_ms, []).append(charge)
    for counted_ms, charges in groups.items():
        yield charges, counted_ms


def _sum_counted_ms(rule: Rule, slices: Iterable[tuple[int, int]], now_ms: int) -> int:
    """Return how much of what was charged at these times a meter still counts: each from the begin of its slice of time."""
    width_ms = -(-rule.window_ms // rule.slices)
    return sum(amount_ms for at_ms, amount_ms in slices if at_ms - at_ms % width_ms + width_ms * rule.slices > now_ms)
