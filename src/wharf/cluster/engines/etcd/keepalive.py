"""Keeping leases alive, on a thread with a channel of its own.

No computation on the event loop, however long, may let a lease lapse: so nothing here waits for the loop. The thread
knows leases and clocks only; it never reads or writes records.
"""

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

NEVER_VALID_S: Final = float("-inf")


class KeepaliveLease:
    """What the thread and the loop share of a lease. Each field is written whole, so no lock is needed."""

    def __init__(self, lease_id: int, ttl_s: float, sent_s: float) -> None:
        self.id = lease_id
        self.ttl_s = ttl_s
        self.due_s = sent_s + ttl_s / 3
        self.has_ended = False
        self._valid_until_s = sent_s + ttl_s

    def get_valid_until_s(self) -> float:
        return NEVER_VALID_S if self.has_ended else self._valid_until_s

    def record_renewal(self, *, sent_s: float, ttl_s: float) -> None:
        """etcd counts from the moment when it heard of the renewal, we from the moment before it was sent."""
        self._valid_until_s = max(self._valid_until_s, sent_s + ttl_s)
        self.due_s = sent_s + ttl_s / 3


class LeaseKeepalive:
    """Renews every lease given to it at a third of its time, and more often while that fails."""

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self._settings = settings
        self._world = world
        self._leases: dict[int, KeepaliveLease] = {}
        self._changed = threading.Event()
        self._stopped = False
        self._current = 0
        self._channel: ProtobufMessage | None = None
        self._metadata: tuple[tuple[str, str], ...] | None = None
        self._thread: threading.Thread | None = None

    def add(self, lease: KeepaliveLease) -> None:
        self._leases[lease.id] = lease
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="etcd lease keepalive", daemon=True)
            self._thread.start()
        self._changed.set()

    def remove(self, lease_id: int) -> None:
        self._leases.pop(lease_id, None)

    def stop(self) -> None:
        """End the thread; the leases run out by themselves. Waits for a renewal that is under way."""
        self._stopped = True
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
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
        sent_s = self._world.monotonic_s()
        within_s = min(lease.ttl_s / 4, self._settings.request_timeout_s)
        try:
            channel = self._connect(within_s)
            call = stubs.LeaseStub(channel).LeaseKeepAlive(
                iter((messages.build_lease_renewal(lease.id),)), timeout=within_s, metadata=self._metadata
            )
            reply = next(call)
            call.cancel()
        except (grpc.RpcError, StopIteration) as error:
            self._on_failure(error)
            lease.due_s = self._world.monotonic_s() + lease.ttl_s / 10
            return
        if reply.TTL > 0:
            lease.record_renewal(sent_s=sent_s, ttl_s=float(reply.TTL))
        else:
            lease.has_ended = True

    def _connect(self, within_s: float) -> ProtobufMessage:
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
                reply = stubs.AuthStub(self._channel).Authenticate(request, timeout=within_s)
                self._metadata = (REQUIRE_LEADER_METADATA, ("token", reply.token))
        return self._channel

    def _on_failure(self, error: Exception) -> None:
        """Try the next member; and if the token was the trouble, get another."""
        details = error.details() if isinstance(error, grpc.RpcError) else ""
        if self._metadata == (REQUIRE_LEADER_METADATA,) or any(text in (details or "") for text in STALE_TOKEN_TEXTS):
            self._metadata = None
        self._current += 1
        self._disconnect()

    def _disconnect(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
