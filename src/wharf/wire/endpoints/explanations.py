"""Endpoints that tell why work is where it is, or nowhere."""

from typing import Final

from wharf.model import need
from wharf.model.explanation import AllocationExplanation, EvaluationExplanation, Explanation
from wharf.wire.endpoints.endpoint import JOB_ID, Decides, Endpoint, reads

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "job.explain", f"/v1/job/{JOB_ID}/explain", need=need.READ_JOB,
        summary="Tell why a job's work is where it is, or nowhere.", returns=Explanation,
    ),
    reads(
        "evaluation.explain", "/v1/evaluation/{eval_id}/explain", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Tell why a job was looked at, what came of it, and what it waits for.", returns=EvaluationExplanation,
    ),
    reads(
        "allocation.explain", "/v1/allocation/{alloc_id}/explain", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Tell why an allocation is where it is, what it waits for, and what led to it.",
        returns=AllocationExplanation,
    ),
)  # fmt: skip
