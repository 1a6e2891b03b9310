"""What happens to evaluations beside being processed."""

from collections.abc import Sequence

from msgspec.structs import replace

from wharf.model.changes import Cause, CauseKind, Write
from wharf.model.evaluation import Evaluation, EvaluationStatus
from wharf.model.moment import Moment
from wharf.state import Replica
from wharf.state.tables import EVALUATIONS


def unblock(snapshot: Replica, blocked: Sequence[Evaluation], moment: Moment) -> Write:
    """Room came free: these are tried again, under their own ids."""
    pending = [replace(each, status=EvaluationStatus.PENDING, modify_time=moment.now_ns) for each in blocked]
    return Write(
        "evaluations-unblocked",
        Cause(CauseKind.TIMER, "unblock"),
        [EVALUATIONS.put(evaluation) for evaluation in pending],
        [snapshot.unchanged(EVALUATIONS, evaluation) for evaluation in blocked],
    )
