"""Calls to etcd: channels to its members, failover, authentication tokens, and the meaning of its errors.

No gRPC exception leaves this module. A call has one of four results: a reply; `EtcdRefusal`, etcd refused and changed
nothing; `LogUnavailable`, the request was certainly not executed; `ReplyLost`, it is unknown whether it was executed.
"""

import asyncio
import enum
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import grpc  # type: ignore[import-untyped]  # gRPC carries no types; its errors and channels stay in this module.
from aetcd.rpc import rpc_pb2_grpc as stubs  # type: ignore[import-untyped]  # Generated code without types.

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.probes import ReplyProbes
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.etcd.tls_check import TlsDiagnosis
from wharf.cluster.engines.port import LogMisconfigured, LogUnavailable
from wharf.world import World
from wharf.world.backoff import Backoff
from wharf.world.failover import FailoverAddresses


class EtcdRefusalReason(enum.StrEnum):
    """Why etcd refused a request."""

    NO_SPACE = "no space"
    TOO_LARGE = "too large"
    LEASE_ENDED = "lease ended"
    COMPACTED = "compacted"
    FUTURE = "future revision"
    DENIED = "denied"
    OTHER = "other"


class EtcdRefusal(Exception):
    """etcd refused the request and changed nothing."""

    def __init__(self, reason: EtcdRefusalReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ReplyLost(Exception):
    """The request was sent, but it is unknown whether it was executed."""


class _Abandoned(Exception):
    """The member turned out to be silent, or to have lost the request, before its reply."""


class WatchBroken(Exception):
    """The stream of events ended; a new watch may be opened."""


class WatchCompacted(Exception):
    """The requested events are compacted up to this revision."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"compacted up to revision {revision}")
        self.revision = revision


# etcd reports errors as a status and a text; the texts are part of its API (`api/v3rpc/rpctypes/error.go`).
_REFUSAL_TEXTS: Final = (
    ("database space exceeded", EtcdRefusalReason.NO_SPACE),
    ("request is too large", EtcdRefusalReason.TOO_LARGE),
    ("message larger than max", EtcdRefusalReason.TOO_LARGE),
    ("too many operations in txn request", EtcdRefusalReason.TOO_LARGE),
    ("requested lease not found", EtcdRefusalReason.LEASE_ENDED),
    ("required revision has been compacted", EtcdRefusalReason.COMPACTED),
    ("required revision is a future revision", EtcdRefusalReason.FUTURE),
    ("permission denied", EtcdRefusalReason.DENIED),
    ("user name is empty", EtcdRefusalReason.DENIED),
    ("authentication failed", EtcdRefusalReason.DENIED),
)
STALE_TOKEN_TEXTS: Final = ("invalid auth token", "revision in header is old")
_SILENT_STATUSES: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""How gRPC reports a member that sends no reply."""
# The member could not start the request: it has no leader, or too many requests.
_NOT_STARTED_TEXTS: Final = (
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "failed to connect to all addresses",
)
_REFUSED_STATUSES: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)

_LOGIN_REFUSED_STATUSES: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
"""How etcd refuses a wrong user or password, or a login while its access control is off."""

# etcd accepts one ping in five seconds; a dead connection is found within ten. Loads and batches exceed gRPC's
# default limit of 4 MB. A local subchannel pool separates the channels of two event loops.
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_MIN_RETRY_DELAY_S: Final = 0.05
"""The longest delay after a first failed call; it doubles with each further failure."""
_MAX_RETRY_DELAY_S: Final = 0.5
"""The longest delay before a call is repeated. Servers that lost etcd together must not return together."""
REQUIRE_LEADER_METADATA: Final = ("hasleader", "true")


class TlsFiles(NamedTuple):
    """The content of the TLS files for etcd."""

    ca: bytes | None
    key: bytes | None
    cert: bytes | None


def read_tls_files(settings: EtcdSettings) -> TlsFiles | None:
    """Read the TLS files; `None` without TLS. Raises `LogMisconfigured`."""
    if settings.tls is None:
        return None

    def read_file(file: Path | None) -> bytes | None:
        if file is None:
            return None
        try:
            return file.read_bytes()
        except OSError as error:
            raise LogMisconfigured(f"the TLS file {file} for etcd cannot be read: {error.strerror}") from error

    return TlsFiles(
        read_file(settings.tls.ca_file), read_file(settings.tls.key_file), read_file(settings.tls.cert_file)
    )


def build_credentials(files: TlsFiles | None) -> ProtobufMessage | None:
    """Return the channel credentials; `None` without TLS."""
    return None if files is None else grpc.ssl_channel_credentials(files.ca, files.key, files.cert)


def load_credentials(settings: EtcdSettings) -> ProtobufMessage | None:
    """Read the TLS files and return the channel credentials; None without TLS. Raises `LogMisconfigured`."""
    return build_credentials(read_tls_files(settings))


class EtcdChannel:
    """The connection to one etcd member, with the calls that this package uses."""

    def __init__(self, endpoint: str, tls_files: TlsFiles | None, *, position: int = 0) -> None:
        credentials = build_credentials(tls_files)
        self.tls_files = tls_files
        self.position = position  # Among the configured endpoints.
        self.endpoint = endpoint
        self.raft_term = 0
        self.channel = (
            grpc.aio.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        )
        kv = stubs.KVStub(self.channel)
        lease = stubs.LeaseStub(self.channel)
        maintenance = stubs.MaintenanceStub(self.channel)
        self.txn = kv.Txn
        self.range = kv.Range
        self.compact = kv.Compact
        self.grant = lease.LeaseGrant
        self.revoke = lease.LeaseRevoke
        self.status = maintenance.Status
        self.alarm = maintenance.Alarm
        self.watch = stubs.WatchStub(self.channel).Watch
        self.authenticate = stubs.AuthStub(self.channel).Authenticate

    def is_ready(self) -> bool:
        return bool(self.channel.get_state() is grpc.ChannelConnectivity.READY)


class EtcdClient:
    """Calls to etcd with failover between its members."""

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._channels: list[EtcdChannel] = []
        self._members = FailoverAddresses(world, len(settings.endpoints))
        self._probes = ReplyProbes(world, self._members)
        self._tls_diagnosis = TlsDiagnosis(world, settings)
        self._metadata: tuple[tuple[str, str], ...] = (REQUIRE_LEADER_METADATA,)
        self._has_token = False
        self._watches: dict[int, EtcdWatch] = {}
        self._closing: asyncio.Future[None] | None = None
        self.is_closed = True

    def open(self) -> None:
        tls_files = read_tls_files(self._settings)
        self._channels = [
            EtcdChannel(endpoint, tls_files, position=position)
            for position, endpoint in enumerate(self._settings.endpoints)
        ]
        self._has_token = False
        self._closing = asyncio.get_running_loop().create_future()
        self.is_closed = False

    async def close(self) -> None:
        """Stop all watches and close the channels."""
        self.is_closed = True
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)
        for watch in list(self._watches.values()):
            watch.stop()
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.channel.close()

    # --- which member ---

    async def get_connected_channel(self) -> EtcdChannel:
        """Return a connected member, starting with the one that served last. Raises `LogUnavailable`."""
        for _ in range(len(self._channels)):
            if self.is_closed:
                break
            channel = self._channels[self._members.current]
            is_connected = channel.is_ready() or await self._dial(channel)
            if not is_connected and (renewed := await self._renew_channel(channel)) is not None:
                channel, is_connected = renewed, await self._dial(renewed)
            if is_connected:
                if self._settings.user and not self._has_token:
                    await self._authenticate(channel)
                return channel
            self._members.on_failure(channel.position)
        tls_problem = "" if self.is_closed else await self._tls_diagnosis.find_problem()
        if self.is_closed:
            raise LogUnavailable(f"the connection to {self._settings.describe()} is closed")
        if tls_problem:
            kind = LogMisconfigured if self._tls_diagnosis.is_lasting else LogUnavailable
            raise kind(f"{self._settings.describe()} cannot be used: {tls_problem}")
        raise LogUnavailable(f"{self._settings.describe()} cannot be reached; is it running, and is the address right?")

    async def _renew_channel(self, channel: EtcdChannel) -> EtcdChannel | None:
        """Return a new channel to the same member if the TLS files were replaced since it was created, else `None`.

        gRPC reads certificates once for each channel. Without a new one, renewed certificates would need a restart.
        """
        if channel.tls_files is None:
            return None
        try:
            tls_files = await asyncio.to_thread(read_tls_files, self._settings)
        except LogMisconfigured:
            return None  # They are being replaced. `TlsDiagnosis` reports what stays wrong.
        if self.is_closed or tls_files == channel.tls_files:
            return None
        current = self._channels[channel.position]
        if current is not channel:
            return current  # Another call has replaced it.
        renewed = self._channels[channel.position] = EtcdChannel(channel.endpoint, tls_files, position=channel.position)
        await channel.channel.close()
        return renewed

    async def _dial(self, channel: EtcdChannel) -> bool:
        """Connect to a member. Returns False when it does not connect within the dial timeout."""
        deadline = self._world.monotonic_s() + self._settings.dial_timeout_s
        state = channel.channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            remaining_s = deadline - self._world.monotonic_s()
            if self.is_closed or remaining_s <= 0 or state is grpc.ChannelConnectivity.SHUTDOWN:
                return False
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and len(self._channels) > 1:
                return False  # Try another member; gRPC keeps dialling this one.
            try:
                async with asyncio.timeout(remaining_s):
                    await channel.channel.wait_for_state_change(state)
            except (TimeoutError, grpc.aio.UsageError):
                return False
            state = channel.channel.get_state(try_to_connect=True)
        return True

    async def _authenticate(self, channel: EtcdChannel) -> None:
        """Log in and store the token. Raises `LogMisconfigured` if etcd rejects the login."""
        request = messages.build_authentication(self._settings.user, self._settings.password)
        try:
            reply = await channel.authenticate(request, timeout=self._settings.request_timeout_s)
        except grpc.aio.AioRpcError as error:
            text = error.details() or error.code().name
            is_lasting = error.code() in _LOGIN_REFUSED_STATUSES and not any(mark in text for mark in STALE_TOKEN_TEXTS)
            kind = LogMisconfigured if is_lasting else LogUnavailable
            raise kind(
                f"{self._settings.describe()} rejects the login of user {self._settings.user}: {text}"
            ) from error
        self._metadata = (REQUIRE_LEADER_METADATA, ("token", reply.token))
        self._has_token = True

    async def check_member(self, position: int, *, timeout_s: float) -> str:
        """Return why a member cannot serve requests, as the end of a sentence; empty if it can. Selects no member."""
        if self.is_closed:
            return "is not connected"
        channel = self._channels[position]
        try:
            # Without the demand for a leader, a member that has none replies.
            status = await channel.status(messages.build_status(), timeout=timeout_s, metadata=self._metadata[1:])
        except grpc.aio.AioRpcError as error:
            if error.code() not in _SILENT_STATUSES:
                return ""  # It refuses, such as a token that has expired: it runs, and requests report the reason.
            await self._renew_channel(channel)
            return "has not replied"
        except grpc.aio.UsageError:
            return "is not connected"  # The channel was closed during the call.
        return "" if status.leader else "has known no leader"

    # --- calls ---

    async def commit_transaction(self, transaction: ProtobufMessage) -> ProtobufMessage:
        """Send a transaction that writes, at most once."""
        return await self._call("txn", transaction, is_repeatable=False)

    async def send_request(self, method: str, request: ProtobufMessage) -> ProtobufMessage:
        """Send a request that is safe to repeat: if a member fails, it goes to the next one."""
        try:
            return await self._call(method, request, is_repeatable=True)
        except ReplyLost as error:
            raise LogUnavailable(str(error)) from error

    async def _call(self, method: str, request: ProtobufMessage, *, is_repeatable: bool) -> ProtobufMessage:
        """Send a request until it has a result or the request timeout has passed.

        If it is repeatable, each member gets a part of the time, because a frozen member never replies. Otherwise it ends
        with `ReplyLost` as soon as its reply is known to be lost.
        """
        budget = self._members.start_call(self._settings.request_timeout_s)
        backoff = Backoff(self._world.random, min_s=_MIN_RETRY_DELAY_S, max_s=_MAX_RETRY_DELAY_S)
        while True:
            channel = await self.get_connected_channel()
            attempt = budget.next_attempt(channel.position)
            attempt_s = attempt.timeout_s if is_repeatable else budget.remaining_s
            try:
                reply = await self._send(
                    channel, method, request, timeout_s=max(attempt_s, 0.01), is_repeatable=is_repeatable
                )
                self._members.on_reply(channel.position)
                channel.raft_term = max(channel.raft_term, int(reply.header.raft_term))
                return reply
            except _Abandoned as error:
                if not is_repeatable or budget.remaining_s <= 0:
                    raise ReplyLost(f"{self._settings.describe()} failed: {channel.endpoint} does not reply") from error
                continue
            except grpc.aio.AioRpcError as error:
                failure = self._translate_error(error)
                if isinstance(failure, EtcdRefusal):
                    raise failure from error
                if self._has_token and any(text in (error.details() or "") for text in STALE_TOKEN_TEXTS):
                    self._has_token = False
                elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._members.on_silence(attempt)
                else:
                    self._members.on_failure(channel.position)
                may_repeat = is_repeatable or isinstance(failure, LogUnavailable)
                delay_s = backoff.next_delay_s()
                if not may_repeat or budget.remaining_s <= delay_s:
                    raise failure from error
            except grpc.aio.UsageError as error:
                # The channel was closed during the call, before or after the request was sent.
                raise ReplyLost(f"the connection to {self._settings.describe()} is closed") from error
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            await asyncio.sleep(delay_s)

    async def _send(
        self, channel: EtcdChannel, method: str, request: ProtobufMessage, *, timeout_s: float, is_repeatable: bool
    ) -> ProtobufMessage:
        """Send a request to one member and return its reply. Raises `_Abandoned`, or what gRPC raises."""
        call = getattr(channel, method)(request, timeout=timeout_s, metadata=self._metadata)
        is_abandoned = False

        def abandon() -> None:
            nonlocal is_abandoned
            is_abandoned = True
            call.cancel()

        if is_repeatable:
            watching = self._members.watch_silence(channel.position, abandon)
        else:
            watching = self._probes.end_if_lost(channel, self._metadata, abandon)
        try:
            with watching:
                return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if is_abandoned and not self.is_closed and (task is None or not task.cancelling()):
                raise _Abandoned from None
            raise

    def _raise_if_closed(self) -> None:
        """Raise `ReplyLost` if the client was closed: closing a channel cancels its calls, which must not look like a
        cancellation of the caller's task."""
        task = asyncio.current_task()
        if self.is_closed and (task is None or not task.cancelling()):
            raise ReplyLost(f"the connection to {self._settings.describe()} is closed") from None

    def _translate_error(self, error: ProtobufMessage) -> EtcdRefusal | LogUnavailable | ReplyLost:
        """Return a gRPC error as one of three: refused, certainly not executed, or unknown whether it was executed."""
        text = error.details() or error.code().name
        sentence = f"{self._settings.describe()} failed: {text}"
        if any(mark in text for mark in (*_NOT_STARTED_TEXTS, *STALE_TOKEN_TEXTS)):
            return LogUnavailable(sentence)
        for mark, reason in _REFUSAL_TEXTS:
            if mark in text:
                return EtcdRefusal(reason, f"{self._settings.describe()} refused: {text}")
        if error.code() in _REFUSED_STATUSES:
            return EtcdRefusal(EtcdRefusalReason.OTHER, f"{self._settings.describe()} refused: {text}")
        return ReplyLost(sentence)

    # --- watches ---

    async def open_watch(self, request: ProtobufMessage) -> "EtcdWatch":
        """Open a watch. Raises `LogUnavailable` or `WatchBroken`."""
        channel = await self.get_connected_channel()
        assert self._closing is not None, "a connected client was opened"
        watch = EtcdWatch(self, channel, channel.watch(metadata=self._metadata))
        watch.exit_stack.enter_context(self._members.watch_silence(channel.position, watch.abandon))
        self._watches[id(watch)] = watch
        opening = self._world.start_task(watch.start(request), name="opening of a watch on etcd")
        try:
            # gRPC never wakes a write that waits on a closed channel, so wait for the closing as well.
            await asyncio.wait((opening, self._closing), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise LogUnavailable(f"the connection to {self._settings.describe()} is closed")
            opening.result()
        except BaseException:
            opening.cancel()
            watch.stop()
            raise
        return watch

    def remove_watch(self, watch: "EtcdWatch") -> None:
        self._watches.pop(id(watch), None)

    def on_watch_broken(self, channel: EtcdChannel, error: ProtobufMessage) -> str:
        """Switch to another member after a watch failed, and return the reason as a sentence."""
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if any(text in (details or "") for text in STALE_TOKEN_TEXTS):
            self._has_token = False
        self._members.on_failure(channel.position)
        return f"the watch on {self._settings.describe()} ended: {details}"

    def raise_if_closed(self) -> None:
        """Raise `LogUnavailable` if the client was closed."""
        try:
            self._raise_if_closed()
        except ReplyLost as error:
            raise LogUnavailable(str(error)) from None


class EtcdWatch:
    """One stream of events from etcd."""

    def __init__(self, client: EtcdClient, channel: EtcdChannel, stream: ProtobufMessage) -> None:
        self._client = client
        self._channel = channel
        self._stream = stream
        self._is_abandoned = False
        self.exit_stack = ExitStack()
        """Ends the subscription to the silence of the member."""

    async def start(self, request: ProtobufMessage) -> None:
        """Send the request that creates the watch."""
        try:
            await self._stream.write(request)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise WatchBroken(self._client.on_watch_broken(self._channel, error)) from error
        except asyncio.CancelledError:
            self._client.raise_if_closed()
            raise

    async def read_response(self) -> ProtobufMessage:
        """Return the next response of the watch. The first one only confirms the watch and has no events."""
        try:
            response = await self._stream.read()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            raise WatchBroken(self._client.on_watch_broken(self._channel, error)) from error
        except asyncio.CancelledError:
            self._client.raise_if_closed()
            task = asyncio.current_task()
            if self._is_abandoned and (task is None or not task.cancelling()):
                raise WatchBroken(f"the watch ended, because {self._channel.endpoint} does not reply") from None
            raise
        if response is grpc.aio.EOF:
            raise WatchBroken(self._client.on_watch_broken(self._channel, "the member ended the stream"))
        if response.canceled:
            self.stop()
            if response.compact_revision:
                raise WatchCompacted(response.compact_revision)
            raise WatchBroken(self._client.on_watch_broken(self._channel, response.cancel_reason))
        return response

    def abandon(self) -> None:
        """End the watch, because its member does not reply to other requests. Its reader gets `WatchBroken`."""
        self._is_abandoned = True
        self._stream.cancel()

    def stop(self) -> None:
        self.exit_stack.close()
        self._client.remove_watch(self)
        self._stream.cancel()
