"""Renewal of leases, on a thread with its own channel.

The thread never waits for the event loop, because a long computation on the loop must not let a lease expire. The
thread knows leases and clocks only; it never reads or writes records.
"""

import logging
import threading
from typing import Final

import grpc  # type: ignore[import-untyped]  # gRPC carries no types; its errors and channels stay in this module.
from aetcd.rpc import rpc_pb2_grpc as stubs  # type: ignore[import-untyped]  # Generated code without types.

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import (
    CHANNEL_OPTIONS,
    REQUIRE_LEADER_METADATA,
    STALE_TOKEN_TEXTS,
    load_credentials,
)
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.world import World

log = logging.getLogger(__name__)

EXPIRED_FOREVER_S: Final = float("-inf")
"""The validity end of a lease that has ended, in monotonic seconds: earlier than any time."""

RENEWAL_SHARE: Final = 1 / 3
"""A lease is renewed after this share of its time to live, so that two more attempts fit before it expires."""

FAILURES_UNTIL_LOGGED: Final = 2
"""When a member ends, one attempt usually fails, and the next one calls another member."""


class KeepaliveLease:
    """A lease that the keepalive thread renews, as that thread and the event loop share it. Each field is assigned atomically, so no lock is needed."""

    def __init__(self, lease_id: int, ttl_s: float, sent_s: float) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.due_s = sent_s + ttl_s * RENEWAL_SHARE
        self.has_ended = False
        self._valid_until_s = sent_s + ttl_s

    def get_valid_until_s(self) -> float:
        return EXPIRED_FOREVER_S if self.has_ended else self._valid_until_s

    def record_renewal(self, *, sent_s: float, ttl_s: float) -> None:
        """Record a renewal. etcd counts from the receipt of the renewal; we count from before it was sent, which is
        earlier."""
        self._valid_until_s = max(self._valid_until_s, sent_s + ttl_s)
        self.due_s = sent_s + ttl_s * RENEWAL_SHARE


class LeaseKeepalive:
    """Renews every lease after a third of its time to live, and more often while renewals fail."""

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._leases: dict[int, KeepaliveLease] = {}
        self._changed = threading.Event()
        self._stopped = False
        self._current = 0
        self._failures = 0
        """Failed attempts since the last renewal."""
        self._channel: ProtobufMessage | None = None
        self._metadata: tuple[tuple[str, str], ...] | None = None
        self._thread: threading.Thread | None = None

    def add(self, lease: KeepaliveLease) -> None:
        """Start to renew a lease; starts the thread for the first one."""
        self._leases[lease.id] = lease
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="etcd lease keepalive", daemon=True)
            self._thread.start()
        self._changed.set()

    def remove(self, lease_id: int) -> None:
        self._leases.pop(lease_id, None)

    def stop(self) -> None:
        """End the thread; the leases then expire. Waits for a renewal in progress."""
        self._stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Renew leases when they are due, until stopped."""
        while not self._stopped:
            now_s = self._world.monotonic_s()
            leases = [lease for lease in tuple(self._leases.values()) if not lease.has_ended]
            for lease in leases:
                if lease.due_s <= now_s and not self._stopped:
                    self._renew(lease)
            next_s = min((lease.due_s for lease in leases), default=None)
            pause_s = None if next_s is None else max(next_s - self._world.monotonic_s(), 0.0)
            self._changed.wait(pause_s)
            self._changed.clear()
        self._disconnect()

    def _renew(self, lease: KeepaliveLease) -> None:
        """Renew one lease, or schedule an earlier retry."""
        sent_s = self._world.monotonic_s()
        timeout_s = min(lease.ttl_s / 4, self._settings.request_timeout_s)
        try:
            channel = self._connect(timeout_s)
            call = stubs.LeaseStub(channel).LeaseKeepAlive(
                iter((messages.build_lease_renewal(lease.id),)), timeout=timeout_s, metadata=self._metadata
            )
            reply = next(call)
            call.cancel()
        except (grpc.RpcError, StopIteration) as error:
            self._log_failure(error)
            self._on_failure(error)
            lease.due_s = self._world.monotonic_s() + lease.ttl_s / 10
            return
        self._failures = 0
        if reply.TTL > 0:
            lease.record_renewal(sent_s=sent_s, ttl_s=float(reply.TTL))
        else:
            lease.has_ended = True

    def _log_failure(self, error: Exception) -> None:
        """Log why leases are not renewed, once until a renewal succeeds."""
        self._failures += 1
        if self._failures == FAILURES_UNTIL_LOGGED:
            details = error.details() if isinstance(error, grpc.RpcError) else "the member ended the call"
            log.warning("lease not renewed, will retry reason=%s", f"{self._settings.describe()} failed: {details}")

    def _connect(self, timeout_s: float) -> ProtobufMessage:
        """Return a channel to the current member, logged in if a user is configured."""
        if self._channel is None:
            endpoint = self._settings.endpoints[self._current % len(self._settings.endpoints)]
            credentials = load_credentials(self._settings)
            self._channel = (
                grpc.secure_channel(endpoint, credentials, options=CHANNEL_OPTIONS)
                if credentials
                else grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
            )
        if self._metadata is None:
            self._metadata = (REQUIRE_LEADER_METADATA,)
            if self._settings.user:
                request = messages.build_authentication(self._settings.user, self._settings.password)
                reply = stubs.AuthStub(self._channel).Authenticate(request, timeout=timeout_s)
                self._metadata = (REQUIRE_LEADER_METADATA, ("token", reply.token))
        return self._channel

    def _on_failure(self, error: Exception) -> None:
        """Switch to the next member; drop the token if it may have caused the failure."""
        details = error.details() if isinstance(error, grpc.RpcError) else ""
        if self._metadata == (REQUIRE_LEADER_METADATA,) or any(text in (details or "") for text in STALE_TOKEN_TEXTS):
            self._metadata = None
        self._current += 1
        self._disconnect()

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
