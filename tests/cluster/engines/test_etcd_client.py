"""Calls to etcd against members that reply what the test wants: errors, failover, tokens, watches and renewals of leases."""

# ruff: noqa: N802 (etcd's names)
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]  # gRPC carries no types.
import pytest
from aetcd.rpc import rpc_pb2 as rpc  # type: ignore[import-untyped]  # Generated code without types.
from aetcd.rpc import rpc_pb2_grpc as stubs

from tests.waiting import wait_on_loop_until
from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import (
    EtcdClient,
    EtcdRefusal,
    EtcdRefusalReason,
    ReplyLost,
    WatchBroken,
    WatchCompacted,
)
from wharf.cluster.engines.etcd.keepalive import KeepaliveLease, LeaseKeepalive
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogMisconfigured, LogUnavailable
from wharf.world import RealWorld

Status = grpc.StatusCode
WORLD = RealWorld()
READ = messages.build_range(b"k", b"")
WRITE = messages.build_transaction(success=[messages.build_put(b"k", b"v")])
WATCH = messages.build_watch(b"k", b"", revision=1)
Answer = tuple[Any, str] | str | None
"""A status and a text; "hang"; or None for a good reply."""


class ScriptedMember(stubs.KVServicer, stubs.AuthServicer, stubs.WatchServicer, stubs.LeaseServicer):  # type: ignore[misc]  # untyped bases
    """A member of etcd that gives the next of `answers` to each call, and good replies after them."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.login_answers: list[Answer] = []
        self.calls: list[str] = []
        self.tokens: list[str] = []
        self.logins: list[tuple[str, str]] = []
        self.watch_responses: asyncio.Queue[Any] = asyncio.Queue()
        self.ttls: list[int] = []
        self.has_required_leader = True

    async def start(self) -> None:
        self._server = grpc.aio.server()
        for add in (
            stubs.add_KVServicer_to_server, stubs.add_AuthServicer_to_server, stubs.add_WatchServicer_to_server,
            stubs.add_LeaseServicer_to_server,
        ):  # fmt: skip
            add(self, self._server)
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def _answer(self, call: str, context: Any, answers: list[Answer]) -> None:
        self.calls.append(call)
        metadata = dict(context.invocation_metadata())
        if call != "login":
            self.tokens.append(metadata.get("token", ""))
            self.has_required_leader &= metadata.get("hasleader") == "true"
        answer = answers.pop(0) if answers else None
        if answer == "hang":
            await asyncio.Event().wait()
        elif answer is not None:
            await context.abort(*answer)

    async def Range(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        await self._answer("range", context, self.answers)
        return rpc.RangeResponse(count=7)

    async def Txn(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        await self._answer("txn", context, self.answers)
        return rpc.TxnResponse(succeeded=True)

    async def Authenticate(self, request: Any, context: Any) -> Any:
        self.logins.append((request.name, request.password))
        await self._answer("login", context, self.login_answers)
        return rpc.AuthenticateResponse(token=f"token-{len(self.logins)}")

    async def Watch(self, request_iterator: Any, context: Any) -> Any:
        await self._answer("watch", context, self.answers)
        await anext(aiter(request_iterator))
        while (response := await self.watch_responses.get()) is not None:
            if isinstance(response, tuple):
                await context.abort(*response)
            yield response

    async def LeaseKeepAlive(self, request_iterator: Any, context: Any) -> Any:
        await self._answer("keepalive", context, self.answers)
        async for request in request_iterator:
            yield rpc.LeaseKeepAliveResponse(ID=request.ID, TTL=self.ttls.pop(0) if self.ttls else 600)


@asynccontextmanager
async def members(count: int = 1) -> AsyncIterator[list[ScriptedMember]]:
    started = [ScriptedMember() for _ in range(count)]
    for member in started:
        await member.start()
    try:
        yield started
    finally:
        for member in started:
            await member.stop()


@asynccontextmanager
async def client_of(*members: ScriptedMember, timeout_s: float = 20.0, **options: Any) -> AsyncIterator[EtcdClient]:
    endpoints = tuple(member.endpoint for member in members)
    client = EtcdClient(EtcdSettings(endpoints=endpoints, request_timeout_s=timeout_s, **options), WORLD)
    client.open()
    try:
        yield client
    finally:
        await client.close()


# --- errors ---


REFUSALS = [
    (Status.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", EtcdRefusalReason.NO_SPACE),
    (Status.INVALID_ARGUMENT, "etcdserver: request is too large", EtcdRefusalReason.TOO_LARGE),
    (Status.RESOURCE_EXHAUSTED, "trying to send message larger than max", EtcdRefusalReason.TOO_LARGE),
    (Status.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", EtcdRefusalReason.TOO_LARGE),
    (Status.NOT_FOUND, "etcdserver: requested lease not found", EtcdRefusalReason.LEASE_ENDED),
    (Status.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", EtcdRefusalReason.COMPACTED),
    (Status.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", EtcdRefusalReason.FUTURE),
    (Status.PERMISSION_DENIED, "etcdserver: permission denied", EtcdRefusalReason.DENIED),
    (Status.INVALID_ARGUMENT, "etcdserver: user name is empty", EtcdRefusalReason.DENIED),
    (Status.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", EtcdRefusalReason.DENIED),
    *(
        (status, "odd", EtcdRefusalReason.OTHER)
        for status in (
            Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION, Status.PERMISSION_DENIED, Status.UNAUTHENTICATED,
            Status.OUT_OF_RANGE, Status.NOT_FOUND, Status.RESOURCE_EXHAUSTED, Status.UNIMPLEMENTED,
        )
    ),
]  # fmt: skip


async def test_a_refusal_has_its_reason_and_is_not_repeated() -> None:
    async with members() as (member,), client_of(member) as client:
        for status, text, reason in REFUSALS:
            member.answers = [(status, text)]
            with pytest.raises(EtcdRefusal) as refusal:
                await client.commit_transaction(WRITE)
            assert (refusal.value.reason, str(refusal.value)) == (
                reason,
                f"etcd at {member.endpoint} refused: {text}",
            )
        assert len(member.calls) == len(REFUSALS)
        assert member.has_required_leader


async def test_a_write_whose_reply_is_lost_is_not_sent_again_and_a_read_is() -> None:
    async with members() as (member,), client_of(member) as client:
        for status in (Status.UNAVAILABLE, Status.UNKNOWN, Status.INTERNAL, Status.DEADLINE_EXCEEDED):
            member.answers, member.calls = [(status, "the connection broke")], []
            with pytest.raises(ReplyLost, match="failed: the connection broke"):
                await client.commit_transaction(WRITE)
            assert member.calls == ["txn"]

            member.answers, member.calls = [(status, "the connection broke")] * 2, []
            assert (await client.send_request("range", READ)).count == 7
            assert member.calls == ["range"] * 3


@pytest.mark.parametrize("text", ["etcdserver: no leader", "etcdserver: too many requests"])
async def test_a_write_that_a_member_did_not_start_is_sent_again(text: str) -> None:
    async with members() as (member,), client_of(member) as client:
        member.answers = [(Status.UNAVAILABLE, text)] * 2

        assert (await client.commit_transaction(WRITE)).succeeded
        assert member.calls == ["txn"] * 3


async def test_a_request_that_fails_until_its_timeout_is_unavailable() -> None:
    async with members() as (member,), client_of(member, timeout_s=0.3) as client:
        for call in (client.commit_transaction(WRITE), client.send_request("range", READ)):
            member.answers, began_s = [(Status.UNAVAILABLE, "etcdserver: no leader")] * 99, WORLD.monotonic_s()

            with pytest.raises(LogUnavailable, match="failed: etcdserver: no leader"):
                await call
            assert WORLD.monotonic_s() - began_s < 5.0
        assert len(member.calls) > 2


async def test_a_member_that_never_replies_is_given_up_after_the_timeout() -> None:
    async with members() as (member,), client_of(member, timeout_s=0.2) as client:
        member.answers = ["hang"]
        with pytest.raises(ReplyLost):
            await client.commit_transaction(WRITE)
        member.answers = ["hang"] * 9
        with pytest.raises(LogUnavailable):
            await client.send_request("range", READ)


# --- failover ---


async def test_a_failed_member_is_left_for_the_next_one() -> None:
    async with members(2) as (first, second), client_of(first, second) as client:
        first.answers = [(Status.UNAVAILABLE, "the connection broke")]

        await client.send_request("range", READ)
        await client.commit_transaction(WRITE)

        assert (first.calls, second.calls) == (["range"], ["range", "txn"])


async def test_a_member_that_is_down_is_skipped() -> None:
    async with members(2) as (first, second), client_of(first, second) as client:
        await first.stop()

        assert (await client.commit_transaction(WRITE)).succeeded
        assert second.calls == ["txn"]


async def test_a_read_leaves_a_silent_member_before_its_timeout() -> None:
    async with members(2) as (first, second), client_of(first, second, timeout_s=1.0) as client:
        first.answers = ["hang"]
        began_s = WORLD.monotonic_s()

        assert (await client.send_request("range", READ)).count == 7
        assert 0.4 < WORLD.monotonic_s() - began_s
        assert (first.calls, second.calls) == (["range"], ["range"])


async def test_a_refusal_does_not_change_the_member() -> None:
    async with members(2) as (first, second), client_of(first, second) as client:
        first.answers = [(Status.NOT_FOUND, "odd")]
        with pytest.raises(EtcdRefusal):
            await client.commit_transaction(WRITE)

        await client.commit_transaction(WRITE)
        assert (first.calls, second.calls) == (["txn", "txn"], [])


# --- logins ---


async def test_a_token_is_used_until_it_is_stale() -> None:
    async with members() as (member,), client_of(member, user="wharf", password="good") as client:
        for text in ("etcdserver: invalid auth token", "etcdserver: revision in header is old"):
            await client.send_request("range", READ)
            member.answers = [(Status.UNAUTHENTICATED, text)]
            await client.commit_transaction(WRITE)

        assert member.logins == [("wharf", "good")] * 3
        assert member.tokens == ["token-1", "token-1", "token-2", "token-2", "token-2", "token-3"]
        assert member.has_required_leader


async def test_a_client_without_a_user_does_not_log_in() -> None:
    async with members() as (member,), client_of(member) as client:
        await client.send_request("range", READ)

        assert (member.calls, member.tokens) == (["range"], [""])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((Status.INVALID_ARGUMENT, "authentication failed"), LogMisconfigured),
        ((Status.FAILED_PRECONDITION, "authentication is not enabled"), LogMisconfigured),
        ((Status.PERMISSION_DENIED, "denied"), LogMisconfigured),
        ((Status.UNAUTHENTICATED, "odd"), LogMisconfigured),
        ((Status.UNAUTHENTICATED, "etcdserver: invalid auth token"), LogUnavailable),
        ((Status.INVALID_ARGUMENT, "etcdserver: revision in header is old"), LogUnavailable),
        ((Status.UNAVAILABLE, "etcdserver: no leader"), LogUnavailable),
    ],
)
async def test_only_a_login_that_can_never_succeed_is_a_wrong_configuration(
    answer: tuple[Any, str], error: type[Exception]
) -> None:
    async with members() as (member,), client_of(member, user="wharf", password="bad") as client:
        member.login_answers = [answer]
        with pytest.raises(LogUnavailable, match=f"rejects the login of user wharf: {answer[1]}") as refused:
            await client.send_request("range", READ)

        assert type(refused.value) is error
        assert (await client.send_request("range", READ)).count == 7


# --- closing and cancelling ---


async def test_closing_the_client_fails_its_calls_and_watches() -> None:
    async with members() as (member,), client_of(member) as client:
        member.answers = [None, "hang", "hang"]
        watch = await client.open_watch(WATCH)
        reading = asyncio.ensure_future(watch.read_response())
        writing = asyncio.ensure_future(client.commit_transaction(WRITE))
        asking = asyncio.ensure_future(client.send_request("range", READ))
        await wait_on_loop_until(lambda: len(member.calls) == 3, what="all calls have arrived")
        await client.close()

        with pytest.raises(ReplyLost, match="is closed"):
            await writing
        for call in (asking, reading):
            with pytest.raises(LogUnavailable, match="is closed"):
                await call
        for later in (client.commit_transaction(WRITE), client.open_watch(WATCH)):
            with pytest.raises(LogUnavailable, match="is closed"):
                await later
        client.open()
        assert (await client.send_request("range", READ)).count == 7


async def test_a_cancelled_caller_gets_its_cancellation() -> None:
    async with members() as (member,), client_of(member) as client:
        member.answers = [None, "hang"]
        watch = await client.open_watch(WATCH)
        calls = [
            asyncio.ensure_future(watch.read_response()),
            asyncio.ensure_future(client.send_request("range", READ)),
        ]
        await wait_on_loop_until(lambda: len(member.calls) == 2, what="both calls have arrived")
        for call in calls:
            call.cancel()

        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        watch.stop()


# --- watches ---


WATCH_ENDS: dict[str, tuple[Any, str]] = {
    "ended": (None, "the member ended the stream"),
    "failed": ((Status.UNAVAILABLE, "the member is stopping"), "the member is stopping"),
    "cancelled": (rpc.WatchResponse(canceled=True, cancel_reason="no leader"), "no leader"),
}


@pytest.mark.parametrize("end", WATCH_ENDS)
async def test_a_watch_that_ends_is_broken_and_the_next_one_uses_another_member(end: str) -> None:
    response, reason = WATCH_ENDS[end]
    async with members(2) as (first, second), client_of(first, second) as client:
        watch = await client.open_watch(WATCH)
        first.watch_responses.put_nowait(rpc.WatchResponse(created=True, watch_id=4))
        first.watch_responses.put_nowait(response)
        assert (await watch.read_response()).created

        with pytest.raises(WatchBroken, match=f"the watch on etcd at .* ended: {reason}"):
            await watch.read_response()
        watch.stop()
        watch = await client.open_watch(WATCH)
        second.watch_responses.put_nowait(rpc.WatchResponse(watch_id=5))
        assert (await watch.read_response()).watch_id == 5
        watch.stop()


async def test_a_watch_from_a_compacted_revision_says_up_to_which() -> None:
    async with members() as (member,), client_of(member) as client:
        watch = await client.open_watch(WATCH)
        member.watch_responses.put_nowait(rpc.WatchResponse(canceled=True, compact_revision=12))

        with pytest.raises(WatchCompacted) as compacted:
            await watch.read_response()
        assert compacted.value.revision == 12


@pytest.mark.parametrize("text", ["etcdserver: invalid auth token", "etcdserver: revision in header is old"])
async def test_a_watch_with_a_stale_token_leads_to_a_new_login(text: str) -> None:
    async with members() as (member,), client_of(member, user="wharf", password="good") as client:
        watch = await client.open_watch(WATCH)
        member.watch_responses.put_nowait(rpc.WatchResponse(canceled=True, cancel_reason=text))
        with pytest.raises(WatchBroken):
            await watch.read_response()
        await client.send_request("range", READ)

        assert (len(member.logins), member.tokens) == (2, ["token-1", "token-2"])


async def test_a_watch_on_a_member_that_stops_replying_is_broken() -> None:
    async with members(2) as (first, second), client_of(first, second, timeout_s=0.6) as client:
        watch = await client.open_watch(WATCH)
        reading = asyncio.ensure_future(watch.read_response())
        first.answers = [None, "hang"]
        await wait_on_loop_until(lambda: first.calls == ["watch"], what="the watch is open")
        first.answers = ["hang"]

        assert (await client.send_request("range", READ)).count == 7

        with pytest.raises(WatchBroken, match=f"because {first.endpoint} does not reply"):
            await reading
        watch.stop()


# --- renewals of leases ---


@asynccontextmanager
async def keepalive_of(*members: ScriptedMember, **options: Any) -> AsyncIterator[LeaseKeepalive]:
    endpoints = tuple(member.endpoint for member in members)
    keepalive = LeaseKeepalive(EtcdSettings(endpoints=endpoints, request_timeout_s=2.0, **options), WORLD)
    try:
        yield keepalive
    finally:
        await asyncio.to_thread(keepalive.stop)


def make_lease(number: int = 1, *, ttl_s: float = 60.0) -> KeepaliveLease:
    """Return a lease whose renewal is due in a moment."""
    return KeepaliveLease(number, ttl_s, WORLD.monotonic_s() - ttl_s / 3 + 0.05)


async def wait_renewed(lease: KeepaliveLease) -> None:
    await wait_on_loop_until(lambda: lease.get_valid_until_s() > WORLD.monotonic_s() + 300, what="the lease is renewed")


async def test_a_lease_is_renewed_when_a_third_of_its_time_is_over() -> None:
    async with members() as (member,), keepalive_of(member) as keepalive:
        lease, later = make_lease(1), KeepaliveLease(2, 600.0, WORLD.monotonic_s())
        before_s = WORLD.monotonic_s()
        keepalive.add(later)
        keepalive.add(lease)
        await wait_renewed(lease)

        assert lease.get_valid_until_s() >= before_s + 600
        assert member.calls == ["keepalive"]
        assert member.has_required_leader


class CountingWorld(RealWorld):
    """The real world, which counts how often its clock is read."""

    def __init__(self) -> None:
        super().__init__()
        self.clock_reads = 0

    def monotonic_s(self) -> float:
        self.clock_reads += 1
        return super().monotonic_s()


async def test_renewals_use_no_processor_time_while_no_lease_is_due() -> None:
    world = CountingWorld()
    async with members() as (member,):
        keepalive = LeaseKeepalive(EtcdSettings(endpoints=(member.endpoint,), request_timeout_s=2.0), world)
        for number in range(3):
            lease = make_lease(number)
            keepalive.add(lease)
            await wait_renewed(lease)
        await asyncio.to_thread(keepalive.stop)

    # Each renewal and each new lease wakes the thread. A thread that never waits reads the clock thousands of times.
    assert world.clock_reads < 100


async def test_a_lease_that_etcd_does_not_know_has_ended() -> None:
    async with members() as (member,), keepalive_of(member) as keepalive:
        member.ttls = [0]
        lease = make_lease()
        keepalive.add(lease)
        await wait_on_loop_until(lambda: lease.has_ended, what="the lease has ended")

        assert lease.get_valid_until_s() == float("-inf")
        kept = make_lease(2)
        keepalive.add(kept)
        await wait_renewed(kept)
        assert member.calls == ["keepalive"] * 2


async def test_a_lease_that_was_removed_is_not_renewed() -> None:
    async with members() as (member,), keepalive_of(member) as keepalive:
        removed, kept = make_lease(1), make_lease(2)
        keepalive.add(removed)
        keepalive.remove(1)
        keepalive.remove(7)
        keepalive.add(kept)
        await wait_renewed(kept)

        assert removed.get_valid_until_s() < WORLD.monotonic_s() + 300
        assert member.calls == ["keepalive"]


async def test_a_failed_renewal_is_repeated_on_another_member_before_the_lease_expires() -> None:
    async with members(3) as (first, second, third), keepalive_of(first, second, third) as keepalive:
        first.answers = [(Status.UNAVAILABLE, "no leader")]
        second.answers = [(Status.UNAVAILABLE, "no leader")]
        lease = make_lease(ttl_s=2.0)
        expires_s = lease.get_valid_until_s()
        keepalive.add(lease)
        await wait_renewed(lease)

        assert [member.calls for member in (first, second, third)] == [["keepalive"]] * 3
        assert lease.get_valid_until_s() - 600 < expires_s


async def test_renewals_log_in_again_when_their_token_is_stale_and_only_then() -> None:
    async with members() as (member,), keepalive_of(member, user="wharf", password="good") as keepalive:
        member.answers = [
            (Status.UNAUTHENTICATED, "etcdserver: invalid auth token"), (Status.UNAVAILABLE, "no leader"),
            (Status.UNAUTHENTICATED, "etcdserver: revision in header is old"),
        ]  # fmt: skip
        lease = make_lease(ttl_s=2.0)
        keepalive.add(lease)
        await wait_renewed(lease)

        assert member.tokens == ["token-1", "token-2", "token-2", "token-3"]
        assert member.logins == [("wharf", "good")] * 3


async def test_a_failed_login_of_renewals_is_repeated() -> None:
    async with members() as (member,), keepalive_of(member, user="wharf", password="good") as keepalive:
        member.login_answers = [(Status.UNAVAILABLE, "no leader")] * 2
        lease = make_lease(ttl_s=2.0)
        keepalive.add(lease)
        await wait_renewed(lease)

        assert member.tokens == ["token-3"]


def test_the_validity_of_a_lease_counts_from_the_sending_of_its_renewal() -> None:
    lease = KeepaliveLease(1, 9.0, 100.0)
    assert (lease.get_valid_until_s(), lease.due_s) == (109.0, 103.0)

    lease.record_renewal(sent_s=104.0, ttl_s=6.0)
    assert (lease.get_valid_until_s(), lease.due_s) == (110.0, 106.0)
    lease.record_renewal(sent_s=105.0, ttl_s=3.0)  # A shorter one does not take back what was granted.
    assert (lease.get_valid_until_s(), lease.due_s) == (110.0, 106.0)
    lease.has_ended = True
    assert lease.get_valid_until_s() == float("-inf")


async def test_renewals_that_fail_repeatedly_are_logged_once_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with members() as (member,), keepalive_of(member) as keepalive:
        member.answers = [(Status.UNAVAILABLE, "no leader")] * 3
        lease = make_lease(ttl_s=2.0)
        keepalive.add(lease)
        await wait_renewed(lease)

        reasons = [record.message for record in caplog.records if record.message.startswith("lease not renewed")]
        assert reasons == [f"lease not renewed, will retry reason=etcd at {member.endpoint} failed: no leader"]
