"""The writer: conflicts are decided again, unknown outcomes are looked up, and only visible writes are acknowledged."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.memory.faults import (
    DelayFault,
    EngineOperation,
    Fault,
    LoseReplyFault,
    LoseRequestFault,
    RefuseFault,
)
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.operations.decision import Decision
from wharf.cluster.server.log.follower import APPLY_TIMEOUT_S
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import NAMESPACES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.state_machines.machine import advance_state
from wharf.contract.model.state_machines.transitions import ALLOCATION_STATES
from wharf.contract.model.times import DecisionContext

CAUSE = Cause(CauseKind.REQUEST, "test")


def inject_faults(operation: EngineOperation, *faults: Fault | None) -> Callable[[EngineOperation], Fault | None]:
    """Inject these faults into the next calls of the operation; `None` lets one call pass."""
    left = list(faults)
    return lambda called: left.pop(0) if called is operation and left else None


def count_up(snapshot: Replica, _: DecisionContext) -> Decision[int]:
    """Add one to the weight of a namespace."""
    stored = snapshot.get(NAMESPACES, "default")
    assert stored is not None
    raised = replace(stored, weight=stored.weight + 1)
    write = Write(
        "counted", CAUSE, [NAMESPACES.build_put(raised)], [snapshot.build_record_condition(NAMESPACES, stored)]
    )
    return Decision(write, lambda _index: raised.weight)


async def try_count_up(server: OneServer) -> bool:
    """Return whether the write was committed; it may conflict five times with other writers."""
    try:
        await server.server.writer.execute(count_up)
    except Refusal as refusal:
        if refusal.code is not RefusalCode.CONFLICT:
            raise
        return False
    return True


def get_weight(server: OneServer) -> int:
    namespace = server.replica.get(NAMESPACES, "default")
    assert namespace is not None
    return namespace.weight


@in_virtual_time
async def test_a_reply_is_returned_once_the_replica_has_the_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        server.faults.choose_fault = inject_faults(EngineOperation.FEED, DelayFault(reply_s=3.0))
        began_s = now_s()

        result = await server.server.writer.execute(count_up)

        assert (result, get_weight(server), round(now_s() - began_s, 1)) == (2, 2, 3.0)


@in_virtual_time
async def test_a_decision_on_changed_records_is_made_again() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1", leads=False)
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation_name: (
            DelayFault(reply_s=2.0) if operation_name is EngineOperation.FEED else None
        )

        await first.server.writer.execute(count_up)
        result = await second.server.writer.execute(count_up)

        assert result == 3


@in_virtual_time
async def test_five_conflicts_are_reported_to_the_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        tries = 0

        def always_late(snapshot: Replica, context: DecisionContext) -> Decision[int]:
            nonlocal tries
            tries += 1
            decision = count_up(snapshot, context)
            assert decision.write is not None
            stale = [replace_version(condition) for condition in decision.write.conditions]
            return Decision(replace(decision.write, conditions=stale), decision.build_reply)

        with pytest.raises(Refusal) as caught:
            await server.server.writer.execute(always_late)

        assert (caught.value.code, tries, get_weight(server)) == (RefusalCode.CONFLICT, 5, 1)


def replace_version(condition: object) -> object:
    return replace(condition, version=99_999)  # type: ignore[type-var]  # every condition is a struct


@pytest.mark.parametrize("fault", [LoseReplyFault(), LoseRequestFault()], ids=["reply lost", "request lost"])
def test_an_unknown_outcome_is_looked_up_and_the_write_happens_once(fault: Fault) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(leads=False)
            server.faults.choose_fault = inject_faults(EngineOperation.COMMIT, fault)

            result = await server.server.writer.execute(count_up)

            assert (result, get_weight(server)) == (2, 2)

    scenario()


@in_virtual_time
async def test_an_outcome_that_cannot_be_looked_up_is_reported_as_unknown() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        def decide(operation_name: EngineOperation) -> Fault | None:
            return (
                LoseReplyFault()
                if operation_name in (EngineOperation.COMMIT, EngineOperation.FIND, EngineOperation.BARRIER)
                else None
            )

        server.faults.choose_fault = decide

        with pytest.raises(Refusal) as caught:
            await server.server.writer.execute(count_up)

        assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN


@pytest.mark.parametrize("fault", [None, LoseReplyFault()], ids=["reply came", "reply lost"])
def test_a_write_that_is_not_visible_in_time_has_an_unknown_outcome(fault: Fault | None) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(leads=False)
            faults = {EngineOperation.FEED: DelayFault(reply_s=120.0), EngineOperation.COMMIT: fault}
            server.faults.choose_fault = faults.get
            began_s = now_s()

            with pytest.raises(Refusal) as caught:
                await server.server.writer.execute(count_up)

            assert caught.value.code is RefusalCode.OUTCOME_UNKNOWN
            assert "has received no newer batch for 15 s" in caught.value.text
            assert now_s() - began_s < APPLY_TIMEOUT_S + 5.0

    scenario()


@pytest.mark.parametrize("cut", [True, False])
def test_a_write_that_was_surely_not_committed_is_reported_as_such(cut: bool) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server(leads=False)
            if cut:
                server.faults.disconnect()
            else:
                server.faults.choose_fault = inject_faults(EngineOperation.COMMIT, RefuseFault("the log is full"))

            with pytest.raises(Refusal, match="nothing was written") as caught:
                await server.server.writer.execute(count_up)

            assert caught.value.code is RefusalCode.UNAVAILABLE

    scenario()


@in_virtual_time
async def test_a_write_that_is_too_large_for_a_batch_is_refused() -> None:
    async with ACluster(limits=WriteLimits(changes=16, conditions=16)) as cluster:
        server = await cluster.a_server(leads=False)
        changes = [NAMESPACES.build_put(Namespace(name=f"n{number}", create_index=WRITE_INDEX)) for number in range(17)]

        with pytest.raises(Refusal, match="17 changes") as caught:
            await server.server.writer.commit(Write("large", CAUSE, changes))

        assert caught.value.code is RefusalCode.TOO_LARGE


@in_virtual_time
async def test_a_decision_to_do_nothing_considers_writes_acknowledged_elsewhere() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation_name: (
            DelayFault(reply_s=2.0) if operation_name is EngineOperation.FEED else None
        )
        await first.client.jobs.register(a_job())

        # The second server does not know the job yet.
        done = await second.client.jobs.deregister("shop")

        assert done.index > 0
        assert (await first.client.jobs.read("shop")).value.stop


@in_virtual_time
async def test_a_refusal_considers_writes_acknowledged_elsewhere() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation_name: (
            DelayFault(reply_s=2.0) if operation_name is EngineOperation.FEED else None
        )
        registered = await first.client.jobs.register(a_job())

        repeated = await second.client.jobs.register(a_job(priority=60), enforce_index=registered.job_modify_index)

        assert repeated.index > registered.index


@in_virtual_time
async def test_concurrent_writers_lose_no_write() -> None:
    async with ACluster() as cluster:
        servers = [await cluster.a_server(f"m{number}", leads=False) for number in range(3)]

        async def count(server: OneServer) -> None:
            done = 0
            while done < 5:
                done += await try_count_up(server)

        await asyncio.gather(*(count(server) for server in servers))
        await servers[0].server.writer.catch_up()

        assert get_weight(servers[0]) == 16


# -- invalid state transitions


SLOW_COMMITS = DelayFault(request_s=0.1)


def delay_commits(operation: EngineOperation) -> Fault | None:
    return SLOW_COMMITS if operation is EngineOperation.COMMIT else None


@in_virtual_time
async def test_writes_of_one_process_to_the_same_record_all_succeed_one_after_the_other() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        server.faults.choose_fault = delay_commits

        written = await asyncio.gather(*(try_count_up(server) for _ in range(40)))

        assert (all(written), get_weight(server)) == (True, 41)


@in_virtual_time
async def test_a_write_that_is_cancelled_gives_its_turn_to_the_next_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        server.faults.choose_fault = delay_commits
        writes = [cluster.start(try_count_up(server), name="write") for _ in range(20)]
        await pass_time(0.35)

        for write in writes[::2]:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)

        written = sum(not write.cancelled() and write.result() for write in writes)
        assert written >= 10
        assert get_weight(server) >= 1 + written
        assert await try_count_up(server)


@in_virtual_time
async def test_writes_that_wait_for_their_turn_fail_together_if_the_log_does_not_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        server.faults.choose_fault = delay_commits
        writes = [server.world.start_task(try_count_up(server), name="write") for _ in range(20)]
        await pass_time(0.35)
        server.faults.choose_fault = lambda _: LoseRequestFault()
        began_s = now_s()

        results = await asyncio.gather(*writes, return_exceptions=True)

        refused = [each for each in results if isinstance(each, Refusal)]
        assert len(refused) >= 10
        assert now_s() - began_s < 15  # One failure takes some seconds, 20 after each other take a minute.


@in_virtual_time
async def test_a_write_to_another_record_does_not_wait_for_the_turns_of_others() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        server.faults.choose_fault = delay_commits
        writes = [cluster.start(try_count_up(server), name="write") for _ in range(20)]
        await pass_time(0.35)
        began_s = now_s()

        other = NAMESPACES.build_put(Namespace(name="other"))
        await server.server.writer.execute(lambda *_: Decision(Write("other", CAUSE, [other]), lambda index: index))

        assert now_s() - began_s < 0.3
        await asyncio.gather(*writes)


@in_virtual_time
async def test_an_invalid_transition_is_a_conflict_for_the_caller_and_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def restart_complete_allocation(_snapshot: Replica, _context: DecisionContext) -> Decision[int]:
        advance_state(
            ALLOCATION_STATES, ClientStatus.COMPLETE, ClientStatus.RUNNING, record_id="a1", history=["placed", "ended"]
        )
        return Decision(None, int)

    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        with pytest.raises(Refusal) as caught:
            await server.server.writer.execute(restart_complete_allocation)

        sentence = (
            "allocation a1 cannot go from complete to running; allowed from complete: none; history: placed; ended"
        )
        assert (caught.value.code, caught.value.text) == (RefusalCode.CONFLICT, sentence)
        assert [line for line in caplog.messages if "a1" in line] == [f"state transition rejected reason={sentence}"]
