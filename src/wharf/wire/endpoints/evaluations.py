"""Endpoints of evaluations."""

from typing import Final

from wharf.model import need
from wharf.model.evaluation import Evaluation
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, reads

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "evaluation.list", "/v1/evaluations", need=need.READ_JOB, summary="List evaluations.",
        lists=Lists(record=Evaluation), returns=list[Evaluation],
    ),
    reads(
        "evaluation.read", "/v1/evaluation/{eval_id}", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read an evaluation.", returns=Evaluation,
    ),
)  # fmt: skip
