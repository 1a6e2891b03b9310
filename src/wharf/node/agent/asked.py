"""What is asked of a node through its channel: which question is whose to answer."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import msgspec

from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.node.agent.channel import Reply
from wharf.node.agent.folders import AllocationFolders
from wharf.node.files import Folder, Origin, encoded, follow_file, follow_logs, plain
from wharf.node.files.folder import SNIFFED_BYTES, sniffed
from wharf.wire import channel

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
PIECE_BYTES: Final = 64 << 10
STREAMS: Final = ("stdout", "stderr")

Answer = Callable[[channel.Ask, AsyncIterator[bytes]], Awaitable[Reply]]


class Asked:
    """`answers`: by verb. A verb that nobody answers is refused with a sentence."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers

    async def answer(self, question: channel.Ask, inputs: AsyncIterator[bytes]) -> Reply:
        found = self._answers.get(question.verb)
        if found is None:
            raise Refusal(Code.NOT_OURS, f"this node does not answer {question.verb.replace('_', ' ')} yet")
        return await found(question, inputs)


class FilesAsked:
    """Files and logs of allocations. `is_over`: whether a task will write no more; raises Refusal for one that is none.
    `has_begun`: whether it may have written something."""

    def __init__(
        self, folders: AllocationFolders, is_over: Callable[[str, str], bool], has_begun: Callable[[str, str], bool]
    ) -> None:
        self._folders = folders
        self._is_over = is_over
        self._has_begun = has_begun

    def answers(self) -> dict[str, Answer]:
        return {
            "fs_list": self._list,
            "fs_stat": self._stat,
            "fs_cat": self._cat,
            "fs_read_at": self._read_at,
            "fs_stream": self._stream,
            "fs_logs": self._logs,
        }

    def _folder(self, question: channel.Ask) -> Folder:
        return Folder(self._folders.of(question.about))

    async def _list(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return Reply(JSON, msgspec.json.encode(self._folder(question).entries(_text(question, "path") or "/")))

    async def _stat(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return Reply(JSON, msgspec.json.encode(self._folder(question).stat(_text(question, "path"))))

    async def _cat(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return self._part(question, begin=0, limit=0)

    async def _read_at(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return self._part(question, begin=_number(question, "offset"), limit=_number(question, "limit"))

    def _part(self, question: channel.Ask, *, begin: int, limit: int) -> Reply:
        path = _text(question, "path")
        # Opened before the first byte is sent, so that what is wrong is told as a refusal.
        file = os.fdopen(self._folder(question).open(path), "rb", 0)

        async def close() -> None:
            file.close()

        kind = sniffed(os.pread(file.fileno(), SNIFFED_BYTES, 0), path)
        return Reply(kind, parts=_read(file.fileno(), begin, limit), end=close)

    async def _stream(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        path, folder = _text(question, "path"), self._folder(question)
        os.close(folder.open(path))
        frames = follow_file(
            folder,
            path,
            origin=_origin(question),
            offset=_number(question, "offset"),
            follows=bool(question.parameters.get("follow", True)),
        )
        return Reply(TEXT, parts=encoded(frames))

    async def _logs(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        task, stream = _text(question, "task"), _text(question, "type")
        if stream not in STREAMS:
            raise invalid('log type must be "stdout" or "stderr"')
        follows = bool(question.parameters.get("follow", False))
        folder = self._folder(question)
        is_over = self._is_over(question.about, task)
        if not follows and not any(name.startswith(f"{task}.{stream}.") for name in folder.names("alloc/logs")):
            if is_over or not self._has_begun(question.about, task):
                raise unknown(f'task "{task}" not started yet. No logs available')
            return Reply("text/plain" if question.parameters.get("plain", False) else JSON, b"")
        frames = follow_logs(
            folder,
            task,
            stream,
            origin=_origin(question),
            offset=_number(question, "offset"),
            follows=follows,
            is_over=lambda: is_over or self._is_over(question.about, task),
        )
        if question.parameters.get("plain", False):
            return Reply("text/plain", parts=plain(frames))
        return Reply(JSON, parts=encoded(frames))


async def _read(handle: int, begin: int, limit: int) -> AsyncGenerator[bytes, None]:
    """From there on, so many bytes; all of them without a limit."""
    at, left = max(begin, 0), limit if limit > 0 else None
    while left is None or left > 0:
        piece = os.pread(handle, PIECE_BYTES if left is None else min(left, PIECE_BYTES), at)
        if not piece:
            return
        at += len(piece)
        left = None if left is None else left - len(piece)
        yield piece


def _text(question: channel.Ask, name: str) -> str:
    return str(question.parameters.get(name, ""))


def _number(question: channel.Ask, name: str) -> int:
    value = question.parameters.get(name, 0)
    return value if isinstance(value, int) else 0


def _origin(question: channel.Ask) -> Origin:
    return Origin.END if _text(question, "origin") == Origin.END.value else Origin.START
