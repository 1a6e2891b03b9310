"""Endpoints of allocations, and the endpoints that a node handles: files, logs, commands and statistics."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.allocations.allocation import Allocation, AllocationStub
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.allocations import messages as allocation_messages
from wharf.contract.wire.allocations.log_search import LogSearch
from wharf.contract.wire.allocations.messages import AllocationStopResponse, AllocationView
from wharf.contract.wire.endpoint import (
    SMALL_BODY_BYTES,
    Endpoint,
    JoinedFieldType,
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
        JoinedFieldType("Job", Job | None),
        JoinedFieldType("AllocatedResources", AllocatedResources | None),
        JoinedFieldType("Metrics", AllocMetric | None),
        JoinedFieldType("TaskStates", dict[str, TaskState] | None),
    ),
)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "allocation.list", "/v1/allocations", need=permissions.READ_JOB, summary="List allocations.",
        list_features=ALLOCATION_LIST, reply_type=list[AllocationStub],
        parameters=(
            flag("resources", "Include the resources of each allocation."),
            flag("task_states", "Include task states and their events; true by default."),
        ),
    ),
    define_read(
        "allocation.read", "/v1/allocation/{alloc_id}", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read an allocation, with the version of its job.", reply_type=AllocationView,
    ),
    define_leader_write(
        "allocation.stop", "/v1/allocation/{alloc_id}/stop", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Stop an allocation and place a replacement.", reply_type=AllocationStopResponse,
        parameters=(
            flag("no_shutdown_delay", "Skip the shutdown delays of groups and tasks."),
            flag("reschedule", "Reschedule it as after a failure."),
        ),
    ),
    define_read(
        "allocation.services", "/v1/allocation/{alloc_id}/services", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="List the services that an allocation has registered.", reply_type=list[ServiceRegistration],
    ),
)  # fmt: skip


ALLOCATION_PATH: Final = "/v1/client/allocation/{alloc_id}"
FILES_PATH: Final = "/v1/client/fs"

NODE_PARAMETER: Final = text("node_id", "The node that handles the request.")
TASK_PARAMETER: Final = text("task", "The task.")
HISTORY_PARAMETER: Final = duration(
    "history", "Include earlier measurements of this duration; at most ten minutes are stored."
)
PATH_PARAMETER: Final = text("path", "The path, relative to the allocation's folder.")
ORIGIN_PARAMETER: Final = text("origin", "Whether the offset counts from the `start` or from the `end`.")
OFFSET_PARAMETER: Final = integer("offset", "How many bytes to skip.")

NODE_ANSWERED_ROWS: Final[tuple[Endpoint, ...]] = (
    # -- nodes
    define_local(
        "client.metadata", "/v1/client/metadata", need=permissions.READ_NODE, summary="Read the metadata of a node.",
        parameters=(NODE_PARAMETER,), reply_type=messages.NodeMetaResponse,
    ),
    define_write(
        "client.metadata_apply", "/v1/client/metadata", method="POST", need=permissions.WRITE_NODE,
        summary="Change the metadata of a node while it runs.",
        parameters=(NODE_PARAMETER,), max_body_bytes=SMALL_BODY_BYTES, body_type=messages.NodeMetaApplyRequest, reply_type=messages.NodeMetaResponse,
    ),
    define_local(
        "client.stats", "/v1/client/stats", need=permissions.READ_NODE, summary="Read statistics of a node's machine.",
        parameters=(NODE_PARAMETER, HISTORY_PARAMETER), reply_type=allocation_messages.Measurements,
    ),
    define_local(
        "client.gc", "/v1/client/gc", need=permissions.WRITE_NODE,
        summary="Delete the folders of a node's finished allocations.", parameters=(NODE_PARAMETER,),
    ),
    define_write(
        "client.gc_now", "/v1/client/gc", is_put_only=True, need=permissions.WRITE_NODE,
        summary="Delete the folders of a node's finished allocations.", parameters=(NODE_PARAMETER,),
    ),
    define_local(
        "client.identity", "/v1/client/identity", need=permissions.READ_NODE, summary="Read the claims of a node's identity.",
        parameters=(NODE_PARAMETER,), reply_type=allocation_messages.Measurements,
    ),
    define_write(
        "client.identity_renew", "/v1/client/identity/renew", need=permissions.WRITE_NODE,
        summary="Renew the identity of a node.",
        parameters=(NODE_PARAMETER,), max_body_bytes=SMALL_BODY_BYTES, body_type=messages.NodeIdentityRequest, is_body_optional=True, reply_type=allocation_messages.Measurements,
    ),
    # -- allocations
    define_write(
        "client.restart", f"{ALLOCATION_PATH}/restart", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Restart the tasks of an allocation on its node.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=allocation_messages.AllocRestartRequest, is_body_optional=True, reply_type=allocation_messages.IndexResponse,
    ),
    define_write(
        "client.signal", f"{ALLOCATION_PATH}/signal", need=permissions.CONTROL_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Send a signal to the tasks of an allocation.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=allocation_messages.AllocSignalRequest, reply_type=allocation_messages.IndexResponse,
    ),
    define_local(
        "client.pause_state", f"{ALLOCATION_PATH}/pause", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read whether a task is paused.", parameters=(TASK_PARAMETER,), reply_type=allocation_messages.AllocPauseState,
    ),
    define_write(
        "client.pause", f"{ALLOCATION_PATH}/pause", need=permissions.PAUSE_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Pause a task, run it, or return it to its schedule.",
        max_body_bytes=SMALL_BODY_BYTES, body_type=allocation_messages.AllocPauseRequest, reply_type=allocation_messages.IndexResponse,
    ),
    define_local(
        "client.alloc_stats", f"{ALLOCATION_PATH}/stats", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read the resource usage of an allocation.", parameters=(TASK_PARAMETER, HISTORY_PARAMETER), reply_type=allocation_messages.Measurements,
    ),
    define_local(
        "client.checks", f"{ALLOCATION_PATH}/checks", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read the results of an allocation's service checks.", reply_type=allocation_messages.Measurements,
    ),
    define_local(
        "client.checks_by_allocation", "/v1/allocation/{alloc_id}/checks", need=permissions.READ_JOB, scope_source=ScopeSource.OBJECT,
        summary="Read the results of an allocation's service checks.", reply_type=allocation_messages.Measurements,
    ),
    define_local(
        "client.exec", f"{ALLOCATION_PATH}/exec", need=permissions.EXEC_IN_TASK, scope_source=ScopeSource.OBJECT,
        summary="Run a command inside a task, over a websocket.",
        parameters=(
            TASK_PARAMETER,
            text("command", "The command and its arguments, as a JSON list."),
            flag("tty", "Whether the command gets a terminal."),
            flag("ws_handshake", "Whether the client sends the token as the first message."),
        ),
    ),
    define_local(
        "client.snapshot", f"{ALLOCATION_PATH}/snapshot", need=permissions.PUBLIC_ACCESS,
        summary="Download the migratable data of an ended allocation as an archive; needs its migrate token.",
    ),
    define_local(
        "client.alloc_gc", f"{ALLOCATION_PATH}/gc", need=permissions.COLLECT_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Delete the folder of a finished allocation on its node.",
    ),
    define_write(
        "client.alloc_gc_now", f"{ALLOCATION_PATH}/gc", is_put_only=True, need=permissions.COLLECT_ALLOCATION, scope_source=ScopeSource.OBJECT,
        summary="Delete the folder of a finished allocation on its node.",
    ),
    # -- files of an allocation
    define_local(
        "client.fs_list", f"{FILES_PATH}/ls/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="List a folder of an allocation.", parameters=(PATH_PARAMETER,), reply_type=list[allocation_messages.AllocFileInfo],
    ),
    define_local(
        "client.fs_stat", f"{FILES_PATH}/stat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read the metadata of a file of an allocation.", parameters=(PATH_PARAMETER,), reply_type=allocation_messages.AllocFileInfo,
    ),
    define_local(
        "client.fs_read_at", f"{FILES_PATH}/readat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read a part of a file of an allocation.",
        parameters=(PATH_PARAMETER, OFFSET_PARAMETER, integer("limit", "How many bytes to read; all by default.")),
    ),
    define_local(
        "client.fs_cat", f"{FILES_PATH}/cat/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        summary="Read a file of an allocation.", parameters=(PATH_PARAMETER,),
    ),
    define_local(
        "client.fs_stream", f"{FILES_PATH}/stream/{{alloc_id}}", need=permissions.READ_FILES, scope_source=ScopeSource.OBJECT,
        has_endless_reply=True,
        summary="Follow a file of an allocation.",
        parameters=(PATH_PARAMETER, OFFSET_PARAMETER, ORIGIN_PARAMETER, flag("follow", "Whether to wait for new data at the end.")),
    ),
    define_local(
        "client.fs_logs", f"{FILES_PATH}/logs/{{alloc_id}}", need=permissions.READ_LOGS, scope_source=ScopeSource.OBJECT,
        has_endless_reply=True,
        summary="Read or follow the output of a task.",
        parameters=(
            TASK_PARAMETER, text("type", "`stdout`, `stderr`, or without `follow` also `all`: first the one, then the other."), flag("follow", "Whether to wait for new data at the end."),
            OFFSET_PARAMETER, ORIGIN_PARAMETER, flag("plain", "Whether to send raw bytes, without frames."),
            text("file", "The `File` of a frame, to continue after that frame: the offset then counts from the start of this file."),
        ),
    ),
    define_local(
        "client.fs_search", f"{FILES_PATH}/search/{{alloc_id}}", need=permissions.READ_LOGS, scope_source=ScopeSource.OBJECT,
        summary="Count the lines of a task's output that contain a text, and read the last ones.",
        parameters=(
            TASK_PARAMETER, text("type", "`stdout` or `stderr`."), text("text", "The text. Upper and lower case are equal for the letters A to Z."),
            integer("limit", "How many of the last lines to return; 1,000 by default, 10,000 at most."),
        ),
        reply_type=LogSearch,
    ),
)  # fmt: skip
