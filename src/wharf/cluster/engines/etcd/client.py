"""Calls to etcd: channels to its members, failover between them, tokens, and what its errors mean.

No exception of gRPC leaves this module. A call ends in one of four ways: a reply; `EtcdRefusal`, a definite no;
`Unavailable`, when the request was surely not carried out; `ReplyLost`, when nobody can tell.
"""

import asyncio
import enum
from pathlib import Path
from typing import Final

import grpc  # type: ignore[import-untyped]  # gRPC carries no types; its errors and channels stay in this module.
from aetcd.rpc import rpc_pb2_grpc as stubs  # type: ignore[import-untyped]  # Generated code without types.

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.etcd.tls_check import find_tls_problem
from wharf.cluster.engines.port import LogMisconfigured, LogUnavailable
from wharf.world import World


class EtcdRefusalReason(enum.StrEnum):
    """Why etcd says no."""

    NO_SPACE = "no space"
    TOO_LARGE = "too large"
    LEASE_ENDED = "lease ended"
    COMPACTED = "compacted"
    FUTURE = "future revision"
    DENIED = "denied"
    OTHER = "other"


class EtcdRefusal(Exception):
    """A definite no: nothing happened."""

    def __init__(self, reason: EtcdRefusalReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ReplyLost(Exception):
    """The request was sent, and whether it was carried out nobody can tell."""


class WatchBroken(Exception):
    """The stream of events ended; another may be opened."""


class WatchCompacted(Exception):
    """The events asked for are compacted away up to this revision."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"compacted up to revision {revision}")
        self.revision = revision


# etcd tells its errors as a status and a text; the texts are part of its API (`api/v3rpc/rpctypes/error.go`).
_REFUSALS: Final = (
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
# The member knows that it could not even begin: it has no leader, or too much to do.
_NOT_BEGUN: Final = ("etcdserver: no leader", "etcdserver: too many requests", "failed to connect to all addresses")
_DEFINITE: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
)

_NOT_LET_IN: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
)
"""What etcd answers to a user or a password that is wrong, or where it knows none."""

# etcd bears one ping in five seconds; a dead line is found within ten. Loads and batches are larger than gRPC's default
# of 4 MB. A pool of their own keeps channels of two event loops apart.
CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_PAUSE_S: Final = 0.05
REQUIRE_LEADER_METADATA: Final = ("hasleader", "true")


def load_credentials(settings: EtcdSettings) -> ProtobufMessage | None:
    if settings.tls is None:
        return None

    def content(file: Path | None) -> bytes | None:
        if file is None:
            return None
        try:
            return file.read_bytes()
        except OSError as error:
            raise LogMisconfigured(f"the TLS file {file} for etcd cannot be read: {error.strerror}") from error

    return grpc.ssl_channel_credentials(
        content(settings.tls.ca_file), content(settings.tls.key_file), content(settings.tls.cert_file)
    )


class EtcdChannel:
    """One member of etcd."""

    def __init__(self, endpoint: str, credentials: ProtobufMessage | None) -> None:
        self.endpoint = endpoint
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
    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._channels: list[EtcdChannel] = []
        self._current = 0
        self._metadata: tuple[tuple[str, str], ...] = (REQUIRE_LEADER_METADATA,)
        self._has_token = False
        self._watches: dict[int, EtcdWatch] = {}
        self._closing: asyncio.Future[None] | None = None
        self.is_closed = True

    def open(self) -> None:
        credentials = load_credentials(self._settings)
        self._channels = [EtcdChannel(endpoint, credentials) for endpoint in self._settings.endpoints]
        self._has_token = False
        self._closing = asyncio.get_running_loop().create_future()
        self.is_closed = False

    async def close(self) -> None:
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
        """A member that is there, beginning with the one that served last."""
        for _ in range(len(self._channels)):
            if self.is_closed:
                break
            channel = self._channels[self._current % len(self._channels)]
            if channel.is_ready() or await self._dial(channel):
                if self._settings.user and not self._has_token:
                    await self._authenticate(channel)
                return channel
            self._turn_from(channel)
        if self.is_closed:
            raise LogUnavailable(f"the door to {self._settings.describe()} is closed")
        if self._settings.tls is not None:
            trouble = await find_tls_problem(self._settings.endpoints[0], self._settings.tls)
            if trouble:
                raise LogMisconfigured(f"{self._settings.describe()} cannot be spoken to: {trouble}")
        raise LogUnavailable(f"{self._settings.describe()} cannot be reached; is it running, and is the address right?")

    async def _dial(self, channel: EtcdChannel) -> bool:
        deadline = self._world.monotonic_s() + self._settings.dial_timeout_s
        state = channel.channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            remaining_s = deadline - self._world.monotonic_s()
            if self.is_closed or remaining_s <= 0 or state is grpc.ChannelConnectivity.SHUTDOWN:
                return False
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and len(self._channels) > 1:
                return False  # Another member may be there at once; this one is dialled again in the background.
            try:
                async with asyncio.timeout(remaining_s):
                    await channel.channel.wait_for_state_change(state)
            except (TimeoutError, grpc.aio.UsageError):
                return False
            state = channel.channel.get_state(try_to_connect=True)
        return True

    def _turn_from(self, channel: EtcdChannel) -> None:
        """Prefer another member from now on, unless somebody turned already."""
        if self._channels and self._channels[self._current % len(self._channels)] is channel:
            self._current += 1

    async def _authenticate(self, channel: EtcdChannel) -> None:
        request = messages.build_authentication(self._settings.user, self._settings.password)
        try:
            reply = await channel.authenticate(request, timeout=self._settings.request_timeout_s)
        except grpc.aio.AioRpcError as error:
            text = error.details() or error.code().name
            is_lasting = error.code() in _NOT_LET_IN and not any(mark in text for mark in STALE_TOKEN_TEXTS)
            kind = LogMisconfigured if is_lasting else LogUnavailable
            raise kind(f"{self._settings.describe()} does not let the user {self._settings.user} in: {text}") from error
        self._metadata = (REQUIRE_LEADER_METADATA, ("token", reply.token))
        self._has_token = True

    # --- calls ---

    async def commit_transaction(self, transaction: ProtobufMessage) -> ProtobufMessage:
        """Send a transaction that writes: at most once."""
        return await self._call("txn", transaction, again=False)

    async def send_request(self, method: str, request: ProtobufMessage) -> ProtobufMessage:
        """A request that may be carried out twice without harm: it goes to the next member when one fails."""
        try:
            return await self._call(method, request, again=True)
        except ReplyLost as error:
            raise LogUnavailable(str(error)) from error

    async def _call(self, method: str, request: ProtobufMessage, *, again: bool) -> ProtobufMessage:
        deadline = self._world.monotonic_s() + self._settings.request_timeout_s
        while True:
            channel = await self.get_connected_channel()
            remaining_s = deadline - self._world.monotonic_s()
            # A request that may go to another member must not spend all of its time on one that hangs.
            attempt_s = remaining_s / 2 if again and len(self._channels) > 1 else remaining_s
            try:
                return await getattr(channel, method)(request, timeout=max(attempt_s, 0.01), metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                failure = self._meaning_of(error)
                if isinstance(failure, EtcdRefusal):
                    raise failure from error
                if self._has_token and any(text in (error.details() or "") for text in STALE_TOKEN_TEXTS):
                    self._has_token = False
                else:
                    self._turn_from(channel)
                may_repeat = again or isinstance(failure, LogUnavailable)
                if not may_repeat or self._world.monotonic_s() + _PAUSE_S >= deadline:
                    raise failure from error
            except grpc.aio.UsageError as error:
                # The channel was closed under us, before or after the request left.
                raise ReplyLost(f"the door to {self._settings.describe()} is closed") from error
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            await asyncio.sleep(_PAUSE_S)

    def _raise_if_closed(self) -> None:
        """Closing a channel cancels its calls: that must not look as if the caller's task were cancelled."""
        task = asyncio.current_task()
        if self.is_closed and (task is None or not task.cancelling()):
            raise ReplyLost(f"the door to {self._settings.describe()} is closed") from None

    def _meaning_of(self, error: ProtobufMessage) -> EtcdRefusal | LogUnavailable | ReplyLost:
        text = error.details() or error.code().name
        sentence = f"{self._settings.describe()} did not answer as hoped: {text}"
        if any(mark in text for mark in (*_NOT_BEGUN, *STALE_TOKEN_TEXTS)):
            return LogUnavailable(sentence)
        for mark, reason in _REFUSALS:
            if mark in text:
                return EtcdRefusal(reason, f"{self._settings.describe()} refused: {text}")
        if error.code() in _DEFINITE:
            return EtcdRefusal(EtcdRefusalReason.OTHER, f"{self._settings.describe()} refused: {text}")
        return ReplyLost(sentence)

    # --- watches ---

    async def open_watch(self, request: ProtobufMessage) -> "EtcdWatch":
        channel = await self.get_connected_channel()
        assert self._closing is not None, "a connected client was opened"
        watch = EtcdWatch(self, channel, channel.watch(metadata=self._metadata))
        self._watches[id(watch)] = watch
        opening = self._world.start_task(watch.start(request), name="opening of a watch on etcd")
        try:
            # gRPC never wakes a write that waits while its channel is closed: so the closing is waited for as well.
            await asyncio.wait((opening, self._closing), return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise LogUnavailable(f"the door to {self._settings.describe()} is closed")
            opening.result()
        except BaseException:
            opening.cancel()
            watch.stop()
            raise
        return watch

    def remove_watch(self, watch: "EtcdWatch") -> None:
        self._watches.pop(id(watch), None)

    def on_watch_broken(self, channel: EtcdChannel, error: ProtobufMessage) -> str:
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        if any(text in (details or "") for text in STALE_TOKEN_TEXTS):
            self._has_token = False
        self._turn_from(channel)
        return f"the watch on {self._settings.describe()} broke off: {details}"

    def raise_if_closed(self) -> None:
        try:
            self._raise_if_closed()
        except ReplyLost as error:
            raise LogUnavailable(str(error)) from None


class EtcdWatch:
    """One stream of events."""

    def __init__(self, client: EtcdClient, channel: EtcdChannel, stream: ProtobufMessage) -> None:
        self._client = client
        self._channel = channel
        self._stream = stream

    async def start(self, request: ProtobufMessage) -> None:
        try:
            await self._stream.write(request)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise WatchBroken(self._client.on_watch_broken(self._channel, error)) from error
        except asyncio.CancelledError:
            self._client.raise_if_closed()
            raise

    async def read_response(self) -> ProtobufMessage:
        """The next response with events, or the first one, which has none."""
        try:
            response = await self._stream.read()
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            raise WatchBroken(self._client.on_watch_broken(self._channel, error)) from error
        except asyncio.CancelledError:
            self._client.raise_if_closed()
            raise
        if response is grpc.aio.EOF:
            raise WatchBroken(self._client.on_watch_broken(self._channel, "the member ended it"))
        if response.canceled:
            self.stop()
            if response.compact_revision:
                raise WatchCompacted(response.compact_revision)
            raise WatchBroken(self._client.on_watch_broken(self._channel, response.cancel_reason))
        return response

    def stop(self) -> None:
        self._client.remove_watch(self)
        self._stream.cancel()
