"""Restores of a log in etcd whose replies are lost: the engine says whether the log may have been replaced."""

# ruff: noqa: N802 (etcd's names)
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]  # gRPC carries no types.
import pytest
from aetcd.rpc import rpc_pb2_grpc as stubs  # type: ignore[import-untyped]  # Generated code without types.
from msgspec.structs import replace

from tests.cluster.engines.contract import commit, put, records
from tests.cluster.engines.kind_etcd import FreshEtcdLog
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.layout import LogKeys
from wharf.cluster.engines.port import LogEngine, LogPosition, LogUnavailable, RestoreOutcomeUnknown, StoredRecord
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("etcd")

NEW_RECORDS = [StoredRecord("jobs", f"new-{number}", number, b"new") for number in range(1, 4)]
POSITION = LogPosition(9, {"jobs": 9})


class Relay(stubs.KVServicer):  # type: ignore[misc]  # untyped base
    """A member of etcd in front of a real one. It breaks the connection at a transaction that `is_cut` selects."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.is_cut: Callable[[Any], bool] = lambda _: False
        self.is_executed = True
        """Whether a selected transaction is executed before its reply is lost."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on a free port, and yield the endpoint."""
        server = grpc.aio.server()
        stubs.add_KVServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            self._member = stubs.KVStub(channel)
            await server.start()
            try:
                yield f"127.0.0.1:{port}"
            finally:
                await server.stop(None)

    async def Range(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return await self._member.Range(request)

    async def Txn(self, request: Any, context: Any) -> Any:
        is_cut = self.is_cut(request)
        reply = await self._member.Txn(request) if self.is_executed or not is_cut else None
        if is_cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return reply


class RelayedLog:
    """A log in etcd with one record, and two engines: one calls etcd through a relay, the other one directly."""

    def __init__(self, relay: Relay, relayed: EtcdEngine, direct: LogEngine, keys: LogKeys) -> None:
        self.relay = relay
        self.relayed = relayed
        self.direct = direct
        self._keys = keys

    def activates(self, transaction: Any) -> bool:
        """Return whether the transaction activates the records of a restore."""
        return any(operation.request_put.key == self._keys.epoch for operation in transaction.success)

    def writes_records(self, transaction: Any) -> bool:
        """Return whether the transaction writes records of a restore."""
        return any(b"/r/jobs/new-" in operation.request_put.key for operation in transaction.success)

    async def restore(self) -> int:
        return await self.relayed.restore(in_one_slice(NEW_RECORDS), POSITION)

    async def list_keys(self) -> list[str]:
        """Return the keys of the jobs that other servers read."""
        return sorted(key for _, key in await records(self.direct))


async def in_one_slice(rows: Sequence[StoredRecord]) -> AsyncIterator[Sequence[StoredRecord]]:
    yield rows


@asynccontextmanager
async def relayed_log() -> AsyncIterator[RelayedLog]:
    log = FreshEtcdLog()
    relay = Relay(log.settings.endpoints[0])
    async with relay.serve() as endpoint:
        direct = await log.open_engine()
        relayed = EtcdEngine(replace(log.settings, endpoints=(endpoint,)), RealWorld())
        await commit(direct, put("old"))
        await relayed.open()
        try:
            yield RelayedLog(relay, relayed, direct, LogKeys(log.settings.prefix))
        finally:
            await relayed.close()
            await log.close()


async def test_a_restore_whose_last_reply_is_lost_has_an_unknown_outcome_although_it_happened() -> None:
    async with relayed_log() as log:
        log.relay.is_cut = log.activates

        with pytest.raises(RestoreOutcomeUnknown, match="the connection broke"):
            await log.restore()

        assert await log.list_keys() == ["new-1", "new-2", "new-3"]


async def test_a_restore_whose_last_request_is_lost_has_an_unknown_outcome_although_it_did_not_happen() -> None:
    async with relayed_log() as log:
        log.relay.is_cut, log.relay.is_executed = log.activates, False

        with pytest.raises(RestoreOutcomeUnknown, match="the connection broke"):
            await log.restore()

        assert await log.list_keys() == ["old"]


async def test_a_restore_with_an_unknown_outcome_can_be_repeated() -> None:
    async with relayed_log() as log:
        log.relay.is_cut = log.activates
        with pytest.raises(RestoreOutcomeUnknown):
            await log.restore()
        log.relay.is_cut = lambda _: False

        index = await log.restore()

        assert await log.list_keys() == ["new-1", "new-2", "new-3"]
        assert await log.direct.barrier() == index


async def test_a_restore_that_loses_the_reply_to_its_records_changes_nothing() -> None:
    async with relayed_log() as log:
        log.relay.is_cut = log.writes_records

        with pytest.raises(LogUnavailable, match="the log is unchanged") as raised:
            await log.restore()

        assert not isinstance(raised.value, RestoreOutcomeUnknown)
        assert await log.list_keys() == ["old"]
