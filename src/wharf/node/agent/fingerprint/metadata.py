"""Metadata of the node that can be changed while it runs: stored in a file, applied on top of the configured
metadata.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.wire.nodes import channel
from wharf.contract.wire.nodes.messages import NodeMetaApplyRequest, NodeMetaResponse
from wharf.node.channel.endpoint import JSON_CONTENT_TYPE, ChannelReply, VerbHandler
from wharf.world.durable_file import replace_file
from wharf.world.stored_json import read_stored_json


class NodeMetadata:
    """The metadata of the node: configured (static), and changed by requests (dynamic, stored in a file)."""

    def __init__(self, file: Path, static: Mapping[str, str]) -> None:
        """Read the file, if it exists. Raises `DamagedFile`."""
        self._file = file
        self._static = dict(static)
        remedy = "restore it from a copy, or delete it: then metadata that was set through the API is lost"
        self._dynamic: dict[str, str | None] = read_stored_json(file, dict[str, str | None], remedy=remedy) or {}

    @property
    def merged(self) -> dict[str, str]:
        """The metadata that jobs see."""
        merged = self._static | self._dynamic
        return {name: value for name, value in merged.items() if value is not None}

    def build_response(self) -> NodeMetaResponse:
        """Return static, dynamic and merged metadata for the API."""
        return NodeMetaResponse(meta=self.merged, dynamic=dict(self._dynamic), static=dict(self._static))

    def apply_changes(self, changes: Mapping[str, str | None]) -> None:
        """Merge `changes` into the dynamic metadata and store it in the file. Raises `OSError`.

        A value of `None` deletes a key. For a key that the configuration sets, the `None` is stored and hides the
        configured value.
        """
        dynamic = self._dynamic | dict(changes)
        dynamic = {name: value for name, value in dynamic.items() if value is not None or name in self._static}
        replace_file(self._file, msgspec.json.encode(dynamic))
        self._dynamic = dynamic


class MetadataHandlers:
    """The handlers of metadata requests from the node channel."""

    def __init__(self, metadata: NodeMetadata, on_change: Callable[[], Awaitable[None]]) -> None:
        self._metadata = metadata
        self._on_change = on_change

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handlers for reading and changing the metadata, by verb of the node channel."""
        return {"metadata": self._read, "metadata_apply": self._apply}

    async def _read(self, _request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return the static, dynamic and merged metadata as JSON."""
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(self._metadata.build_response()))

    async def _apply(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Store the requested changes, have the node reported again, and return the new metadata as JSON.

        Raises `Refusal` for an invalid body, or if the changes cannot be stored.
        """
        try:
            changes = msgspec.json.decode(request.body, type=NodeMetaApplyRequest)
        except msgspec.MsgspecError as error:
            raise invalid_request(f"invalid request body: {error}") from None
        try:
            self._metadata.apply_changes(changes.meta or {})
        except OSError as error:
            raise Refusal(RefusalCode.UNAVAILABLE, f"failed to store the node's metadata: {error.strerror}") from error
        await self._on_change()
        return ChannelReply(JSON_CONTENT_TYPE, msgspec.json.encode(self._metadata.build_response()))
