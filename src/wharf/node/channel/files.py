"""What is asked of a node through its channel: which question is whose to answer."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.files import ReadOnlyFolder, ReadOrigin, encode_frames, extract_data, follow_file, follow_logs
from wharf.node.files.folder import CONTENT_SAMPLE_BYTES, detect_content_type
from wharf.node.tasks.folders import AllocationFolders

JSON_CONTENT_TYPE: Final = "application/json"
TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
CHUNK_BYTES: Final = 64 << 10
LOG_STREAMS: Final = ("stdout", "stderr")

VerbHandler = Callable[[channel.ChannelRequest, AsyncIterator[bytes]], Awaitable[ChannelReply]]


class RequestDispatcher:
    """`answers`: by verb. A verb that nobody answers is refused with a sentence."""

    def __init__(self, answers: Mapping[str, VerbHandler]) -> None:
        self._answers = answers

    async def handle_request(self, question: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        found = self._answers.get(question.verb)
        if found is None:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED, f"this node does not answer {question.verb.replace('_', ' ')} yet"
            )
        return await found(question, inputs)


class FileHandlers:
    """Files and logs of allocations. `is_over`: whether a task will write no more; raises Refusal for one that is none.
    `has_begun`: whether it may have written something."""

    def __init__(
        self, folders: AllocationFolders, is_over: Callable[[str, str], bool], has_begun: Callable[[str, str], bool]
    ) -> None:
        self._folders = folders
        self._is_over = is_over
        self._has_begun = has_begun

    def handlers(self) -> dict[str, VerbHandler]:
        return {
            "fs_list": self._list,
            "fs_stat": self._stat,
            "fs_cat": self._cat,
            "fs_read_at": self._read_at,
            "fs_stream": self._stream,
            "fs_logs": self._logs,
        }

    def _folder(self, question: channel.ChannelRequest) -> ReadOnlyFolder:
        return ReadOnlyFolder(self._folders.get_allocation_folder(question.about))

    async def _list(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        return ChannelReply(
            JSON_CONTENT_TYPE, msgspec.json.encode(self._folder(question).list_entries(_text(question, "path") or "/"))
        )

    async def _stat(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        return ChannelReply(
            JSON_CONTENT_TYPE, msgspec.json.encode(self._folder(question).read_info(_text(question, "path")))
        )

    async def _cat(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        return self._part(question, begin=0, limit=0)

    async def _read_at(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        return self._part(question, begin=_number(question, "offset"), limit=_number(question, "limit"))

    def _part(self, question: channel.ChannelRequest, *, begin: int, limit: int) -> ChannelReply:
        path = _text(question, "path")
        # Opened before the first byte is sent, so that what is wrong is told as a refusal.
        file = os.fdopen(self._folder(question).open_file(path), "rb", 0)

        async def close() -> None:
            file.close()

        kind = detect_content_type(os.pread(file.fileno(), CONTENT_SAMPLE_BYTES, 0), path)
        return ChannelReply(kind, chunks=_read(file.fileno(), begin, limit), release=close)

    async def _stream(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        path, folder = _text(question, "path"), self._folder(question)
        os.close(folder.open_file(path))
        frames = follow_file(
            folder,
            path,
            origin=_origin(question),
            offset=_number(question, "offset"),
            should_follow=bool(question.parameters.get("follow", True)),
        )
        return ChannelReply(TEXT_CONTENT_TYPE, chunks=encode_frames(frames))

    async def _logs(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        task, stream = _text(question, "task"), _text(question, "type")
        if stream not in LOG_STREAMS:
            raise invalid_request('log type must be "stdout" or "stderr"')
        follows = bool(question.parameters.get("follow", False))
        folder = self._folder(question)
        is_over = self._is_over(question.about, task)
        if not follows and not any(name.startswith(f"{task}.{stream}.") for name in folder.list_names("alloc/logs")):
            if is_over or not self._has_begun(question.about, task):
                raise not_found(f'task "{task}" not started yet. No logs available')
            return ChannelReply("text/plain" if question.parameters.get("plain", False) else JSON_CONTENT_TYPE, b"")
        frames = follow_logs(
            folder,
            task,
            stream,
            origin=_origin(question),
            offset=_number(question, "offset"),
            should_follow=follows,
            is_over=lambda: is_over or self._is_over(question.about, task),
        )
        if question.parameters.get("plain", False):
            return ChannelReply("text/plain", chunks=extract_data(frames))
        return ChannelReply(JSON_CONTENT_TYPE, chunks=encode_frames(frames))


async def _read(handle: int, begin: int, limit: int) -> AsyncGenerator[bytes, None]:
    """From there on, so many bytes; all of them without a limit."""
    at, left = max(begin, 0), limit if limit > 0 else None
    while left is None or left > 0:
        piece = os.pread(handle, CHUNK_BYTES if left is None else min(left, CHUNK_BYTES), at)
        if not piece:
            return
        at += len(piece)
        left = None if left is None else left - len(piece)
        yield piece


def _text(question: channel.ChannelRequest, name: str) -> str:
    return str(question.parameters.get(name, ""))


def _number(question: channel.ChannelRequest, name: str) -> int:
    value = question.parameters.get(name, 0)
    return value if isinstance(value, int) else 0


def _origin(question: channel.ChannelRequest) -> ReadOrigin:
    return ReadOrigin.END if _text(question, "origin") == ReadOrigin.END.value else ReadOrigin.START
