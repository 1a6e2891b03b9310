"""The store of one process: the data that survives a restart, and the maximum number of keys. Section 3.6 of the design."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.limits.builders import CODE_HOST, HOUR_MS, MINUTE_MS, NOON_MS, InMemoryLimiter, a_user, anonymous
from tests.limits.stores.contract import Clock, Counter
from wharf.limits.core.rule import RuleSet
from wharf.limits.stores import MemoryStore
from wharf.limits.stores.snapshot import FORMAT_VERSION, InvalidSnapshot, generate_frames
from wharf.world import SimulatedWorld

T = TypeVar("T")


def run_process(path: Path, clock: Clock, scenario: Callable[[Counter], Awaitable[T]], rules: RuleSet = CODE_HOST) -> T:
    """Run a scenario on a store that is loaded before it and saved after it, like one process."""

    async def run() -> T:
        store = MemoryStore(SimulatedWorld(1), rules, path=path, clock=clock)
        await store.open()
        try:
            return await scenario(Counter(store, rules, clock))
        finally:
            await store.close()

    return asyncio.run(run())


async def charge_counters(counter: Counter) -> None:
    for _ in range(7):
        await counter.send(a_user(), "/repos/a/b/issues", method="POST")


def test_3_6_a_restart_resets_no_counter(tmp_path: Path) -> None:
    clock = Clock()
    run_process(tmp_path / "counters", clock, charge_counters)
    clock.now_ms += 10_000

    async def read_counts(counter: Counter) -> tuple[int, int, int]:
        decision = await counter.send(a_user(), "/repos/a/b/issues", method="POST")
        names = [charge.name for charge in decision.charges]
        counts_before = decision.result.counts_before
        return decision.used, counts_before[names.index("content")], counts_before[names.index("points")]

    assert run_process(tmp_path / "counters", clock, read_counts) == (8, 7, 35)


def test_3_6_the_end_of_a_window_is_the_same_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    run_process(tmp_path / "counters", clock, charge_counters)
    clock.now_ms += 10 * MINUTE_MS

    async def read_counts(counter: Counter) -> int:
        return (await counter.send(a_user())).result.bucket_end_ms

    assert run_process(tmp_path / "counters", clock, read_counts) == NOON_MS + HOUR_MS


def test_3_6_a_ban_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()

    async def ban(counter: Counter) -> None:
        await counter.store.ban("token:t1", clock.now_ms + HOUR_MS)

    async def read_counts(counter: Counter) -> str:
        return (await counter.send(a_user())).verdict.value

    run_process(tmp_path / "counters", clock, ban)
    assert run_process(tmp_path / "counters", clock, read_counts) == "banned"


def test_3_6_slots_of_requests_end_with_the_process(tmp_path: Path) -> None:
    clock = Clock()

    async def hold(counter: Counter) -> None:
        for number in range(100):
            await counter.send(a_user(), holds=True, request_id=f"held{number}")

    async def read_counts(counter: Counter) -> bool:
        return (await counter.send(a_user())).is_admitted

    run_process(tmp_path / "counters", clock, hold)
    assert run_process(tmp_path / "counters", clock, read_counts) is True


def test_counters_of_a_removed_rule_are_skipped(tmp_path: Path) -> None:
    clock = Clock()
    run_process(tmp_path / "counters", clock, charge_counters)
    rules_without_content = msgspec.structs.replace(
        CODE_HOST, rules=tuple(r for r in CODE_HOST.rules if r.name != "content")
    )

    async def read_counts(counter: Counter) -> int:
        return (await counter.send(a_user())).used

    assert run_process(tmp_path / "counters", clock, read_counts, rules_without_content) == 8


def test_only_the_owner_can_read_the_counter_file(tmp_path: Path) -> None:
    run_process(tmp_path / "counters", Clock(), charge_counters)

    assert (tmp_path / "counters").stat().st_mode & 0o777 == 0o600


def test_another_file_is_rejected_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "counters").write_bytes(b"something else, and long enough to be read as a frame")

    with pytest.raises(InvalidSnapshot, match="move it away"):
        run_process(tmp_path / "counters", Clock(), charge_counters)


def test_a_truncated_file_is_rejected_with_a_reason(tmp_path: Path) -> None:
    run_process(tmp_path / "counters", Clock(), charge_counters)
    data = (tmp_path / "counters").read_bytes()
    (tmp_path / "counters").write_bytes(data[:-3])

    with pytest.raises(InvalidSnapshot, match="is damaged"):
        run_process(tmp_path / "counters", Clock(), charge_counters)


def test_a_file_of_a_newer_format_is_rejected_with_a_reason(tmp_path: Path) -> None:
    data = msgspec.msgpack.encode({"type": "counters", "form": FORMAT_VERSION + 1})
    (tmp_path / "counters").write_bytes(len(data).to_bytes(4, "big") + data)

    with pytest.raises(InvalidSnapshot, match="written by a newer version"):
        run_process(tmp_path / "counters", Clock(), charge_counters)


def test_an_empty_file_is_rejected_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "counters").write_bytes(b"")

    with pytest.raises(InvalidSnapshot, match="is not a counter file"):
        run_process(tmp_path / "counters", Clock(), charge_counters)


def test_counters_may_change_while_they_are_saved() -> None:
    limiter = InMemoryLimiter()
    for number in range(5_000):
        limiter.send(a_user(f"user{number}"))
    frames = generate_frames(limiter.counters)
    next(frames)
    limiter.counters.tables["core"].reset("user:user4999")
    limiter.send(a_user("another"))

    assert sum(1 for _ in frames) >= 3


# -- the limit on keys ---------------------------------------------------------------------------------------------


def send_from_addresses(limiter: InMemoryLimiter, count: int, *, network: str = "192.0.2.0/24") -> list[int]:
    """Send once from each of `count` addresses of one network. Return the used count of each reply."""
    return [limiter.send(anonymous(f"a{number}", network)).used for number in range(count)]


def make_bounded_limiter(keys_most: int) -> InMemoryLimiter:
    return InMemoryLimiter(f"keys_most = {keys_most}\n")


def test_3_6_new_addresses_above_the_maximum_share_the_bucket_of_their_network() -> None:
    assert send_from_addresses(make_bounded_limiter(5), 8) == [1, 1, 1, 1, 1, 1, 2, 3]


def test_3_6_addresses_with_a_counter_keep_their_own_bucket() -> None:
    limiter = make_bounded_limiter(5)
    send_from_addresses(limiter, 8)

    assert limiter.send(anonymous("a2")).used == 2


def test_3_6_networks_are_counted_separately() -> None:
    limiter = make_bounded_limiter(5)
    send_from_addresses(limiter, 7)

    assert limiter.send(anonymous("b1", "198.51.100.0/24")).used == 1


def test_3_6_only_full_quotas_are_evicted() -> None:
    limiter = make_bounded_limiter(5)
    send_from_addresses(limiter, 5)
    limiter.wait(HOUR_MS)
    used_counts = send_from_addresses(limiter, 5)

    assert (used_counts, len(limiter.counters.tables["core"])) == ([1] * 5, 5)


def test_3_6_callers_with_credentials_never_share_a_bucket() -> None:
    limiter = make_bounded_limiter(2)
    send_from_addresses(limiter, 4)

    assert [limiter.send(a_user(f"u{number}")).used for number in range(10)] == [1] * 10


def test_a_network_that_shares_a_bucket_shares_its_limit() -> None:
    limiter = make_bounded_limiter(1)
    admitted = sum(limiter.send(anonymous(f"a{number}")).is_admitted for number in range(200))

    assert admitted == 1 + 60


def test_a_sweep_removes_idle_counters_and_keeps_others() -> None:
    limiter = InMemoryLimiter()
    for number in range(2_500):
        limiter.send(a_user(f"u{number}"), "/search/users")
    limiter.wait(2 * MINUTE_MS)
    limiter.send(a_user("late"))
    for _ in limiter.counters.sweep(limiter.now_ms):
        pass

    assert {name: len(limiter.counters.tables[name]) for name in ("core", "search", "points", "concurrent")} == {
        "core": 1,
        "search": 0,
        "points": 1,
        "concurrent": 0,
    }


def test_a_sweep_pauses_after_each_batch() -> None:
    limiter = InMemoryLimiter()
    for number in range(2_500):
        limiter.send(a_user(f"u{number}"))
    limiter.wait(2 * HOUR_MS)

    assert max(limiter.counters.sweep(limiter.now_ms)) == 1_000


def test_an_owner_can_open_new_counters_after_its_counters_were_removed() -> None:
    limiter = InMemoryLimiter()
    for number in range(300):
        limiter.send(a_user(), f"/page-{'x' * number}")
    limiter.wait(2 * MINUTE_MS)
    for _ in limiter.counters.sweep(limiter.now_ms):
        pass
    limiter.send(a_user(), "/another")

    assert limiter.count("points", "user:ada GET /another") == 1


def test_the_maximum_of_counters_holds_when_the_shared_counter_is_removed() -> None:
    limiter = InMemoryLimiter()
    for number in range(257):
        limiter.send(a_user(), f"/page-{'x' * number}")
    limiter.wait(MINUTE_MS // 2)
    for number in range(256):
        limiter.send(a_user(), f"/page-{'x' * number}")
    limiter.wait(MINUTE_MS // 2 + 5_000)
    for _ in limiter.counters.sweep(limiter.now_ms):
        pass
    shared_before = "user:ada other" in limiter.counters.tables["points"]
    limiter.send(a_user(), "/another")

    assert (shared_before, limiter.count("points", "user:ada other")) == (False, 1)


def test_refused_requests_open_no_counter_of_their_owner() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "core"\nceiling = 1\nwindow = "1m"\n')
    limiter.send(a_user(), "/first")
    for number in range(300):
        limiter.send(a_user(), f"/page-{'x' * number}")
    limiter.wait(MINUTE_MS)
    limiter.send(a_user(), "/another")

    assert limiter.count("points", "user:ada GET /another") == 1


def test_the_maximum_of_counters_survives_a_restart(tmp_path: Path) -> None:
    clock = Clock()

    async def open_many(counter: Counter) -> list[str]:
        paths = [f"/page-{'x' * number}" for number in range(300)]
        keys = [(await counter.send(a_user(), path)).result.keys for path in paths]
        return [key[2] for key in keys if key]

    before = run_process(tmp_path / "counters", clock, open_many)

    async def open_another(counter: Counter) -> tuple[str, ...]:
        return (await counter.send(a_user(), "/another")).result.keys

    assert (len(before), run_process(tmp_path / "counters", clock, open_another)[2]) == (44, "user:ada other")


def test_a_request_without_a_release_is_removed() -> None:
    limiter = InMemoryLimiter()
    limiter.send(a_user(), request_id="lost", holds=True)
    limiter.wait(2 * HOUR_MS)
    for _ in limiter.counters.sweep(limiter.now_ms):
        pass

    assert limiter.counters.release("lost", limiter.now_ms) is False
