"""Client methods for allocations and their files."""

from typing import Unpack

from wharf.contract.client.calls import (
    CallOptions,
    CallSpec,
    ListOptions,
    ListSpec,
    ReadOptions,
    ReadSpec,
    StreamSpec,
    WriteOptions,
)
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method, stream_method
from wharf.contract.client.streams import LogChunk
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.explanations import AllocationExplanation
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.wire.allocations import messages
from wharf.contract.wire.allocations.log_search import DEFAULT_SEARCH_LINES, LogSearch
from wharf.contract.wire.allocations.messages import AllocFileInfo, Measurements


class AllocationMethods(MethodGroup[M]):
    """The methods of `client.allocations`. Each describes a call, which the client then sends."""

    @list_method("allocation.list")
    def list(
        self, *, resources: bool = False, task_states: bool = True, **options: Unpack[ListOptions]
    ) -> ListSpec[AllocationStub]:
        """List allocations. `resources` and `task_states` select whether these fields are included."""
        return ListSpec(options, resources=resources, task_states=None if task_states else "false")

    @read_method("allocation.read")
    def read(self, alloc_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[messages.AllocationView]:
        """Read the allocation with this ID, with the version of its job."""
        return ReadSpec(options, alloc_id)

    @read_method("allocation.explain")
    def explain(self, alloc_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[AllocationExplanation]:
        """Explain why an allocation is on its node, what it waits for, and what led to it."""
        return ReadSpec(options, alloc_id)

    @list_method("allocation.services")
    def services(self, alloc_id: str, **options: Unpack[ReadOptions]) -> ListSpec[ServiceRegistration]:
        """List the services that an allocation has registered."""
        return ListSpec(options, alloc_id)

    @call_method("allocation.stop")
    def stop(
        self,
        alloc_id: str,
        *,
        no_shutdown_delay: bool = False,
        reschedule: bool = False,
        **options: Unpack[WriteOptions],
    ) -> CallSpec[messages.AllocationStopResponse]:
        """Stop an allocation and place a replacement.

        `no_shutdown_delay`: skip the shutdown delays of group and tasks. `reschedule`: place it as after a failure.
        """
        return CallSpec(options, alloc_id, no_shutdown_delay=no_shutdown_delay, reschedule=reschedule)

    # -- requests that the allocation's node handles

    @call_method("client.restart")
    def restart(
        self, alloc_id: str, *, task: str = "", all_tasks: bool = False, **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.IndexResponse]:
        """Restart tasks of an allocation on its node: one task, or all running ones; with `all_tasks`, also ended ones."""
        return CallSpec(options, alloc_id, body=messages.AllocRestartRequest(task_name=task, all_tasks=all_tasks))

    @call_method("client.signal")
    def signal(
        self, alloc_id: str, signal: str, *, task: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.IndexResponse]:
        """Send a signal, such as `SIGHUP`, to one task of an allocation, or to all running ones."""
        return CallSpec(options, alloc_id, body=messages.AllocSignalRequest(task=task, signal=signal))

    @call_method("client.pause_state")
    def pause_state(
        self, alloc_id: str, *, task: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[messages.AllocPauseState]:
        """Read whether a task is paused by its schedule. Never, because task schedules are not supported."""
        return CallSpec(options, alloc_id, task=task)

    @call_method("client.pause")
    def pause(
        self, alloc_id: str, schedule_state: str, *, task: str = "", **options: Unpack[WriteOptions]
    ) -> CallSpec[messages.IndexResponse]:
        """Set the schedule state of a task: `pause`, `run` or `scheduled`. Nodes refuse it: not supported."""
        return CallSpec(options, alloc_id, body=messages.AllocPauseRequest(task=task, schedule_state=schedule_state))

    @call_method("client.alloc_stats")
    def stats(
        self, alloc_id: str, *, task: str = "", history: str = "", **options: Unpack[CallOptions]
    ) -> CallSpec[Measurements]:
        """Read the resource usage of an allocation.

        `history`: include earlier measurements of this duration, such as `5m`.
        """
        return CallSpec(options, alloc_id, task=task, history=history)

    @call_method("client.checks")
    def checks(self, alloc_id: str, **options: Unpack[CallOptions]) -> CallSpec[Measurements]:
        """Read the results of an allocation's service checks."""
        return CallSpec(options, alloc_id)

    @call_method("client.alloc_gc_now")
    def collect(self, alloc_id: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the folder of a finished allocation on its node (garbage collection)."""
        return CallSpec(options, alloc_id)


class FileMethods(MethodGroup[M]):
    """The methods of `client.files`, for files of an allocation. Each describes a call, which the client then sends."""

    @call_method("client.fs_list")
    def list(
        self, alloc_id: str, path: str = "/", **options: Unpack[CallOptions]
    ) -> CallSpec["tuple[AllocFileInfo, ...]"]:
        """List the files in a folder of an allocation. `path` is relative to the allocation's folder."""
        return CallSpec(options, alloc_id, path=path)

    @call_method("client.fs_stat")
    def stat(self, alloc_id: str, path: str, **options: Unpack[CallOptions]) -> CallSpec[AllocFileInfo]:
        """Read the metadata of a file of an allocation. `path` is relative to the allocation's folder."""
        return CallSpec(options, alloc_id, path=path)

    @stream_method("client.fs_cat")
    def cat(self, alloc_id: str, path: str, **options: Unpack[CallOptions]) -> StreamSpec[bytes]:
        """Read a whole file of an allocation. `path` is relative to the allocation's folder."""
        return StreamSpec(options, alloc_id, path=path)

    @stream_method("client.fs_read_at")
    def read_at(
        self, alloc_id: str, path: str, *, offset: int, limit: int, **options: Unpack[CallOptions]
    ) -> StreamSpec[bytes]:
        """Read up to `limit` bytes of a file of an allocation, from byte `offset` on."""
        return StreamSpec(options, alloc_id, path=path, offset=offset, limit=limit)

    @stream_method("client.fs_stream")
    def stream(
        self,
        alloc_id: str,
        path: str,
        *,
        offset: int = 0,
        origin: str = "",
        follow: bool = True,
        **options: Unpack[CallOptions],
    ) -> StreamSpec[bytes]:
        """Read a file of an allocation; with `follow`, wait for new data at its end.

        `offset` is a number of bytes, counted from the `start` or the `end` of the file (`origin`).
        """
        return StreamSpec(
            options, alloc_id, path=path, offset=offset, origin=origin, follow=None if follow else "false"
        )

    @stream_method("client.fs_logs")
    def logs(
        self,
        alloc_id: str,
        task: str,
        *,
        type: str = "stdout",
        offset: int = 0,
        origin: str = "",
        follow: bool = False,
        file: str = "",
        **options: Unpack[CallOptions],
    ) -> StreamSpec[LogChunk]:
        """Read the output of a task (`type`: stdout, stderr or all); with `follow`, wait for new output of one type.

        `offset` is a number of bytes, counted from the `start` or the `end` of the output (`origin`). To continue after
        a chunk, pass its `file` and `offset`. A followed log that breaks off is continued where it was, for up to 30 s.
        """
        return StreamSpec(
            options,
            alloc_id,
            task=task,
            type=type,
            offset=offset,
            origin=origin,
            follow=follow,
            file=file or None,
        )

    @call_method("client.fs_search")
    def search_logs(
        self,
        alloc_id: str,
        task: str,
        text: str,
        *,
        type: str = "stdout",
        limit: int = DEFAULT_SEARCH_LINES,
        **options: Unpack[CallOptions],
    ) -> CallSpec[LogSearch]:
        """Count the lines of the output of a task (`type`: stdout or stderr) that contain a text, and read the last ones.

        Upper and lower case are equal for the letters A to Z. The node searches the last 256 MB.
        """
        return CallSpec(options, alloc_id, task=task, text=text, type=type, limit=limit)

    @stream_method("client.snapshot")
    def snapshot(self, alloc_id: str, *, migrate_token: str = "", **options: Unpack[CallOptions]) -> StreamSpec[bytes]:
        """Download the migratable data of an ended allocation (`alloc/data` and each task's `local`) as one archive.

        `migrate_token` replaces the client's token.
        """
        return StreamSpec(options, alloc_id, headers={"x-cluster-token": migrate_token} if migrate_token else None)
