"""Following of a log over restarts of its node's agent: the stream continues at the position where it broke off.

Only the server that the client called resumes a stream. A server that received the request from another one does not.
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final

from wharf.cluster.api.handlers.allocations.node_calls import NodeCaller
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, EncodedBody, StreamedBody
from wharf.cluster.server.relay import HOPS_HEADER, MEMBER_HOP, PROCESS_HOP
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.allocations.log_frames import HEARTBEAT_FRAME, LogFrame, LogFrameSplitter, is_continuation
from wharf.contract.wire.errors import CODE_HEADER, REASON_HEADER, build_refusal
from wharf.world import World
from wharf.world.backoff import Backoff

RESUME_TIMEOUT_S: Final = 30.0
"""Seconds for the node to come back before the stream is cut off. A client that can resume then does so itself."""
MIN_RETRY_DELAY_S: Final = 0.2
"""The longest delay before the node is called again for the first time; it doubles with each further failure."""
UNSUPPORTED_TEXT: Final = "the node is too old to continue a log; update its agent"
MAX_REFUSAL_BYTES: Final = 65_536
"""Limit of the text of a refusal by another server; protects memory."""
MAX_RETRY_DELAY_S: Final = 1.0
"""The longest delay before the node is called again. A heartbeat is sent before each call."""


def is_relayed_within_region(request: Request) -> bool:
    """Return whether another server or process of this region has sent the request."""
    hops = [hop.strip() for hop in request.headers.get(HOPS_HEADER, b"").split(b",")]
    return MEMBER_HOP in hops or PROCESS_HOP in hops


class LogStreamer:
    """Sends followed logs from nodes to callers, and resumes them when the connection to the node is lost."""

    def __init__(self, world: World, nodes: NodeCaller) -> None:
        self._world = world
        self._nodes = nodes

    async def follow(self, request: Request, allocation: Allocation) -> ActionResult:
        """Return the stream of a followed log. Raises `Refusal` if the node cannot be reached or refuses."""
        is_plain = request.get_flag("plain")
        stream = _FollowedLog(self._world, self._nodes, request, allocation)
        parts = await stream.open()
        body = StreamedBody(
            stream.send_parts(parts, is_plain=is_plain),
            "text/plain" if is_plain else "application/json",
            is_cut_at_shutdown=True,
        )
        return ActionResult(body)


class _FollowedLog:
    """One followed log: the request to its node, and the position up to which it was sent."""

    def __init__(self, world: World, nodes: NodeCaller, request: Request, allocation: Allocation) -> None:
        self._world = world
        self._nodes = nodes
        self._request = request
        self._allocation = allocation
        self._position: LogFrame | None = None
        """The last frame with a position."""

    async def open(self) -> AsyncIterator[bytes]:
        """Call the node, and return the parts of its reply from the current position on. Raises `Refusal`."""
        changed: dict[str, str | bool | int] = {"plain": False}
        if self._position is not None:
            changed |= {"file": self._position.file, "offset": self._position.offset, "origin": "start"}
        result = await self._nodes.call_node(
            self._request,
            self._allocation.node_id,
            allocation_id=self._allocation.id,
            changed_parameters=changed,
        )
        match result.body:
            case StreamedBody(parts) if result.status < 300:
                return parts
            case StreamedBody(parts):
                raise await _read_refusal(parts, result)
            case EncodedBody(data):
                return _iterate_once(data)
        raise Refusal(RefusalCode.UNAVAILABLE, "the node sent no log; retry")

    async def send_parts(self, parts: AsyncIterator[bytes], *, is_plain: bool) -> AsyncGenerator[bytes, None]:
        """Yield the frames of the log, or with `is_plain` their data, until the node ends the stream.

        Raises the node's `Refusal` if the stream cannot be resumed.
        """
        while True:
            splitter, resumed_at = LogFrameSplitter(), self._position
            try:
                async for part in parts:
                    for encoded, frame, data in _decode_frames(splitter, part):
                        if resumed_at is not None and data:
                            if not is_continuation(resumed_at, frame):  # It would repeat what the caller has.
                                raise Refusal(RefusalCode.NOT_IMPLEMENTED, UNSUPPORTED_TEXT)
                            resumed_at = None
                        if frame.file:
                            self._position = frame
                        yield data if is_plain else encoded
                return
            except Refusal as refusal:
                if not _may_return(refusal) or not self._can_resume:
                    raise
                lost = refusal
            finally:
                if isinstance(parts, AsyncGenerator):
                    await parts.aclose()
            backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
            give_up_s = self._world.monotonic_s() + RESUME_TIMEOUT_S
            while True:
                await asyncio.sleep(backoff.next_delay_s())
                yield b"" if is_plain else HEARTBEAT_FRAME
                try:
                    parts = await self.open()
                    break
                except Refusal as refusal:
                    if not _may_return(refusal):
                        raise
                if self._world.monotonic_s() >= give_up_s:
                    raise lost

    @property
    def _can_resume(self) -> bool:
        """Whether the position is known. A stream from the start of a log that has sent nothing begins there again."""
        return self._position is not None or self._request.get_text("origin") != "end"


def _decode_frames(splitter: LogFrameSplitter, part: bytes) -> Iterator[tuple[bytes, LogFrame, bytes]]:
    """Yield the frames that a part of the node's reply completes, each with its data. Raises `Refusal` for a malformed frame."""
    try:
        for encoded, frame in splitter.feed(part):
            yield encoded, frame, base64.b64decode(frame.data)
    except ValueError as error:
        raise Refusal(RefusalCode.OUTCOME_UNKNOWN, f"the node sent a log that cannot be decoded: {error}") from error


async def _iterate_once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def _read_refusal(parts: AsyncIterator[bytes], result: ActionResult) -> Refusal:
    """Return the refusal that another server has sent as the reply `result`, whose text is in `parts`."""
    text = b""
    async for part in parts:
        text = (text + part)[:MAX_REFUSAL_BYTES]
    headers = {name: value.decode("latin-1") for name, value in result.headers}
    return build_refusal(
        result.status,
        text.decode(errors="replace"),
        code=headers.get(CODE_HEADER.encode(), ""),
        reason=headers.get(REASON_HEADER.encode(), ""),
    )


def _may_return(refusal: Refusal) -> bool:
    """Return whether a node that refused like this may reply again soon: its agent restarts, or changes servers."""
    return refusal.code is RefusalCode.UNAVAILABLE or refusal.reason is RefusalReason.NO_NODE_PATH
