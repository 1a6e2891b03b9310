"""Endpoints and messages of evaluations, and the endpoints that explain jobs, evaluations and allocations."""

from typing import Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.explanations import AllocationExplanation, EvaluationExplanation, JobExplanation
from wharf.contract.model.record import Record
from wharf.contract.model.waiting_queue import JobQueue, QueueReasons
from wharf.contract.wire.endpoint import (
    JOB_ID_PARAMETER,
    Endpoint,
    ListFeatures,
    ScopeSource,
    define_leader_write,
    define_read,
    integer,
    text,
)


class EvaluationDeleteRequest(Record):
    """A request to delete evaluations, either by ID or by filter.

    With `eval_ids`, all are deleted or none. With `filter`, matching evaluations that are still needed are retained.
    """

    eval_ids: tuple[str, ...] | None = msgspec.field(name="EvalIDs", default=None)
    filter: str = ""  # A filter expression, such as `Status == "complete"`.


class EvaluationDeleteResponse(Record):
    """The reply to a deletion of evaluations."""

    count: int = 0  # How many evaluations were deleted.
    index: int = 0  # Log index of the deletion.


class EvaluationCount(Record):
    """The number of evaluations that match a request."""

    count: int = 0  # The number of evaluations.
    index: int = 0  # Log index of the last change of an evaluation.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = False  # Whether the cluster has a leader.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


MAX_QUEUE_ENTRIES: Final = 500
"""The largest number of waiting jobs in a reply. Limits its size: an entry has the reasons of each group."""
DEFAULT_QUEUE_ENTRIES: Final = 100

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "evaluation.queue", "/v1/queue", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="List the jobs that wait for capacity, in the order in which they are retried.", reply_type=JobQueue,
        parameters=(
            integer("place", "The first place in the order to return; 1 by default."),
            integer("limit", f"How many places to return: {DEFAULT_QUEUE_ENTRIES} by default, at most {MAX_QUEUE_ENTRIES}."),
        ),
    ),
    define_read(
        "evaluation.queue_reasons", "/v1/queue/reasons", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Count the jobs that wait for capacity by their reasons.", reply_type=QueueReasons,
    ),
    define_read(
        "evaluation.list", "/v1/evaluations", need=permissions.READ_JOB, summary="List evaluations.",
        list_features=ListFeatures(
            record=Evaluation, filtering_parameters=("status", "job"), nomad_filtering_parameters=("status", "job")
        ),
        reply_type=list[Evaluation],
        parameters=(
            text("status", "Only evaluations with this status. Cannot be combined with a filter."),
            text("job", "Only evaluations of the job with this ID. Cannot be combined with a filter."),
        ),
    ),
    define_leader_write(
        "evaluation.delete", "/v1/evaluations", method="DELETE", need=permissions.DELETE_EVALUATIONS,
        summary="Delete evaluations that are no longer needed, while the broker is paused.",
        body_type=EvaluationDeleteRequest, reply_type=EvaluationDeleteResponse,
    ),
    define_read(
        "evaluation.count", "/v1/evaluations/count", need=permissions.READ_JOB, summary="Count evaluations.",
        list_features=ListFeatures(record=Evaluation, can_reverse=False, has_pages=False), reply_type=EvaluationCount,
    ),
    define_read(
        "evaluation.read", "/v1/evaluation/{eval_id}", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read an evaluation.", reply_type=Evaluation,
        parameters=(text("related", "`true`: also return the evaluations in its chain of previous, next and blocked evaluations."),),
    ),
    define_read(
        "evaluation.allocations", "/v1/evaluation/{eval_id}/allocations", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="List the allocations that an evaluation placed or last changed.", reply_type=list[AllocationStub],
    ),
)  # fmt: skip


EXPLANATION_ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "job.explain", f"/v1/job/{JOB_ID_PARAMETER}/explain", need=permissions.READ_JOB,
        summary="Explain the placement and the current state of a job.", reply_type=JobExplanation,
    ),
    define_read(
        "evaluation.explain", "/v1/evaluation/{eval_id}/explain", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Explain why an evaluation was created, its outcome, and what it waits for.", reply_type=EvaluationExplanation,
    ),
    define_read(
        "allocation.explain", "/v1/allocation/{alloc_id}/explain", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Explain why an allocation is on its node, what it waits for, and what led to it.",
        reply_type=AllocationExplanation,
    ),
)  # fmt: skip
