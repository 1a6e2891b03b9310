"""Handles requests for files and logs of allocations."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing, closing
from typing import Final

import msgspec

from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.wire.allocations.file_offsets import check_file_offset
from wharf.contract.wire.allocations.log_frames import ALL_LOGS
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.node.files import (
    FileFrame,
    ReadOnlyFolder,
    ReadOrigin,
    TaskLogPosition,
    encode_frames,
    extract_data,
    follow_file,
    follow_logs,
    parse_log_position,
)
from wharf.node.files.folder import CONTENT_SAMPLE_BYTES, detect_content_type
from wharf.node.files.streams import has_log
from wharf.node.tasks.folders import AllocationFolders

TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
CHUNK_BYTES: Final = 64 << 10
"""Bytes read at a time; limits the memory that a request needs."""
MAX_PARALLEL_LISTS: Final = 2
"""Folders that are listed at the same time; limits the CPU time and the memory that large folders need."""
LOG_STREAMS: Final = ("stdout", "stderr")


class FileHandlers:
    """Handles requests for files and logs of allocations.

    `is_over` returns whether a task will write no more output, and `has_started` whether it may have written some. Both
    take allocation id and task name, and raise `Refusal` for an unknown task.
    """

    def __init__(
        self, folders: AllocationFolders, is_over: Callable[[str, str], bool], has_started: Callable[[str, str], bool]
    ) -> None:
        self._folders = folders
        self._is_over = is_over
        self._has_started = has_started
        self._list_permits = asyncio.Semaphore(MAX_PARALLEL_LISTS)

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers of requests for files and logs, by verb of the node channel."""
        return {
            "fs_list": self._list,
            "fs_stat": self._stat,
            "fs_cat": self._cat,
            "fs_read_at": self._read_at,
            "fs_stream": self._stream,
            "fs_logs": self._logs,
        }

    def _open_folder(self, request: channel.ChannelRequest) -> ReadOnlyFolder:
        """Return a read-only view of the folder of the allocation that the request is about."""
        return ReadOnlyFolder(self._folders.get_allocation_folder(request.about))

    async def _list(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the entries of a folder of the allocation as JSON."""
        folder, path = self._open_folder(request), _get_text(request, "path") or "/"
        pieces: list[bytes] = []
        async with self._list_permits:
            with closing(folder.iter_entries(path)) as slices:
                for entries in slices:
                    pieces.append(msgspec.json.encode(entries)[1:-1])
                    await asyncio.sleep(0)  # A task can fill a folder.
        return ChannelReply(JSON_CONTENT_TYPE, b"[%b]" % b",".join(filter(None, pieces)))

    async def _stat(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return size, mode and type of one file as JSON."""
        return ChannelReply(
            JSON_CONTENT_TYPE, msgspec.json.encode(self._open_folder(request).read_info(_get_text(request, "path")))
        )

    async def _cat(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the whole content of a file."""
        return self._read_part(request, begin=0, limit=0)

    async def _read_at(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return a part of a file, selected by the request's `offset` and `limit` in bytes."""
        return self._read_part(request, begin=_get_offset(request), limit=_get_number(request, "limit"))

    def _read_part(self, request: channel.ChannelRequest, *, begin: int, limit: int) -> ChannelReply:
        """Return a reply with `limit` bytes of a file from byte `begin` on; all of them if `limit` is 0."""
        path = _get_text(request, "path")
        # Opened before the reply begins, so that an error becomes a refusal.
        file = os.fdopen(self._open_folder(request).open_file(path), "rb", 0)

        async def close() -> None:
            """Close the file after the reply was sent."""
            file.close()

        content_type = detect_content_type(os.pread(file.fileno(), CONTENT_SAMPLE_BYTES, 0), path)
        return ChannelReply(content_type, chunks=_read_chunks(file.fileno(), begin, limit), release=close)

    async def _stream(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the content of a file as a stream of JSON frames; by default also what is appended later."""
        path, folder = _get_text(request, "path"), self._open_folder(request)
        os.close(folder.open_file(path))
        frames = follow_file(
            folder,
            path,
            origin=_get_origin(request),
            offset=_get_offset(request),
            should_follow=bool(request.parameters.get("follow", True)),
        )
        return ChannelReply(TEXT_CONTENT_TYPE, chunks=encode_frames(frames))

    async def _logs(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the log of a task, over all its rotated files, as JSON frames or as plain text.

        Raises `Refusal` for an unknown log type or task, or if the task has not started and following is not requested.
        """
        task, log_type = _get_text(request, "task"), _get_text(request, "type")
        should_follow = bool(request.parameters.get("follow", False))
        streams: tuple[str, ...] = LOG_STREAMS if log_type == ALL_LOGS and not should_follow else (log_type,)
        if not set(streams) <= set(LOG_STREAMS):
            raise invalid_request('log type must be "stdout" or "stderr"')
        start = _parse_start(request, task, streams[0])
        folder = self._open_folder(request)
        is_over = self._is_over(request.about, task)
        if not should_follow:
            streams = tuple(stream for stream in streams if has_log(folder, task, stream))
            if not streams:
                if is_over or not self._has_started(request.about, task):
                    raise not_found(f'task "{task}" not started yet. No logs available')
                return ChannelReply("text/plain" if request.parameters.get("plain", False) else JSON_CONTENT_TYPE, b"")
        frames = _chain_frames(
            follow_logs(
                folder,
                task,
                stream,
                origin=_get_origin(request),
                offset=_get_offset(request),
                should_follow=should_follow,
                is_over=lambda: is_over or self._is_over(request.about, task),
                start=start,
            )
            for stream in streams
        )
        if request.parameters.get("plain", False):
            return ChannelReply("text/plain", chunks=extract_data(frames))
        return ChannelReply(JSON_CONTENT_TYPE, chunks=encode_frames(frames))


async def _chain_frames(logs: Iterable[AsyncGenerator[FileFrame, None]]) -> AsyncGenerator[FileFrame, None]:
    """Yield the frames of several logs, one log after the other."""
    for frames in logs:
        async with aclosing(frames):
            async for frame in frames:
                yield frame


async def _read_chunks(descriptor: int, begin: int, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield up to `max_bytes` bytes of an open file from byte `begin` on; everything to the end if `max_bytes` is 0."""
    offset, remaining = max(begin, 0), max_bytes if max_bytes > 0 else None
    while remaining is None or remaining > 0:
        chunk = os.pread(descriptor, CHUNK_BYTES if remaining is None else min(remaining, CHUNK_BYTES), offset)
        if not chunk:
            return
        offset += len(chunk)
        remaining = None if remaining is None else remaining - len(chunk)
        yield chunk
        await asyncio.sleep(0)  # A consumer that never waits would otherwise hold the event loop.


def _get_text(request: channel.ChannelRequest, name: str) -> str:
    """Return the request's parameter with this name as text; empty if it is missing."""
    return str(request.parameters.get(name, ""))


def _get_number(request: channel.ChannelRequest, name: str) -> int:
    """Return the request's parameter with this name; 0 if it is missing or not an integer."""
    value = request.parameters.get(name, 0)
    return value if isinstance(value, int) else 0


def _get_offset(request: channel.ChannelRequest) -> int:
    """Return the request's offset in a file or log; 0 if it is missing. Raises `Refusal` if no file can be so large."""
    offset = _get_number(request, "offset")
    check_file_offset(offset)
    return offset


def _parse_start(request: channel.ChannelRequest, task: str, stream: str) -> TaskLogPosition | None:
    """Return the position in a log file from which the request reads; `None` if it names no file. Raises `Refusal`."""
    file = _get_text(request, "file")
    if not file:
        return None
    position = parse_log_position(task, stream, file, _get_offset(request))
    if position is None:
        raise invalid_request(f'file "{file}" is not a {stream} log of task "{task}": use the `File` of a frame')
    return position


def _get_origin(request: channel.ChannelRequest) -> ReadOrigin:
    """Return whether the request's offset counts from the start (the default) or the end of the file."""
    return ReadOrigin.END if _get_text(request, "origin") == ReadOrigin.END.value else ReadOrigin.START
