"""Endpoints of allocations.

Endpoints that the node which runs a task answers: files, logs, commands, figures.
"""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.allocations.allocation import Allocation, AllocationStub
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.allocations import messages as shapes
from wharf.contract.wire.allocations.messages import AllocationStopResponse, AllocationView
from wharf.contract.wire.endpoint import (
    Endpoint,
    JoinedField,
    ListFeatures,
    ScopeSource,
    define_leader_write,
    define_local,
    define_read,
    define_write,
    duration,
    flag,
    integer,
    text,
)
from wharf.contract.wire.nodes import messages

ALLOCATION_LIST: Final = ListFeatures(
    record=Allocation,
    joins=(
        JoinedField("Job", Job | None),
        JoinedField("AllocatedResources", AllocatedResources | None),
        JoinedField("Metrics", AllocMetric | None),
        JoinedField("TaskStates", dict[str, TaskState] | None),
    ),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "allocation.list", "/v1/allocations", need=permissions.READ_JOB, summary="List allocations.",
        list_features=ALLOCATION_LIST, reply_type=list[AllocationStub],
        parameters=(
            flag("resources", "Also tell what each holds of its node."),
            flag("task_states", "Tell the states of the tasks and what happened to them; so by default."),
        ),
    ),
    define_read(
        "allocation.read", "/v1/allocation/{alloc_id}", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read an allocation, with its job as it was placed.", reply_type=AllocationView,
    ),
    define_leader_write(
        "allocation.stop", "/v1/allocation/{alloc_id}/stop", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Stop an allocation, and have another placed.", reply_type=AllocationStopResponse,
        parameters=(
            flag("no_shutdown_delay", "Pass over the delays that groups and tasks ask for."),
            flag("reschedule", "Place the next one as after a failure."),
        ),
    ),
    define_read(
        "allocation.services", "/v1/allocation/{alloc_id}/services", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="List the services that an allocation offers.", reply_type=list[ServiceRegistration],
    ),
)  # fmt: skip


ALLOCATION_PATH: Final = "/v1/client/allocation/{alloc_id}"
FILES_PATH: Final = "/v1/client/fs"

NODE_PARAMETER: Final = text("node_id", "The node that is asked.")
TASK_PARAMETER: Final = text("task", "The task that is asked about.")
HISTORY_PARAMETER: Final = duration("history", "How far back what was is told too; ten minutes at most are kept.")
PATH_PARAMETER: Final = text("path", "Where, from the root of the allocation's folder.")
ORIGIN_PARAMETER: Final = text("origin", "Whether the offset counts from the `start` or from the `end`.")
OFFSET_PARAMETER: Final = integer("offset", "How many bytes to pass over.")

NODE_ANSWERED_ROWS: Final[tuple[Endpoint, ...]] = (
    # -- of a node
    define_local(
        "client.metadata", "/v1/client/metadata", need=permissions.READ_NODE, summary="Read the metadata of a node.",
        parameters=(NODE_PARAMETER,), reply_type=messages.NodeMetaResponse,
    ),
    define_write(
        "client.metadata_apply", "/v1/client/metadata", method="POST", need=permissions.WRITE_NODE,
        summary="Change the metadata of a node while it runs.",
        parameters=(NODE_PARAMETER,), body_type=messages.NodeMetaApplyRequest, reply_type=messages.NodeMetaResponse,
    ),
    define_local(
        "client.stats", "/v1/client/stats", need=permissions.READ_NODE, summary="Read what a node measures of its machine.",
        parameters=(NODE_PARAMETER, HISTORY_PARAMETER), reply_type=shapes.Measurements,
    ),
    define_local(
        "client.gc", "/v1/client/gc", need=permissions.WRITE_NODE,
        summary="Have a node free what its finished allocations hold.", parameters=(NODE_PARAMETER,),
    ),
    define_write(
        "client.gc_now", "/v1/client/gc", is_put_only=True, need=permissions.WRITE_NODE,
        summary="Have a node free what its finished allocations hold.", parameters=(NODE_PARAMETER,),
    ),
    define_local(
        "client.identity", "/v1/client/identity", need=permissions.READ_NODE, summary="Read the claims of a node's identity.",
        parameters=(NODE_PARAMETER,), reply_type=shapes.Measurements,
    ),
    define_write(
        "client.identity_renew", "/v1/client/identity/renew", need=permissions.WRITE_NODE,
        summary="Have a node get a new identity.",
        parameters=(NODE_PARAMETER,), body_type=messages.NodeIdentityRequest, is_body_optional=True, reply_type=shapes.Measurements,
    ),
    # -- of an allocation
    define_write(
        "client.restart", f"{ALLOCATION_PATH}/restart", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Restart the tasks of an allocation where it is.",
        body_type=shapes.AllocRestartRequest, is_body_optional=True, reply_type=shapes.IndexResponse,
    ),
    define_write(
        "client.signal", f"{ALLOCATION_PATH}/signal", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Send a signal to the tasks of an allocation.",
        body_type=shapes.AllocSignalRequest, reply_type=shapes.IndexResponse,
    ),
    define_local(
        "client.pause_state", f"{ALLOCATION_PATH}/pause", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read whether a task is paused.", parameters=(TASK_PARAMETER,), reply_type=shapes.AllocPauseState,
    ),
    define_write(
        "client.pause", f"{ALLOCATION_PATH}/pause", need=permissions.PAUSE_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Pause a task, run it, or leave that to its schedule.",
        body_type=shapes.AllocPauseRequest, reply_type=shapes.IndexResponse,
    ),
    define_local(
        "client.alloc_stats", f"{ALLOCATION_PATH}/stats", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read what an allocation uses of its node.", parameters=(TASK_PARAMETER, HISTORY_PARAMETER), reply_type=shapes.Measurements,
    ),
    define_local(
        "client.checks", f"{ALLOCATION_PATH}/checks", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read the results of an allocation's checks.", reply_type=shapes.Measurements,
    ),
    define_local(
        "client.checks_by_allocation", "/v1/allocation/{alloc_id}/checks", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read the results of an allocation's checks.", reply_type=shapes.Measurements,
    ),
    define_local(
        "client.exec", f"{ALLOCATION_PATH}/exec", need=permissions.EXEC_IN_TASK, scope_source=ScopeSource.OBJECT,
        summary="Run a command beside a task, over a websocket.",
        parameters=(
            TASK_PARAMETER,
            text("command", "The command and its arguments, as a JSON list."),
            flag("tty", "Whether the command gets a terminal."),
            flag("ws_handshake", "Whether the token comes as the first message."),
        ),
    ),
    define_local(
        "client.snapshot", f"{ALLOCATION_PATH}/snapshot", need=permissions.PUBLIC_ACCESS,
        summary="Read what an ended allocation keeps as an archive, with its migrate token, to take its place elsewhere.",
    ),
    define_local(
        "client.alloc_gc", f"{ALLOCATION_PATH}/gc", need=permissions.COLLECT_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Have a node free what a finished allocation holds.",
    ),
    define_write(
        "client.alloc_gc_now", f"{ALLOCATION_PATH}/gc", is_put_only=True, need=permissions.COLLECT_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Have a node free what a finished allocation holds.",
    ),
    # -- of the files of an allocation
    define_local(
        "client.fs_list", f"{FILES_PATH}/ls/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="List a folder of an allocation.", parameters=(PATH_PARAMETER,), reply_type=list[shapes.AllocFileInfo],
    ),
    define_local(
        "client.fs_stat", f"{FILES_PATH}/stat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read what is known of a file of an allocation.", parameters=(PATH_PARAMETER,), reply_type=shapes.AllocFileInfo,
    ),
    define_local(
        "client.fs_read_at", f"{FILES_PATH}/readat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read a part of a file of an allocation.",
        parameters=(PATH_PARAMETER, OFFSET_PARAMETER, integer("limit", "How many bytes to read; all of them where it is not given.")),
    ),
    define_local(
        "client.fs_cat", f"{FILES_PATH}/cat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read a file of an allocation.", parameters=(PATH_PARAMETER,),
    ),
    define_local(
        "client.fs_stream", f"{FILES_PATH}/stream/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Follow a file of an allocation.",
        parameters=(PATH_PARAMETER, OFFSET_PARAMETER, ORIGIN_PARAMETER, flag("follow", "Whether to wait for more at the end.")),
    ),
    define_local(
        "client.fs_logs", f"{FILES_PATH}/logs/{{alloc_id}}", need=permissions.READ_LOGS, scope_source=ScopeSource.OBJECT,
        summary="Read or follow what a task prints.",
        parameters=(
            TASK_PARAMETER, text("type", "`stdout` or `stderr`."), flag("follow", "Whether to wait for more at the end."),
            OFFSET_PARAMETER, ORIGIN_PARAMETER, flag("plain", "Whether to send the bytes alone, without frames."),
        ),
    ),
)  # fmt: skip
