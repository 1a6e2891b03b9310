"""Endpoints of flows and their runs. A run is a job with steps; a flow is a periodic or parameterized job that makes runs."""

import datetime
from enum import StrEnum
from typing import Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.run_views import FlowStub, RunStub, RunView
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import (
    JOB_ID_PARAMETER,
    Endpoint,
    ListFeatures,
    define_leader_write,
    define_read,
    text,
)

JOB_PATH: Final = f"/v1/job/{JOB_ID_PARAMETER}"
DEFAULT_BACKFILLED_RUNS: Final = 50
"""How many runs a backfill creates at most if the request does not say."""
FLOW_LIST: Final = ListFeatures(record=Job)


class RunSort(StrEnum):
    """The order of a list of runs."""

    NEWEST = "newest"  # The run that began last is the first. A retry does not change when a run began.
    CHANGED = "changed"  # The run is the first that was submitted, or of which a step began or ended, last.


class RunState(StrEnum):
    """Which runs a list has: those with a `RunStatus`, or one of two further words."""

    GATED = "gated"  # A step waits for the approval of a person.
    ACTIVE = "active"  # It has not ended.
    WAITING = "waiting"
    RUNNING = "running"
    CANCELING = "canceling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    SKIPPED = "skipped"


class RunCancelRequest(Record):
    """A request to cancel a run. A second one stops its final steps too."""

    text: str = ""  # Why, in the words of the caller.
    at_once: bool = False  # Stop the final steps too.


class RunChangeResponse(Record):
    """The reply to a change of a run."""

    eval_id: str = ""  # The evaluation that the request created; empty if none.
    eval_create_index: int = 0
    is_stopped: bool = False  # The whole job was stopped, with its final steps.
    index: int = 0  # Log index of the write.


class AnswerKind(StrEnum):
    """The answer to the question of a gate."""

    APPROVE = "approve"
    REJECT = "reject"


class GateAnswerRequest(Record):
    """The answer of a person to the gate of a step."""

    step: str = ""
    answer: str = ""  # A `AnswerKind`.
    text: str = ""  # What the person says about it.


class RunRetryRequest(Record):
    """A request to run steps of a run again."""

    steps: tuple[str, ...] = ()
    """These steps and all that follow them; empty: those that failed or were canceled, and all that follow them."""
    plan: bool = False  # Only return what would run again.


class RetriedStepView(Record):
    """A step that runs again."""

    name: str
    reason: str = ""
    element_count: int = 0  # How many of its elements run.
    size: int = 0  # How many elements it has.


class KeptStepView(Record):
    """A step that does not run again."""

    name: str
    reason: str = ""
    outcome: str = ""


class RunRetryResponse(Record):
    """The reply to a retry: what runs again and what is kept, in the order of the file."""

    steps: tuple[RetriedStepView, ...] = ()
    kept_steps: tuple[KeptStepView, ...] = ()
    attempt: int = 0  # The number of the new attempt; 0: a plan, or no step has to run again.
    eval_id: str = ""
    eval_create_index: int = 0
    job_modify_index: int = 0
    index: int = 0  # Log index of the write.


class FlowBackfillRequest(Record):
    """A request for the runs of past slots of the schedule of a flow."""

    begin: datetime.datetime | None = msgspec.field(
        default=None, name="From"
    )  # The first slot is at or after this time.
    end: datetime.datetime | None = msgspec.field(default=None, name="To")  # The last slot is before this time.
    max: int = 0  # How many runs are created at most; 0: 50.
    plan: bool = False  # Only return the slots, without creating a run.


class BackfilledSlot(Record):
    """A slot of a schedule, and its run."""

    time: datetime.datetime
    job_id: str
    exists: bool = False  # The run existed before the request.


class FlowBackfillResponse(Record):
    """The reply to a backfill."""

    slots: tuple[BackfilledSlot, ...] = ()  # Oldest first.
    created: int = 0  # Runs that the request created; those that it would create if it is a plan.
    index: int = 0  # Log index of the last write; 0: none was needed.


ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "flow.list", "/v1/flows", need=permissions.READ_JOB,
        summary="List flows: periodic and parameterized jobs whose launches are runs.",
        list_features=FLOW_LIST, reply_type=list[FlowStub],
    ),
    define_read(
        "flow.runs", "/v1/runs", need=permissions.READ_JOB, summary="List runs: jobs with steps.",
        list_features=ListFeatures(record=Job, filtering_parameters=("flow",)), reply_type=list[RunStub],
        parameters=(
            text("flow", "Only runs of the flow with this ID."),
            text("state", f"Only runs in this state: {', '.join(RunState)}. It may be combined with a filter."),
            text("sort", "`newest`: the run that began last first; `changed`: the run that changed last first. Without it: by namespace and ID."),
        ),
    ),
    define_read(
        "flow.run", f"{JOB_PATH}/run", need=permissions.READ_JOB,
        summary="Show the steps of a run: their layers and states, what each waits for or ended with, and the critical path.",
        reply_type=RunView,
    ),
    define_leader_write(
        "flow.cancel", f"{JOB_PATH}/cancel", need=permissions.STOP_JOB,
        summary="Cancel a run: its tasks stop, waiting steps end, and final steps run.",
        body_type=RunCancelRequest, is_body_optional=True, reply_type=RunChangeResponse,
    ),
    define_leader_write(
        "flow.answer", f"{JOB_PATH}/answer", need=permissions.READ_JOB,
        summary="Approve or reject the gate of a step. The gate names the policy that the caller needs; without one, it is the permission to submit jobs.",
        body_type=GateAnswerRequest, reply_type=RunChangeResponse,
    ),
    define_leader_write(
        "flow.retry", f"{JOB_PATH}/retry", need=permissions.EVALUATE_JOB,
        summary="Run the failed steps of a run again, or certain ones, and all that follow them.",
        body_type=RunRetryRequest, is_body_optional=True, reply_type=RunRetryResponse,
    ),
    define_leader_write(
        "flow.backfill", f"{JOB_PATH}/backfill", need=permissions.FORCE_PERIODIC_LAUNCH,
        summary="Launch the runs of past slots of a flow's schedule, each slot once.",
        body_type=FlowBackfillRequest, reply_type=FlowBackfillResponse,
    ),
)  # fmt: skip
