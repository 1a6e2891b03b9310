"""Endpoints that the node which runs a task answers: files, logs, commands, figures."""

from typing import Final

from wharf.model import need
from wharf.wire import client_shapes as shapes
from wharf.wire.endpoints.endpoint import Decides, Endpoint, duration, flag, integer, tells, text, writes

ALLOCATION: Final = "/v1/client/allocation/{alloc_id}"
FILES: Final = "/v1/client/fs"

NODE: Final = text("node_id", "The node that is asked.")
TASK: Final = text("task", "The task that is asked about.")
HISTORY: Final = duration("history", "How far back what was is told too; ten minutes at most are kept.")
PATH: Final = text("path", "Where, from the root of the allocation's folder.")
ORIGIN: Final = text("origin", "Whether the offset counts from the `start` or from the `end`.")
OFFSET: Final = integer("offset", "How many bytes to pass over.")

ROWS: Final[tuple[Endpoint, ...]] = (
    # -- of a node
    tells(
        "client.metadata", "/v1/client/metadata", need=need.READ_NODE, summary="Read the metadata of a node.",
        parameters=(NODE,), returns=shapes.NodeMetaResponse,
    ),
    writes(
        "client.metadata_apply", "/v1/client/metadata", method="POST", need=need.WRITE_NODE,
        summary="Change the metadata of a node while it runs.",
        parameters=(NODE,), body=shapes.NodeMetaApplyRequest, returns=shapes.NodeMetaResponse,
    ),
    tells(
        "client.stats", "/v1/client/stats", need=need.READ_NODE, summary="Read what a node measures of its machine.",
        parameters=(NODE, HISTORY), returns=shapes.Figures,
    ),
    tells(
        "client.gc", "/v1/client/gc", need=need.WRITE_NODE,
        summary="Have a node free what its finished allocations hold.", parameters=(NODE,),
    ),
    writes(
        "client.gc_now", "/v1/client/gc", put_only=True, need=need.WRITE_NODE,
        summary="Have a node free what its finished allocations hold.", parameters=(NODE,),
    ),
    tells(
        "client.identity", "/v1/client/identity", need=need.READ_NODE, summary="Read the claims of a node's identity.",
        parameters=(NODE,), returns=shapes.Figures,
    ),
    writes(
        "client.identity_renew", "/v1/client/identity/renew", need=need.WRITE_NODE,
        summary="Have a node get a new identity.",
        parameters=(NODE,), body=shapes.NodeIdentityRequest, body_optional=True, returns=shapes.Figures,
    ),
    # -- of an allocation
    writes(
        "client.restart", f"{ALLOCATION}/restart", need=need.STEER_ALLOCATION, decides=Decides.OBJECT,
        summary="Restart the tasks of an allocation where it is.",
        body=shapes.AllocRestartRequest, body_optional=True, returns=shapes.IndexResponse,
    ),
    writes(
        "client.signal", f"{ALLOCATION}/signal", need=need.STEER_ALLOCATION, decides=Decides.OBJECT,
        summary="Send a signal to the tasks of an allocation.",
        body=shapes.AllocSignalRequest, returns=shapes.IndexResponse,
    ),
    tells(
        "client.pause_state", f"{ALLOCATION}/pause", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read whether a task is paused.", parameters=(TASK,), returns=shapes.AllocPauseState,
    ),
    writes(
        "client.pause", f"{ALLOCATION}/pause", need=need.PAUSE_ALLOCATION, decides=Decides.OBJECT,
        summary="Pause a task, run it, or leave that to its schedule.",
        body=shapes.AllocPauseRequest, returns=shapes.IndexResponse,
    ),
    tells(
        "client.alloc_stats", f"{ALLOCATION}/stats", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read what an allocation uses of its node.", parameters=(TASK, HISTORY), returns=shapes.Figures,
    ),
    tells(
        "client.checks", f"{ALLOCATION}/checks", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read the results of an allocation's checks.", returns=shapes.Figures,
    ),
    tells(
        "client.checks_by_allocation", "/v1/allocation/{alloc_id}/checks", need=need.READ_JOB, decides=Decides.OBJECT,
        summary="Read the results of an allocation's checks.", returns=shapes.Figures,
    ),
    tells(
        "client.exec", f"{ALLOCATION}/exec", need=need.EXEC, decides=Decides.OBJECT,
        summary="Run a command beside a task, over a websocket.",
        parameters=(
            TASK,
            text("command", "The command and its arguments, as a JSON list."),
            flag("tty", "Whether the command gets a terminal."),
            flag("ws_handshake", "Whether the token comes as the first message."),
        ),
    ),
    tells(
        "client.snapshot", f"{ALLOCATION}/snapshot", need=need.NOTHING,
        summary="Read what an ended allocation keeps as an archive, with its migrate token, to take its place elsewhere.",
    ),
    tells(
        "client.alloc_gc", f"{ALLOCATION}/gc", need=need.COLLECT_ALLOCATION, decides=Decides.OBJECT,
        summary="Have a node free what a finished allocation holds.",
    ),
    writes(
        "client.alloc_gc_now", f"{ALLOCATION}/gc", put_only=True, need=need.COLLECT_ALLOCATION, decides=Decides.OBJECT,
        summary="Have a node free what a finished allocation holds.",
    ),
    # -- of the files of an allocation
    tells(
        "client.fs_list", f"{FILES}/ls/{{alloc_id}}", need=need.READ_FILES, decides=Decides.OBJECT,
        summary="List a folder of an allocation.", parameters=(PATH,), returns=list[shapes.AllocFileInfo],
    ),
    tells(
        "client.fs_stat", f"{FILES}/stat/{{alloc_id}}", need=need.READ_FILES, decides=Decides.OBJECT,
        summary="Read what is known of a file of an allocation.", parameters=(PATH,), returns=shapes.AllocFileInfo,
    ),
    tells(
        "client.fs_read_at", f"{FILES}/readat/{{alloc_id}}", need=need.READ_FILES, decides=Decides.OBJECT,
        summary="Read a part of a file of an allocation.",
        parameters=(PATH, OFFSET, integer("limit", "How many bytes to read; all of them where it is not given.")),
    ),
    tells(
        "client.fs_cat", f"{FILES}/cat/{{alloc_id}}", need=need.READ_FILES, decides=Decides.OBJECT,
        summary="Read a file of an allocation.", parameters=(PATH,),
    ),
    tells(
        "client.fs_stream", f"{FILES}/stream/{{alloc_id}}", need=need.READ_FILES, decides=Decides.OBJECT,
        summary="Follow a file of an allocation.",
        parameters=(PATH, OFFSET, ORIGIN, flag("follow", "Whether to wait for more at the end.")),
    ),
    tells(
        "client.fs_logs", f"{FILES}/logs/{{alloc_id}}", need=need.READ_LOGS, decides=Decides.OBJECT,
        summary="Read or follow what a task prints.",
        parameters=(
            TASK, text("type", "`stdout` or `stderr`."), flag("follow", "Whether to wait for more at the end."),
            OFFSET, ORIGIN, flag("plain", "Whether to send the bytes alone, without frames."),
        ),
    ),
)  # fmt: skip
