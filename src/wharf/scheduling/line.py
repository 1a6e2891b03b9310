"""In which order waiting work is tried: priority first, then the namespace that holds least by its weight, then age.

The bounds that follow from it, and that tests hold (docs/scheduling.md):

- nothing is tried before something of a higher priority that could profit from the same room;
- of one priority, two namespaces that both wait never come to differ, in what they were given by weight, by more than the
  largest thing that one of them asked for at once;
- within a priority and a namespace whoever waits longest is first.

It orders, and tries nothing. What is waiting is known to `controllers.blocked`.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from wharf.model.evaluation import Evaluation
from wharf.scheduling.ground import Ground
from wharf.scheduling.shares import dominant
from wharf.scheduling.usage import Usage, demand_of
from wharf.state import Replica
from wharf.state.tables import JOBS, NAMESPACES


class Claim(msgspec.Struct, frozen=True):
    """One that waits. `part`: of the fleet, that it would hold if it were given all that it lacks."""

    id: str
    namespace: str
    priority: int
    since_ns: int
    part: float = 0.0
    create_index: int = 0


class Standing(msgspec.Struct, frozen=True):
    """How a namespace stands: the part of the fleet that it holds, and what weight it has."""

    part: float = 0.0
    weight: int = 1


NOTHING = Standing()


def in_order(claims: Iterable[Claim], standings: Mapping[str, Standing]) -> Iterator[Claim]:
    """Each as if those before it had been given what they claim."""
    by_priority: dict[int, dict[str, list[Claim]]] = {}
    for claim in claims:
        by_priority.setdefault(claim.priority, {}).setdefault(claim.namespace, []).append(claim)
    parts = {name: standing.part for name, standing in standings.items()}
    for _, by_namespace in sorted(by_priority.items(), reverse=True):
        queues = {name: sorted(those, key=_age, reverse=True) for name, those in by_namespace.items()}

        def turn(name: str, queues: dict[str, list[Claim]] = queues) -> tuple[float, int, int, str, str]:
            weight = max(1, standings.get(name, NOTHING).weight)
            return (parts.get(name, 0.0) / weight, *_age(queues[name][-1]), name)

        heap = [turn(name) for name in queues]
        heapq.heapify(heap)
        while heap:
            *_, name = heapq.heappop(heap)
            first = queues[name].pop()
            parts[name] = parts.get(name, 0.0) + first.part
            yield first
            if queues[name]:
                heapq.heappush(heap, turn(name))


def _age(claim: Claim) -> tuple[int, int, str]:
    return claim.since_ns, claim.create_index, claim.id


class Line:
    """The order as the state and the fleet have it now."""

    def __init__(self, snapshot: Replica, ground: Ground) -> None:
        self._snapshot = snapshot
        self._ground = ground

    def order(self, waiting: Iterable[Evaluation], most: int | None = None) -> list[Evaluation]:
        by_id = {each.id: each for each in waiting}
        whole = self._fleet()
        claims = [self._claim(each, whole) for each in by_id.values()]
        standings = {name: self._standing(name, whole) for name in {each.namespace: None for each in by_id.values()}}
        return [by_id[claim.id] for claim in islice(in_order(claims, standings), most)]

    def _fleet(self) -> Usage:
        fleet = self._ground.fleet
        return Usage(int(fleet.cpu.sum()), int(fleet.memory.sum()))

    def _standing(self, namespace: str, whole: Usage) -> Standing:
        known = self._snapshot.get(NAMESPACES, namespace)
        held = dominant(self._ground.shares.held(namespace), whole)
        return Standing(held, 1 if known is None else known.weight)

    def _claim(self, evaluation: Evaluation, whole: Usage) -> Claim:
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        asked = Usage()
        for name, metric in (evaluation.failed_tg_allocs or {}).items():
            group = job.group(name) if job is not None else None
            if group is not None:
                one, number = demand_of(group), metric.coalesced_failures + 1
                asked = asked + Usage(one.cpu * number, one.memory_mb * number)
        return Claim(
            evaluation.id,
            evaluation.namespace,
            evaluation.priority,
            evaluation.waits_since_ns,
            dominant(asked, whole),
            evaluation.create_index,
        )
