"""Dispatch a parameterized job: create a child with a payload and meta values."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, DecisionContext, WriteBuilder
from wharf.cluster.operations.jobs.children import ChildJobResult, make_child_job, store_child_job
from wharf.cluster.operations.jobs.registration import check_registration_enabled
from wharf.cluster.operations.jobs.run_queue import admit_run
from wharf.cluster.operations.jobs.versions import get_initial_status
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import DISPATCHES_BY_TOKEN, JOBS
from wharf.contract.model.body_limits import cut_echo, find_name_problem
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.defaults import MAX_JOB_PRIORITY, JobSettings
from wharf.contract.model.jobs.job import Job, Parameterized, PayloadRequirement
from wharf.contract.model.refusal import RefusalReason, invalid_request, not_found
from wharf.contract.model.times import SECOND

_WRONG_INPUT: Final = RefusalReason.DISPATCH_INPUT
MAX_PAYLOAD_BYTES: Final = 16 * 1024
"""Limits the size of a job record, which every server keeps in memory."""


MAX_ID_PREFIX_BYTES: Final = 256
"""Limits the length of job ids."""


RANDOM_ID_DIGITS: Final = 8
"""Hexadecimal digits that make the ids of children dispatched in the same second unique."""


class DispatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to dispatch a parameterized job, which creates a child job."""

    namespace: str
    job_id: str  # The parameterized job.
    payload: bytes = b""  # Data for the tasks of the child.
    meta: dict[str, str] = {}  # Names and values for the child, in addition to those of the parent.
    id_prefix: str = ""  # A text that becomes part of the child's id.
    priority: int = 0  # The priority of the child; 0: that of the parent.
    idempotency_token: str = ""  # A repeated request with the same token returns the existing child.
    accessor_id: str = ""  # The accessor id of the caller's ACL token.
    is_management: bool = True  # The caller may dispatch jobs even while registration is disabled.
    cause: str = ""  # The origin of the request, for the log.


def dispatch_job(
    snapshot: Replica, request: DispatchRequest, context: DecisionContext, settings: JobSettings
) -> Decision[ChildJobResult]:
    """Return the decision that creates a child of the parameterized job with the payload and meta of the request.

    A repeated idempotency token returns the existing child and writes nothing. Raises if the parent does not exist, is
    not parameterized or is stopped, if the request is invalid, or if the flow has `Overlap` skip and a run has not ended.
    """
    check_registration_enabled(snapshot, is_management=request.is_management)
    parent = snapshot.get(JOBS, request.namespace, request.job_id)
    if parent is None:
        raise not_found("parameterized job not found")
    template = parent.parameterized_job
    if template is None or not parent.is_parameterized:
        raise invalid_request(f'Specified job "{parent.id}" is not a parameterized job')
    if parent.stop:
        raise invalid_request(f'Specified job "{parent.id}" is stopped')
    _check_payload(request.payload, template)
    _check_meta(request.meta, template)
    _check_priority(request.priority, settings)
    _check_prefix(request.id_prefix)
    if problem := find_name_problem(request.idempotency_token):
        raise invalid_request(f"the idempotency token {problem}")
    stored_child = _find_dispatched_child(snapshot, parent, request.idempotency_token)
    if stored_child is not None:
        return Decision(
            None, lambda _index: ChildJobResult(stored_child.modify_index, stored_child.id, stored_child.create_index)
        )
    prefix = f"{request.id_prefix}-" if request.id_prefix else ""
    digits = context.new_id().replace("-", "")[:RANDOM_ID_DIGITS]
    child = replace(
        make_child_job(parent, f"{parent.id}/dispatch-{prefix}{context.now_ns // SECOND}-{digits}", context, settings),
        dispatched=True,
        dispatch_idempotency_token=request.idempotency_token,
        payload=request.payload or None,
        meta={**(parent.meta or {}), **request.meta} or None,
        priority=request.priority or parent.priority,
        submitter_accessor_id=request.accessor_id,
    )
    child = replace(child, status=get_initial_status(child))
    builder = WriteBuilder(snapshot)
    admit_run(builder, parent, child.id, context)
    return store_child_job(
        builder,
        parent,
        child,
        EvaluationTrigger.JOB_REGISTER,
        context,
        write_kind="job-dispatched",
        cause=request.cause,
    )


def _find_dispatched_child(snapshot: Replica, parent: Job, token: str) -> Job | None:
    """Return the child of the parent job that was dispatched with this idempotency token, or `None`."""
    if not token:
        return None
    return next(iter(snapshot.list_by_index_sorted(DISPATCHES_BY_TOKEN, parent.namespace, parent.id, token)), None)


def _check_payload(payload: bytes, template: Parameterized) -> None:
    """Raise if the payload is too large, is missing although the parent requires it, or is forbidden."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise invalid_request(f"Payload exceeds maximum size; {len(payload)} > {MAX_PAYLOAD_BYTES}")
    if not payload and template.payload == PayloadRequirement.REQUIRED:
        raise invalid_request("Payload is not provided but required by parameterized job", _WRONG_INPUT)
    if payload and template.payload == PayloadRequirement.FORBIDDEN:
        raise invalid_request("Payload provided but forbidden by parameterized job", _WRONG_INPUT)


def _check_meta(meta: Mapping[str, str], template: Parameterized) -> None:
    """Raise if a meta key is not allowed by the parameterized job, or if a required one is missing."""
    required = set(template.meta_required or ())
    unpermitted = sorted(meta.keys() - required - set(template.meta_optional or ()))
    if unpermitted:
        keys = cut_echo(" ".join(unpermitted))
        raise invalid_request(f"Dispatch request included unpermitted metadata keys: [{keys}]", _WRONG_INPUT)
    missing = sorted(required - meta.keys())
    if missing:
        raise invalid_request(
            f"Dispatch did not provide required meta keys: [{cut_echo(' '.join(missing))}]", _WRONG_INPUT
        )


def _check_priority(priority: int, settings: JobSettings) -> None:
    """Raise unless the priority is 0 (that of the parent) or between 1 and the configured maximum."""
    max_priority = min(settings.max_priority, MAX_JOB_PRIORITY)
    if priority and not 1 <= priority <= max_priority:
        raise invalid_request(f"dispatch job priority must be between [1, {max_priority}]")


def _check_prefix(prefix: str) -> None:
    """Raise unless the text, which the caller wants in the child's id, is short and has no space or null character."""
    if " " in prefix or "\x00" in prefix:
        raise invalid_request("IdPrefixTemplate contains a space or a null character, which no ID of a job may hold")
    if len(prefix.encode()) > MAX_ID_PREFIX_BYTES:
        raise invalid_request(f"IdPrefixTemplate must be at most {MAX_ID_PREFIX_BYTES} bytes long")
    if problem := find_name_problem(prefix):
        raise invalid_request(f"IdPrefixTemplate {problem}")
