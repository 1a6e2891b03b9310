"""The node's end of the node channel: runs many requests at once, each in its own task, and sends their replies.

What a request does is decided by a `RequestHandler`; the node's is a `RequestDispatcher` with one handler for each
verb. A reply is sent only as fast as the receiver grants credit.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.nodes import channel
from wharf.world import World
from wharf.world.tasks import cancel_tasks, start_supervised

log = logging.getLogger(__name__)

JSON_CONTENT_TYPE: Final = "application/json"
EXEC_VERB: Final = "exec"
"""The verb of the requests that have input."""
MAX_QUEUED_INPUT_BYTES: Final = 4 << 20
MAX_QUEUED_INPUTS: Final = 65_536
"""Limits of the input of a request that waits to be processed. Servers of this version stop long before, see
`channel.EXEC_WINDOW_BYTES`. A request for which a server sends more is refused, which protects the memory of the node."""
MAX_OPEN_REQUESTS: Final = 4_096
"""Requests that the node handles at a time; protects its memory. Commands, files and logs have lower limits of their own."""
TOO_MANY_REQUESTS_TEXT: Final = f"the node handles {MAX_OPEN_REQUESTS:,} requests at a time: end some, or retry later"
NO_OPEN_FILES_ERRORS: Final = (errno.EMFILE, errno.ENFILE)
NO_OPEN_FILES_TEXT: Final = (
    "the node agent cannot open more files: retry later; if this happens often, raise its limit of open files, such as "
    "LimitNOFILE= of its systemd unit"
)
TOO_MUCH_INPUT_TEXT: Final = "the server sent more input than the node has permitted"


class TooManyRequests(Exception):
    """The error for a server that sends requests although the node refuses them. Its connection must be closed."""


class ChannelReply(msgspec.Struct, frozen=True):
    """The reply to a request: a whole body, or chunks that are produced while they are sent."""

    content_type: str
    body: bytes = b""  # Used if `chunks` is `None`.
    chunks: AsyncGenerator[bytes, None] | None = None
    release: Callable[[], Awaitable[None]] | None = None
    """Releases what the chunks need, such as an open file. Always called once, even if no chunk is ever read."""


class RequestHandler(Protocol):
    """Handles the requests that arrive through the node channel."""

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """Return the reply to the request. Raises `Refusal`.

        `inputs` yields the data that the caller sends while the request is handled.
        """
        ...


VerbHandler = Callable[[channel.ChannelRequest, AsyncIterator[bytes]], Awaitable[ChannelReply]]
"""Handles the requests of one verb. The second argument yields what the caller sends meanwhile."""


class RequestDispatcher:
    """Passes each request of the node channel to the handler of its verb, and refuses unknown verbs."""

    def __init__(self, handlers_by_verb: Mapping[str, VerbHandler]) -> None:
        self._handlers = handlers_by_verb

    async def handle_request(self, request: channel.ChannelRequest, inputs: AsyncIterator[bytes]) -> ChannelReply:
        """Call the handler of the request's verb and return its reply. Raises `Refusal`, also for an unknown verb.

        `inputs` yields the data that the caller sends while the request is handled.
        """
        handler = self._handlers.get(request.verb)
        if handler is None:
            raise Refusal(
                RefusalCode.NOT_IMPLEMENTED, f"this node does not support the request {request.verb.replace('_', ' ')}"
            )
        return await handler(request, inputs)


class _RequestInProgress:
    """The queued input of a request and the number of reply bytes that its caller can still accept (credit)."""

    def __init__(self, acknowledge: Callable[[int], Awaitable[None]], *, window_bytes: int) -> None:
        """`window_bytes` is how many bytes of the reply may be sent without credit."""
        self._acknowledge = acknowledge
        self._inputs: asyncio.Queue[bytes] = asyncio.Queue()
        self._queued_bytes = 0
        self.credit_bytes = window_bytes
        self.credit_granted = asyncio.Event()
        self.has_too_much_input = False
        self.is_canceled = False

    def add_input(self, data: bytes) -> bool:
        """Queue input that the caller has sent. Return false if the server has sent too much."""
        self._queued_bytes += len(data)
        if self._queued_bytes > MAX_QUEUED_INPUT_BYTES or self._inputs.qsize() >= MAX_QUEUED_INPUTS:
            self.has_too_much_input = True
            return False
        self._inputs.put_nowait(data)
        return True

    async def iter_inputs(self) -> AsyncIterator[bytes]:
        """Yield the data that the caller sends.

        Each input is acknowledged when the next one is requested. Until then the caller may send only a limited amount.
        """
        while True:
            data = await self._inputs.get()
            size = len(data)
            yield data
            del data  # The consumer may wait for long with the next one.
            # The consumer asks for the next input, so it has used this one.
            self._queued_bytes -= size
            await self._acknowledge(size)

    async def use_credit(self, byte_count: int) -> None:
        """Wait until the receiver can accept more bytes, then subtract `byte_count` from that number.

        The result may be negative, so one reply part can exceed the credit.
        """
        while self.credit_bytes <= 0:
            self.credit_granted.clear()
            await self.credit_granted.wait()
        self.credit_bytes -= byte_count


class ChannelEndpoint:
    """The node's end of one node channel: runs each request in its own task and sends the reply.

    `send` writes a message to the connection. The owner passes every received message to `receive_message` and calls
    `close` at the end.
    """

    def __init__(self, world: World, request_handler: RequestHandler, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._world = world
        self._request_handler = request_handler
        self._send = send
        self._open: dict[int, tuple[_RequestInProgress, asyncio.Task[None]]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        """Tasks that cancel requests until they have ended."""

    def receive_message(self, data: bytes) -> None:
        """Handle one message from the server: start a request, or pass input, credit or a cancellation to one.

        Messages for finished requests are ignored. Raises `msgspec.MsgspecError` if the message cannot be decoded, and
        `TooManyRequests`.
        """
        message = channel.decode_message_to_node(data)
        if isinstance(message, channel.ChannelRequest):
            self._start_request(message)
            return
        open_request = self._open.get(message.id)
        if open_request is None:
            return  # The request was finished meanwhile.
        progress, task = open_request
        match message:
            case channel.ChannelInput(_, data):
                if not progress.add_input(data):
                    self._cancel(message.id, progress, task)
            case channel.OutputCredit(_, count):
                progress.credit_bytes += count
                progress.credit_granted.set()
            case channel.CancelRequest():
                self._cancel(message.id, progress, task)

    def _start_request(self, request: channel.ChannelRequest) -> None:
        """Start a task for the request, unless one with its number is in progress."""
        number = request.id
        if number in self._open:
            return
        if len(self._open) >= 2 * MAX_OPEN_REQUESTS:  # The refusals are not read.
            raise TooManyRequests(f"{len(self._open):,} requests are open")
        progress = _RequestInProgress(
            lambda count: self._send_message(channel.InputCredit(number, count)),
            window_bytes=channel.EXEC_WINDOW_BYTES if request.verb == EXEC_VERB else channel.WINDOW_BYTES,
        )
        task = start_supervised(self._world, self._run_request(request, progress), name=f"node request {request.verb}")
        self._open[number] = (progress, task)

    def _cancel(self, number: int, progress: _RequestInProgress, task: asyncio.Task[None]) -> None:
        """Cancel a request, again at intervals until it has ended: a library may swallow a cancellation."""
        if progress.is_canceled:
            return
        progress.is_canceled = True
        ending = start_supervised(self._world, cancel_tasks(task), name=f"end of node request {number}")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Cancel all requests and wait until they have ended; called after the connection is closed."""
        await cancel_tasks(*(task for _, task in self._open.values()))
        await asyncio.gather(*self._endings)

    async def _run_request(self, request: channel.ChannelRequest, progress: _RequestInProgress) -> None:
        """Run one request and send its reply, whole or in parts; an error is sent as a refusal.

        Parts are sent only as fast as the receiver grants credit. `release` of the reply is called at the end.
        """
        number = request.id
        release: Callable[[], Awaitable[None]] | None = None
        try:
            if len(self._open) > MAX_OPEN_REQUESTS:
                raise Refusal(RefusalCode.UNAVAILABLE, TOO_MANY_REQUESTS_TEXT, RefusalReason.OVERLOADED)
            reply = await self._request_handler.handle_request(request, progress.iter_inputs())
            release = reply.release
            if reply.chunks is None and len(reply.body) <= channel.MAX_PART_BYTES:
                await self._send_message(channel.WholeReply(number, reply.content_type, reply.body))
                return
            await self._send_message(channel.StreamBegin(number, reply.content_type))
            parts = reply.chunks if reply.chunks is not None else _yield_body(reply.body)
            async with aclosing(parts):  # Close the generator at once, also if the caller has disconnected.
                async for part in parts:
                    for begin in range(0, len(part), channel.MAX_PART_BYTES):
                        chunk = part[begin : begin + channel.MAX_PART_BYTES]
                        await progress.use_credit(len(chunk))
                        await self._send_message(channel.StreamPart(number, chunk))
            await self._send_message(channel.StreamEnd(number))
        except Refusal as refusal:
            await self._send_message(channel.ChannelRefusal(number, refusal.code, refusal.text, refusal.reason))
        except asyncio.CancelledError:
            if not progress.has_too_much_input:
                raise
            await self._send_message(channel.ChannelRefusal(number, RefusalCode.INVALID, TOO_MUCH_INPUT_TEXT))
        except ConnectionError:
            return  # The reader of the connection sees the error too, and reconnects.
        except OSError as error:
            if error.errno not in NO_OPEN_FILES_ERRORS:
                await self._report_internal_error(request)
            else:
                await self._send_message(
                    channel.ChannelRefusal(
                        number, RefusalCode.UNAVAILABLE, NO_OPEN_FILES_TEXT, RefusalReason.OVERLOADED
                    )
                )
        except Exception:  # The caller must receive a reply, whatever fails.
            await self._report_internal_error(request)
        finally:
            self._open.pop(number, None)
            if release is not None:  # To its end, also if the request is cancelled again meanwhile.
                await asyncio.shield(
                    start_supervised(self._world, _call(release), name=f"release of node request {number}")
                )

    async def _report_internal_error(self, request: channel.ChannelRequest) -> None:
        """Log the current exception, and reply that the request failed."""
        log.exception("node request failed verb=%s target=%s", request.verb, request.about or "the node")
        text = "internal error of the node; see the node's log"
        await self._send_message(channel.ChannelRefusal(request.id, RefusalCode.OUTCOME_UNKNOWN, text))

    async def _send_message(self, message: channel.MessageToServer) -> None:
        """Encode a message and send it to the server."""
        await self._send(channel.encode_message(message))


async def _call(release: Callable[[], Awaitable[None]]) -> None:
    await release()


async def _yield_body(body: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the body as the only chunk."""
    yield body
