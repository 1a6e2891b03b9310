"""Endpoints of evaluations."""

from typing import Final

from wharf.model import need
from wharf.model.allocation import AllocationStub
from wharf.model.evaluation import Evaluation
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, asks, reads, text
from wharf.wire.work_shapes import EvaluationCount, EvaluationDeleteRequest, EvaluationDeleteResponse

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "evaluation.list", "/v1/evaluations", need=need.READ_JOB, summary="List evaluations.",
        lists=Lists(record=Evaluation, filtering=("status", "job")), returns=list[Evaluation],
        parameters=(
            text("status", "Only those of this status. Not beside a filter."),
            text("job", "Only those of the job with this id. Not beside a filter."),
        ),
    ),
    asks(
        "evaluation.delete", "/v1/evaluations", method="DELETE", need=need.DELETE_EVALUATIONS,
        summary="Delete evaluations that are no longer needed, while the broker is paused.",
        body=EvaluationDeleteRequest, returns=EvaluationDeleteResponse,
    ),
    reads(
        "evaluation.count", "/v1/evaluations/count", need=need.READ_JOB, summary="Count evaluations.",
        lists=Lists(record=Evaluation, reverses=False, pages=False), returns=EvaluationCount,
    ),
    reads(
        "evaluation.read", "/v1/evaluation/{eval_id}", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read an evaluation.", returns=Evaluation,
        parameters=(text("related", "`true`: also tell of those that it stands in a chain with."),),
    ),
    reads(
        "evaluation.allocations", "/v1/evaluation/{eval_id}/allocations", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="List the allocations that an evaluation placed or last changed.", returns=list[AllocationStub],
    ),
)  # fmt: skip
