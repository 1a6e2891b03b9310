"""The CPU time of requests: small amounts are kept by owner until they are worth a charge, so that none is lost."""

from typing import Final

from wharf.limits.core.decision import Decision
from wharf.limits.core.rule import Interface
from wharf.limits.desk.passage import Passage

SPENT_LEAST_MS: Final = 10
SLICE_MS: Final = 5_000
OWNERS_REMEMBERED: Final = 65_536


class Work:
    def __init__(self) -> None:
        self._owed_ms: dict[str, float] = {}
        self._owed_graphql_ms: dict[str, float] = {}

    def due_ms(self, passage: Passage, decision: Decision, now_s: float) -> int:
        """What of the work of a request that ended is to be charged now."""
        meters = decision.plan.meters
        if not meters:
            return 0
        work_ms: float | None = passage.measured_ms
        if work_ms is None:
            work_ms = passage.work_s * 1_000 if passage.since_s is None else passage.worked_ms(now_s)
        owed = self._owed_graphql_ms if decision.plan.interface is Interface.GRAPHQL else self._owed_ms
        owner = meters[0].owner
        total_ms = owed.get(owner, 0.0) + work_ms - passage.charged_ms
        if total_ms < SPENT_LEAST_MS:
            if len(owed) >= OWNERS_REMEMBERED:
                owed.clear()
            owed[owner] = total_ms
            return 0
        whole_ms = int(total_ms)
        owed[owner] = total_ms - whole_ms
        return whole_ms

    def slice_ms(self, passage: Passage, now_s: float) -> int:
        """What of the work of a request that runs on is to be charged now."""
        decision = passage.decision
        if decision is None or not decision.plan.meters or passage.measured_ms is not None:
            return 0
        slice_ms = int(passage.worked_ms(now_s)) - passage.charged_ms
        if slice_ms < SLICE_MS:
            return 0
        passage.charged_ms += slice_ms
        return slice_ms
