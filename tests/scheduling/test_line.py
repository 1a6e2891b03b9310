"""The order in which waiting work is tried: the bounds that docs/scheduling.md states."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_job
from tests.kit.state import an_evaluation
from tests.scheduling.loop import Loop
from wharf.model.changes import THIS
from wharf.model.evaluation import EvaluationStatus
from wharf.model.metric import AllocMetric
from wharf.model.namespace import Namespace
from wharf.scheduling.ground import Ground
from wharf.scheduling.line import Claim, Line, Standing, in_order
from wharf.state.tables import EVALUATIONS, NAMESPACES

NAMES = ("a", "b", "c", "d")
PARTS = st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.1])

CLAIMS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([10, 50, 90]), st.integers(1, 1_000), PARTS), max_size=40
).map(lambda them: [Claim(f"e{at}", *each) for at, each in enumerate(them)])
STANDINGS = st.dictionaries(
    st.sampled_from(NAMES), st.builds(Standing, st.floats(0, 1, allow_nan=False), st.integers(1, 10))
)


@given(CLAIMS, STANDINGS)
def test_everything_that_waits_is_in_the_line_once(claims: list[Claim], standings: Mapping[str, Standing]) -> None:
    assert sorted(claim.id for claim in in_order(claims, standings)) == sorted(claim.id for claim in claims)


@given(CLAIMS, STANDINGS)
def test_nothing_is_tried_before_something_of_a_higher_priority(
    claims: list[Claim], standings: Mapping[str, Standing]
) -> None:
    priorities = [claim.priority for claim in in_order(claims, standings)]

    assert priorities == sorted(priorities, reverse=True)


@given(CLAIMS, STANDINGS)
def test_within_a_priority_and_a_namespace_whoever_waits_longest_is_first(
    claims: list[Claim], standings: Mapping[str, Standing]
) -> None:
    queues: dict[tuple[str, int], list[int]] = {}
    for claim in in_order(claims, standings):
        queues.setdefault((claim.namespace, claim.priority), []).append(claim.since_ns)

    assert [since for since in queues.values() if since != sorted(since)] == []


@given(
    st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(1, 8), st.lists(PARTS, min_size=30, max_size=30)),
                    min_size=2)
)  # fmt: skip
def test_two_namespaces_that_wait_never_differ_by_more_than_one_claim_in_what_they_were_given_by_weight(
    waiting: dict[str, tuple[int, list[float]]],
) -> None:
    standings = {name: Standing(0.0, weight) for name, (weight, _) in waiting.items()}
    claims = [
        Claim(f"{name}{at}", name, 50, at, part)
        for name, (_, parts) in waiting.items()
        for at, part in enumerate(parts)
    ]
    left = dict.fromkeys(waiting, 30)
    given_by_weight = dict.fromkeys(waiting, 0.0)
    largest = max(part / weight for weight, parts in waiting.values() for part in parts)

    for claim in in_order(claims, standings):
        given_by_weight[claim.namespace] += claim.part / standings[claim.namespace].weight
        left[claim.namespace] -= 1
        if not all(left.values()):
            return  # Who waits for nothing any more has no claim to what the others get.
        assert max(given_by_weight.values()) - min(given_by_weight.values()) <= largest + 1e-9


def test_a_namespace_that_holds_much_waits_behind_one_that_holds_little() -> None:
    claims = [Claim("rich", "rich", 50, 1, 0.1), Claim("poor", "poor", 50, 2, 0.1)]
    standings = {"rich": Standing(0.5, 1), "poor": Standing(0.2, 1)}

    assert [claim.id for claim in in_order(claims, standings)] == ["poor", "rich"]


def test_a_weight_lets_a_namespace_hold_so_many_times_as_much() -> None:
    claims = [Claim("heavy", "heavy", 50, 2, 0.1), Claim("light", "light", 50, 1, 0.1)]
    standings = {"heavy": Standing(0.5, 3), "light": Standing(0.2, 1)}

    assert [claim.id for claim in in_order(claims, standings)] == ["heavy", "light"]


def test_the_line_reads_weights_and_holdings_from_the_state() -> None:
    loop = Loop()
    loop.put(*(NAMESPACES.put(Namespace(name=name, create_index=THIS)) for name in ("rich", "poor")))
    loop.with_node(cpu=10_000, memory_mb=10_000)
    loop.register(a_job("holds", namespace="rich"))
    loop.think()
    for name, index in (("rich", 1), ("poor", 2)):
        job = a_job(f"waits-{name}", namespace=name)
        waits = an_evaluation(
            job,
            f"of-{name}",
            status=EvaluationStatus.BLOCKED,
            create_time=index,
            failed_tg_allocs={"web": AllocMetric()},
        )
        loop.put(EVALUATIONS.put(waits))
    waiting = [each for each in loop.replica.all(EVALUATIONS) if each.status is EvaluationStatus.BLOCKED]

    line = Line(loop.replica, Ground.of(loop.replica))

    assert [each.id for each in line.order(waiting)] == ["of-poor", "of-rich"]


def test_a_job_that_is_looked_at_again_keeps_its_place_in_the_line() -> None:
    loop = Loop()
    loop.register(a_job())
    loop.think()
    loop.pass_time(30)
    loop.register(a_job(priority=60))
    loop.think()
    (waits,) = [each for each in loop.evaluations() if each.status is EvaluationStatus.BLOCKED]

    assert waits.waiting_since + 30_000_000_000 == waits.create_time
