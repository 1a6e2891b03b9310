"""Behavior that is the same in every store. The numbers in test names are rules of the design."""

import pytest

from tests.limits.builders import HOUR_MS, MINUTE_MS, SECOND_MS, a_user, anonymous
from tests.limits.stores.contract import Counter, StoreKind, count, kinds
from wharf.limits.core.decision import Verdict
from wharf.limits.core.request import QueryFacts
from wharf.limits.rules import read_rules
from wharf.limits.stores import RefundReason

ISSUES = "/repos/acme/site/issues"

every_kind = pytest.mark.parametrize("kind", kinds())


@every_kind
def test_exactly_the_ceiling_is_admitted_in_a_window(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[bool]:
        return [(await counter.send(anonymous())).is_admitted for _ in range(70)]

    assert count(kind, "", scenario) == [True] * 60 + [False] * 10


@every_kind
def test_2_2_the_end_of_a_window_is_stored_by_its_first_charge(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[int, int, int]:
        first = await counter.send(a_user())
        counter.clock.now_ms += 10 * MINUTE_MS
        second = await counter.send(a_user())
        counter.clock.now_ms = first.result.bucket_end_ms
        third = await counter.send(a_user())
        return second.result.bucket_end_ms - first.result.bucket_end_ms, second.used, third.used

    assert count(kind, "", scenario) == (0, 2, 1)


@every_kind
def test_2_2_reads_and_refusals_open_no_window(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> int:
        for number in range(100):
            await counter.send(a_user(), holds=True, request_id=f"held{number}")
        await counter.send(a_user(), "/search/users")
        counter.clock.now_ms += 5 * SECOND_MS
        return (await counter.reading(a_user(), "search", "/search/users")).end_ms - counter.clock.now_ms

    assert count(kind, "", scenario) == MINUTE_MS


@every_kind
def test_2_2_a_backward_clock_step_resets_no_window(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[Verdict]:
        for _ in range(60):
            await counter.send(anonymous())
        verdicts = []
        for step_ms in (SECOND_MS, HOUR_MS, 24 * HOUR_MS):
            counter.clock.now_ms -= step_ms
            verdicts.append((await counter.send(anonymous())).verdict)
        return verdicts

    assert count(kind, "", scenario) == [Verdict.PRIMARY] * 3


@every_kind
def test_2_3_all_are_charged_or_none(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[int, int, int]:
        for _ in range(85):
            await counter.send(a_user(), ISSUES, method="POST")
        refusal = await counter.send(a_user(), ISSUES, method="POST")
        names = [charge.name for charge in refusal.charges]
        content = refusal.result.counts_before[names.index("content_hourly")]
        return await counter.used(a_user(), "core"), content, refusal.result.counts_before[names.index("points")]

    assert count(kind, "", scenario) == (80, 80, 400)


@every_kind
def test_2_3_every_limit_that_was_hit_is_named_with_its_end(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[list[str], list[int]]:
        for _ in range(80):
            await counter.send(a_user(), ISSUES, method="POST")
        refusal = await counter.send(a_user(), ISSUES, method="POST")
        ends = [(free_ms - counter.clock.now_ms) // SECOND_MS for free_ms in refusal.result.free_at_ms]
        return refusal.list_hit_rules(is_enforced=True), ends

    rules = '[[rule]]\nname = "core"\nceiling = 80\n[[rule]]\nname = "content_hourly"\nceiling = 80\n'
    assert count(kind, rules, scenario) == (["core", "content", "content_hourly"], [3_600, 65, 3_660])


@every_kind
def test_2_4_sliding_windows_never_hold_more_than_the_ceiling(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[bool]:
        for _ in range(900):
            await counter.send(a_user(), ISSUES)
        admitted = []
        for wait_ms in (59_999, 5_001):
            counter.clock.now_ms += wait_ms
            admitted.append((await counter.send(a_user(), ISSUES)).is_admitted)
        return admitted

    assert count(kind, "", scenario) == [False, True]


@every_kind
def test_2_5_leases_run_out_are_renewed_and_are_released_once(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[int, int, int]:
        for number in range(100):
            await counter.send(a_user(), holds=True, request_id=f"held{number}")
        await counter.store.release("held0")
        await counter.store.release("held0")
        free = await counter.used(a_user(), "concurrent")
        counter.clock.now_ms += 30 * SECOND_MS
        await counter.send(a_user(), holds=True, request_id="new")
        revived = await counter.store.renew([f"held{number}" for number in range(100)])
        return free, revived, await counter.used(a_user(), "concurrent")

    assert count(kind, "", scenario) == (99, 99, 100)


@every_kind
def test_2_6_usage_charged_afterwards_can_exceed_the_ceiling(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[list[str], bool]:
        plan = (await counter.send(a_user())).plan
        await counter.store.add_usage(plan.meter_charges, 500_000)
        refusal = await counter.send(a_user())
        counter.clock.now_ms += 60 * SECOND_MS
        return refusal.list_hit_rules(is_enforced=True), (await counter.send(a_user())).is_admitted

    assert count(kind, "", scenario) == (["cpu", "compute"], True)


@every_kind
def test_usage_can_be_taken_back_from_a_window_but_not_below_zero(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[int]:
        for _ in range(3):
            await counter.send(a_user())
        found = []
        for amount in (-2, -5):
            await counter.store.add_usage([counter.charge(a_user(), "core")], amount)
            found.append(await counter.used(a_user(), "core"))
        await counter.send(a_user())
        return [*found, await counter.used(a_user(), "core")]

    assert count(kind, "", scenario) == [1, 0, 1]


@every_kind
def test_usage_is_taken_back_from_the_newest_slice_first(kind: StoreKind) -> None:
    """So that what remains expires as early as possible, and later no count is negative."""

    async def scenario(counter: Counter) -> list[int]:
        charge = [counter.charge(a_user(), "cpu")]
        for amount in (100, 50):
            await counter.store.add_usage(charge, amount)
            counter.clock.now_ms += 20 * SECOND_MS
        found = [await counter.used(a_user(), "cpu")]
        await counter.store.add_usage(charge, -70)
        found.append(await counter.used(a_user(), "cpu"))
        counter.clock.now_ms += 25 * SECOND_MS
        found.append(await counter.used(a_user(), "cpu"))
        return found

    assert count(kind, "", scenario) == [150, 80, 0]


@every_kind
def test_usage_taken_back_from_an_idle_counter_changes_nothing(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[int, int]:
        for rule in ("core", "cpu"):
            await counter.store.add_usage([counter.charge(a_user(), rule)], -5)
        return await counter.used(a_user(), "core"), await counter.used(a_user(), "cpu")

    assert count(kind, "", scenario) == (0, 0)


@every_kind
def test_2_7_a_refund_is_made_once_and_to_its_own_window(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[bool, bool, int, bool, int]:
        await counter.send(a_user(), request_id="first")
        first_refund = await counter.store.refund("first", RefundReason.UNCHANGED)
        second_refund = await counter.store.refund("first", RefundReason.UNCHANGED)
        after = await counter.used(a_user(), "core")
        await counter.send(a_user(), request_id="long", holds=True)
        counter.clock.now_ms += HOUR_MS
        await counter.send(a_user())
        late_refund = await counter.store.refund("long", RefundReason.UNCHANGED)
        return first_refund, second_refund, after, late_refund, await counter.used(a_user(), "core")

    assert count(kind, "", scenario) == (True, False, 0, False, 1)


@every_kind
def test_2_7_faults_refund_at_most_a_tenth_of_the_ceiling_in_a_window(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[bool]:
        for number in range(10):
            await counter.send(anonymous(), request_id=f"f{number}")
        return [await counter.store.refund(f"f{number}", RefundReason.FAULT) for number in range(10)]

    assert count(kind, "", scenario) == [True] * 6 + [False] * 4


@every_kind
def test_3_2_the_same_request_id_never_charges_twice(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[list[int], bool]:
        decisions = [await counter.send(a_user(), request_id="same", holds=True) for _ in range(3)]
        await counter.store.release("same")
        decisions.append(await counter.send(a_user(), request_id="same"))
        return [decision.used for decision in decisions], decisions[-1].result.is_repeated

    assert count(kind, "", scenario) == ([1, 1, 1, 1], True)


@every_kind
def test_3_2_a_refused_request_id_stays_refused(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[bool]:
        for _ in range(60):
            await counter.send(anonymous())
        first = await counter.send(anonymous(), request_id="same")
        counter.clock.now_ms = first.result.bucket_end_ms
        repeated = await counter.send(anonymous(), request_id="same")
        other_decision = await counter.send(anonymous())
        return [first.is_admitted, repeated.is_admitted, other_decision.is_admitted]

    assert count(kind, "", scenario) == [False, False, True]


@every_kind
def test_3_4_a_given_clock_is_the_only_clock(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> int:
        counter.clock.now_ms = 5_000_000_000_000
        return (await counter.send(a_user())).reset_s

    assert count(kind, "", scenario) == 5_000_000_000 + 3_600


@every_kind
def test_4_3_bans_are_stored_with_the_counters(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[Verdict]:
        await counter.store.ban("token:t1", counter.clock.now_ms + MINUTE_MS)
        during = await counter.send(a_user())
        await counter.store.ban("token:t1", 0)
        return [during.verdict, (await counter.send(a_user())).verdict]

    assert count(kind, "", scenario) == [Verdict.BANNED, Verdict.ADMITTED]


@every_kind
def test_4_3_a_caller_that_continues_while_refused_is_banned(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> set[Verdict]:
        verdicts = set()
        for _ in range(4 * 60 * 4):
            verdicts.add((await counter.send(a_user(), "/search/code")).verdict)
            counter.clock.now_ms += 250
        return verdicts

    rules = '[[rule]]\nname = "code_search"\nwindow = "1h"\n'
    assert count(kind, rules, scenario) == {Verdict.ADMITTED, Verdict.PRIMARY, Verdict.BANNED}


@every_kind
def test_2_1_counters_continue_under_changed_rules_with_the_same_names(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> tuple[int, int]:
        await counter.send(a_user())
        rules = read_rules(
            '[[rule]]\nname = "core"\nceiling = 7\n[[rule]]\nname = "zen"\nmatch = ["GET /zen"]\nresource = "zen"\nceiling = 3\n'
        )
        await counter.store.set_rules(rules)
        counter.limiter = counter.limiter.copy_with_rules(rules)
        decision = await counter.send(a_user())
        return decision.limit, decision.used

    assert count(kind, "", scenario) == (7, 2)


@every_kind
def test_a_reset_counter_starts_at_0(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> int:
        decision = await counter.send(a_user())
        await counter.store.reset([decision.bucket_charge])
        return (await counter.send(a_user())).used

    assert count(kind, "", scenario) == 1


@every_kind
def test_a_cost_of_many_points_is_charged_completely_or_not_at_all(kind: StoreKind) -> None:
    async def scenario(counter: Counter) -> list[tuple[bool, int]]:
        outcomes = []
        for cost in (4_000, 1_001, 1_000, 1):
            query = QueryFacts(cost=cost, points=1)
            decision = await counter.send(a_user(), "/graphql", method="POST", query=query)
            outcomes.append((decision.is_admitted, await counter.used(a_user(), "graphql", "/graphql")))
        return outcomes

    assert count(kind, "", scenario) == [(True, 4_000), (False, 4_000), (True, 5_000), (False, 5_000)]
