"""Metadata of a node that changes while it runs: kept in a file of the node, laid over what the configuration says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from wharf.model.refusal import Code, Refusal, invalid
from wharf.node.agent.asked import JSON, Answer
from wharf.node.agent.channel import Reply
from wharf.node.kept_file import keep
from wharf.wire import channel
from wharf.wire.client_shapes import NodeMetaApplyRequest, NodeMetaResponse


class Metadata:
    def __init__(self, file: Path, static: Mapping[str, str]) -> None:
        self._file = file
        self._static = dict(static)
        self._dynamic: dict[str, str | None] = {}
        if file.exists():
            self._dynamic = msgspec.json.decode(file.read_bytes(), type=dict[str, str | None])

    @property
    def merged(self) -> dict[str, str]:
        """What jobs see."""
        over = self._static | self._dynamic
        return {name: value for name, value in over.items() if value is not None}

    def told(self) -> NodeMetaResponse:
        return NodeMetaResponse(meta=self.merged, dynamic=dict(self._dynamic), static=dict(self._static))

    def apply(self, changes: Mapping[str, str | None]) -> None:
        """None takes a key away; of one that the configuration sets it is kept that it is not to count. Raises OSError."""
        dynamic = self._dynamic | dict(changes)
        dynamic = {name: value for name, value in dynamic.items() if value is not None or name in self._static}
        keep(self._file, msgspec.json.encode(dynamic))
        self._dynamic = dynamic


class MetadataAsked:
    def __init__(self, metadata: Metadata, on_change: Callable[[], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._on_change = on_change

    def answers(self) -> dict[str, Answer]:
        return {"metadata": self._read, "metadata_apply": self._apply}

    async def _read(self, _question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        return Reply(JSON, msgspec.json.encode(self._metadata.told()))

    async def _apply(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        try:
            asked = msgspec.json.decode(question.body, type=NodeMetaApplyRequest)
        except msgspec.MsgspecError as error:
            raise invalid(f"the body cannot be read: {error}") from None
        try:
            self._metadata.apply(asked.meta or {})
        except OSError as error:
            raise Refusal(Code.UNAVAILABLE, f"the node cannot keep its metadata: {error.strerror}") from error
        await self._on_change()
        return Reply(JSON, msgspec.json.encode(self._metadata.told()))
