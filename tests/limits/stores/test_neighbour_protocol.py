"""The protocol between processes and their counter server: each message, caches, lost connections and restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from tests.limits.builders import HOUR_MS, NOON_MS, a_user, anonymous
from tests.limits.stores.contract import Clock
from tests.waiting import wait_on_loop_until
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.plans import Charge
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import CounterReading, StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore, messages
from wharf.limits.stores.neighbours import client as client_module
from wharf.limits.stores.neighbours import server as server_module
from wharf.limits.stores.port import RefundReason, StoreUnavailable
from wharf.world import RealWorld
from wharf.world.framing import FrameDecoder

T = TypeVar("T")
RULES = read_rules("""
profile = "none"
[[rule]]
name = "core"
resource = "core"
ceiling = 20
[[rule]]
name = "slots"
counts = "connections"
ceiling = 9
[[rule]]
name = "paths"
scope = ["caller"]
per_endpoint = true
counts = "connections"
ceiling = 9
keys_most = 1
[[endpoint]]
match = ["GET /free"]
free = true
""")


class Machine:
    """A counter server and one neighbour process, which are both in this process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "counters.sock"
        self.clock = Clock()
        self.limiter = Limiter(RULES)
        self.neighbour = NeighbourStore(RealWorld(), self.path)
        self.memory = MemoryStore(RealWorld(), RULES, clock=self.clock)
        self.server = CounterServer(self.memory, self.path)

    async def restart_server(self) -> None:
        """Replace the server by one without any counters, and wait until the neighbour is connected to it."""
        await self.neighbour.check()  # asyncio loses a connection whose server is closed before it is accepted.
        await self.server.close()
        await wait_on_loop_until(lambda: not self.neighbour.is_connected, what="the end is noticed")
        self.memory = MemoryStore(RealWorld(), RULES, clock=self.clock)
        self.server = CounterServer(self.memory, self.path)
        await self.server.open()
        await wait_on_loop_until(lambda: self.neighbour.is_connected, what="the new server is found")

    def call(self, request_id: str = "r1", path: str = "/x", caller: Caller | None = None) -> StoreCall:
        return self.limiter.build_call(RequestFacts(request_id, "GET", path, caller or a_user()), self.clock.now_ms)

    def count(self, rule: str, key: str = "user:ada") -> int:
        """Return a count of the server."""
        return self.memory.counters.tables[rule].count_used(key, self.clock.now_ms)


def run(folder: Path, scenario: Callable[[Machine], Awaitable[T]]) -> T:
    async def wait() -> T:
        machine = Machine(folder)
        await machine.server.open()
        await machine.neighbour.open()
        try:
            return await scenario(machine)
        finally:
            await machine.neighbour.close()
            await machine.server.close()

    return asyncio.run(wait())


# -- messages ------------------------------------------------------------------------------------------------------


def test_a_result_is_the_same_after_it_was_sent() -> None:
    result = TakeResult(True, 1, (2, 3), (4,), (5,), ("a", "b"), 6, 7, 8, True)

    sent = messages.decode_result(messages.encode_result(result))

    assert messages.encode_result(sent) == messages.encode_result(result)
    assert (sent.counts_before, sent.hit_indexes, sent.free_at_ms, sent.keys) == ((2, 3), (4,), (5,), ("a", "b"))


def test_a_charge_is_sent_with_each_of_its_values() -> None:
    charge = Charge(RULES.rules[0], "name", "key", 1, 2, 3, True, "overflow", "owner")

    assert messages.encode_charges([charge]) == [
        messages.WireCharge("name", "key", 1, 2, 3, True, "overflow", "owner"),
    ]


@pytest.mark.parametrize("path", ["/x", "/free"])
def test_a_plan_is_sent_with_the_charges_of_the_call(tmp_path: Path, path: str) -> None:
    machine = Machine(tmp_path)
    call = machine.call(path=path)
    raised = replace(call, charges=tuple(replace(charge, ceiling=99) for charge in call.charges))

    plan = messages.decode_plan(messages.encode_plan(raised))

    assert {charge.ceiling for charge in plan.charges} == {99}
    assert (plan.bucket_charge is None) is (path == "/x")
    assert (plan.lease_indexes, plan.overflow_key_indexes) == (
        call.plan.lease_indexes,
        call.plan.overflow_key_indexes,
    )
    assert (plan.ban_subject, plan.is_ban_shadow, plan.ban_rules) == ("token:t1", False, RULES.ban)


def test_each_call_has_the_effect_of_a_store_in_memory(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[Any]:
        neighbour, call = machine.neighbour, machine.call()
        seen: list[Any] = []
        result = await neighbour.take(call)
        seen.append((result.is_admitted, result.now_ms, machine.count("core"), machine.count("slots")))
        await neighbour.add_usage([call.charges[0]], 3)
        seen.append(machine.count("core"))
        seen.append(await neighbour.peek(call.charges[:1]) == (CounterReading(4, NOON_MS + HOUR_MS),))
        seen.append([await neighbour.refund("r1", RefundReason.UNCHANGED) for _ in range(2)])
        seen.append(machine.count("core"))
        await neighbour.release("r1")
        seen.append(machine.count("slots"))
        await neighbour.reset([call.charges[0]])
        seen.append(machine.count("core"))
        await neighbour.ban("token:t1", NOON_MS + 5)
        seen.append(await neighbour.get_ban_end_ms("token:t1"))
        seen.append(await neighbour.get_ban_end_ms("token:t2"))
        await neighbour.check()
        return seen

    assert run(tmp_path, scenario) == [
        (True, NOON_MS, 1, 1),
        4,
        True,
        [True, False],
        3,
        0,
        0,
        NOON_MS + 5,
        0,
    ]


@pytest.mark.parametrize(
    ("reason", "refunded"), [(RefundReason.FAULT, 2), (RefundReason.UNCHANGED, 5), (RefundReason.GONE, 5)]
)
def test_only_refunds_of_faults_are_limited(tmp_path: Path, reason: RefundReason, refunded: int) -> None:
    async def scenario(machine: Machine) -> int:
        for number in range(5):
            await machine.neighbour.take(machine.call(f"r{number}"))
        return sum([await machine.neighbour.refund(f"r{number}", reason) for number in range(5)])

    # A tenth of 20.
    assert run(tmp_path, scenario) == refunded


def test_an_undo_returns_the_primary_charge_and_the_slots(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        await machine.neighbour.take(machine.call())
        await machine.neighbour.undo(machine.call())
        return [machine.count("core"), machine.count("slots"), await machine.neighbour.renew(["r1"])]

    assert run(tmp_path, scenario) == [0, 0, 0]


def test_a_free_request_reports_its_bucket_and_charges_nothing(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        await machine.neighbour.take(machine.call())
        result = await machine.neighbour.take(machine.call("r2", "/free"))
        return [result.bucket_count_before, result.bucket_end_ms - NOON_MS, machine.count("core")]

    assert run(tmp_path, scenario) == [1, HOUR_MS, 1]


def test_overrides_are_read_if_their_version_is_new(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[Any]:
        neighbour, server = machine.neighbour, machine.server
        seen: list[Any] = [await neighbour.read_overrides(0), await server.read_overrides(0)]
        await neighbour.write_override("a", b"1")
        await server.write_override("b", b"2")
        seen += [await neighbour.read_overrides(0), await server.read_overrides(0)]
        seen += [await neighbour.read_overrides(2), await server.read_overrides(2)]
        await neighbour.write_override("a", None)
        await neighbour.write_override("unknown", None)
        seen.append(await neighbour.read_overrides(2))
        return seen

    both = {"a": b"1", "b": b"2"}
    assert [found if found is None else tuple(found) for found in run(tmp_path, scenario)] == [
        *(None, None, (2, both), (2, both), None, None),
        (4, {"b": b"2"}),
    ]


def test_overrides_beyond_the_maximum_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_OVERRIDES", 2)

    async def scenario(machine: Machine) -> Any:
        for name, value in (("a", b"1"), ("b", b"2"), ("c", b"3"), ("a", b"4")):
            await machine.server.write_override(name, value)
        return await machine.server.read_overrides(0)

    assert run(tmp_path, scenario) == (4, {"a": b"4", "b": b"2"})


# -- slots after a restart of the server ---------------------------------------------------------------------------


def test_slots_are_renewed_at_a_server_that_was_restarted(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[Any]:
        await machine.neighbour.take(machine.call())
        await machine.neighbour.take(machine.call("ended"))
        await machine.neighbour.release("ended")
        await machine.restart_server()
        before = machine.count("slots")
        revived = await machine.neighbour.renew(["r1", "ended", "unknown"])
        return [before, revived, machine.count("slots"), machine.count("paths", "user:ada GET /x")]

    # Each request holds a slot of two rules.
    assert run(tmp_path, scenario)[:3] == [0, 2, 1]


@pytest.mark.parametrize("path", ["/x", "/free"])
def test_slots_that_were_renewed_at_a_restarted_server_are_released(tmp_path: Path, path: str) -> None:
    async def scenario(machine: Machine) -> list[int]:
        await machine.neighbour.take(machine.call(path=path))
        await machine.restart_server()
        await machine.neighbour.renew(["r1"])
        held = machine.count("slots")
        await machine.neighbour.release("r1")
        return [held, machine.count("slots"), await machine.neighbour.renew(["r1"])]

    assert run(tmp_path, scenario) == [1, 0, 0]


def test_a_slot_under_the_shared_key_is_renewed_and_released_under_it(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[list[int]]:
        first = await machine.neighbour.take(machine.call("r1", "/one/path"))
        second = await machine.neighbour.take(machine.call("r2", "/other/path"))
        assert not first.keys
        (shared_key,) = {key for key in second.keys if key not in [charge.key for charge in machine.call().charges]}
        await machine.restart_server()
        counts = []
        for action in (machine.neighbour.renew(["r1", "r2"]), machine.neighbour.release("r2")):
            await action
            counts.append([machine.count("slots"), machine.count("paths", shared_key)])
        return counts

    assert run(tmp_path, scenario) == [[2, 1], [1, 0]]


def test_an_expired_slot_is_taken_again_by_a_renewal(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        await machine.neighbour.take(machine.call())
        counts = [await machine.neighbour.renew(["r1"])]
        machine.clock.now_ms += HOUR_MS
        counts += [machine.count("slots"), await machine.neighbour.renew(["r1"]), machine.count("slots")]
        return counts

    assert run(tmp_path, scenario) == [0, 0, 2, 1]


# -- connections ---------------------------------------------------------------------------------------------------


def test_a_store_without_a_server_fails_each_call_at_once(tmp_path: Path) -> None:
    async def scenario() -> tuple[bool, bool]:
        neighbour = NeighbourStore(RealWorld(), tmp_path / "counters.sock")
        was_reached = await neighbour.open()
        with pytest.raises(StoreUnavailable, match="no counter server at"):
            await neighbour.check()
        is_connected = neighbour.is_connected
        await neighbour.close()
        return was_reached, is_connected

    assert asyncio.run(scenario()) == (False, False)


def test_calls_without_a_reply_fail_when_the_connection_is_lost(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> bool:
        pending = machine.neighbour.start_take(machine.call())
        machine.neighbour.on_connection_lost()
        with pytest.raises(StoreUnavailable, match="the connection to the counter server was lost"):
            await pending
        return machine.neighbour.is_connected

    assert run(tmp_path, scenario) is False


def test_more_pending_calls_than_the_maximum_fail_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PENDING_REQUESTS", 2)

    async def scenario(machine: Machine) -> list[bool]:
        pending = [machine.neighbour.start_take(machine.call(f"r{number}")) for number in range(3)]
        replies = await asyncio.gather(*pending, return_exceptions=True)
        return [isinstance(reply, StoreUnavailable) for reply in replies]

    assert run(tmp_path, scenario) == [False, False, True]


def test_the_calls_of_one_loop_pass_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        pending = [machine.neighbour.start_take(machine.call(f"r{number}")) for number in range(5)]
        pending[1].cancel()
        results = [await future for future in pending if not future.cancelled()]
        await machine.neighbour.check()
        return [result.bucket_count_before for result in results]

    # The cancelled call was charged too.
    assert run(tmp_path, scenario) == [0, 2, 3, 4]


def test_calls_before_the_end_are_still_sent(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> int:
        pending = machine.neighbour.start_take(machine.call())
        await machine.neighbour.close()
        assert isinstance(pending.exception(), StoreUnavailable)
        await wait_on_loop_until(lambda: machine.count("core"), what="the call arrives")
        return machine.count("core")

    assert run(tmp_path, scenario) == 1


def test_a_closed_server_accepts_nobody_and_removes_its_socket(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> tuple[bool, int, bool]:
        await machine.neighbour.check()
        await machine.server.close()
        await wait_on_loop_until(lambda: not machine.neighbour.is_connected, what="the end is noticed")
        return machine.path.exists(), len(machine.server.connections), machine.neighbour.is_connected

    assert run(tmp_path, scenario) == (False, 0, False)


class AcceptedSocket(asyncio.Transport):
    """The transport of a new connection. It records whether it was closed."""

    was_closed = False

    def close(self) -> None:
        self.was_closed = True


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_neighbour_that_is_accepted_while_the_server_closes_is_disconnected(tmp_path: Path, is_closed: bool) -> None:
    async def scenario(machine: Machine) -> tuple[bool, bool]:
        await machine.neighbour.check()
        if is_closed:
            await machine.server.close()
        accepted = AcceptedSocket()
        machine.server.on_connected(accepted)
        return accepted.was_closed, accepted in machine.server.connections

    assert run(tmp_path, scenario) == (is_closed, not is_closed)


def test_a_connection_that_ends_is_not_tracked_any_more(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        await machine.neighbour.check()
        before = len(machine.server.connections)
        await machine.neighbour.close()
        await wait_on_loop_until(lambda: not machine.server.connections, what="the end is noticed")
        return [before, len(machine.server.connections)]

    assert run(tmp_path, scenario) == [1, 0]


# -- rules and caches ----------------------------------------------------------------------------------------------


def test_a_rule_that_the_server_lacks_fails_the_call_until_the_server_has_it(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[Any]:
        known = RULES
        await machine.memory.set_rules(
            read_rules('profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 9\n')
        )
        problems = []
        for call in (machine.neighbour.take(machine.call()), machine.neighbour.peek(machine.call().charges)):
            with pytest.raises(StoreUnavailable) as caught:
                await call
            problems.append(str(caught.value))
        await machine.memory.set_rules(known)
        return [problems, (await machine.neighbour.take(machine.call("r2"))).is_admitted]

    problem = "the counter server has no rule slots: it has not reloaded its rules yet"
    assert run(tmp_path, scenario) == [[problem] * 2, True]


def test_changed_rules_of_the_server_apply_to_plans_that_it_has_in_its_cache(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[int]:
        ends = [(await machine.neighbour.take(machine.call("r1"))).bucket_end_ms]
        await machine.memory.set_rules(
            replace(
                RULES,
                rules=tuple(
                    replace(rule, window_ms=2 * HOUR_MS) if rule.name == "core" else rule for rule in RULES.rules
                ),
            )
        )
        other = machine.call("r2", caller=a_user("bob"))
        ends.append((await machine.neighbour.take(other)).bucket_end_ms)
        machine.clock.now_ms += HOUR_MS
        ends.append((await machine.neighbour.take(machine.call("r3"))).bucket_end_ms)
        return [end_ms - NOON_MS for end_ms in ends]

    assert run(tmp_path, scenario) == [HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_full_cache_of_plans_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(client_module, "MAX_CACHED_PLANS", most)
    monkeypatch.setattr(server_module, "MAX_CACHED_PLANS", most)

    async def scenario(machine: Machine) -> list[int]:
        used = []
        for number, login in enumerate(("ada", "bob", "eve", "ada", "bob", "eve")):
            call = machine.call(f"r{number}", caller=a_user(login))
            used.append((await machine.neighbour.take(call)).bucket_count_before)
        return used

    assert run(tmp_path, scenario) == [0, 0, 0, 1, 1, 1]


def test_a_grant_raises_the_ceiling_of_its_calls_only(tmp_path: Path) -> None:
    async def scenario(machine: Machine) -> list[bool]:
        call = machine.call()
        admitted: list[bool] = []
        for ceiling in (1, 1, 2, 2, 1):
            charges = (replace(call.charges[0], ceiling=ceiling), *call.charges[1:])
            result = await machine.neighbour.take(replace(call, id=f"r{len(admitted)}", charges=charges))
            admitted.append(result.is_admitted)
        admitted.append((await machine.neighbour.take(machine.call("plain"))).is_admitted)
        return admitted

    assert run(tmp_path, scenario) == [True, False, True, False, False, True]


def test_the_server_executes_the_frames_of_one_read_in_order(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    plan = messages.encode_plan(machine.call(caller=anonymous()))
    frames = [
        msgspec.msgpack.encode(message)
        for message in (
            messages.TakeRequest(7, "a", plan),
            messages.HelloRequest(8),
            messages.TakeRequest(9, "b", plan),
        )
    ]
    replies = list(
        map(messages.decode_reply, FrameDecoder(messages.MAX_FRAME_BYTES).feed(machine.server.execute_frames(frames)))
    )

    assert [(reply.number, reply.error) for reply in replies] == [(7, ""), (8, ""), (9, "")]
    assert [messages.decode_result(replies[index].value).bucket_count_before for index in (0, 2)] == [0, 1]
    assert replies[1].value is None
