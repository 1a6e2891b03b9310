"""Metadata of a node that changes while it runs: kept in a file of the node, laid over what the configuration says."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.nodes.messages import NodeMetaApplyRequest, NodeMetaResponse
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import JSON_CONTENT_TYPE, VerbHandler
from wharf.node.durable_file import replace_file


class NodeMetadata:
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

    def build_response(self) -> NodeMetaResponse:
        return NodeMetaResponse(meta=self.merged, dynamic=dict(self._dynamic), static=dict(self._static))

    def apply_changes(self, changes: Mapping[str, str | None]) -> None:
        """None takes a key away; of one that the configuration sets it is kept that it is not to count. Raises OSError."""
        dynamic = self._dynamic | dict(changes)
        dynamic = {name: value for name, value in dynamic.items() if value is not None or name in self._static}
        replace_file(self._file, msgspec.json.encode(dynamic))
        self._dynamic = dynamic


class MetadataHandlers:
    def __init__(self, metadata: NodeMetadata, on_change: Callable[[], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._on_change = on_change

    def handlers(self) -> dict[str, VerbHandler]:
        return {"metadata": self._read, "metadata_apply": self._apply}

    async def _read(self, _question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(self._metadata.build_response()))

    async def _apply(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        try:
            asked = msgspec.json.decode(question.body, type=NodeMetaApplyRequest)
        except msgspec.MsgspecError as error:
            raise invalid_request(f"the body cannot be read: {error}") from None
        try:
            self._metadata.apply_changes(asked.meta or {})
        except OSError as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"the node cannot keep its metadata: {error.strerror}") from error
        await self._on_change()
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(self._metadata.build_response()))
