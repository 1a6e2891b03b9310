"""A run of placements of one group that takes nothing but amounts: what each node comes to hold, and its score for one more.

It works on numbers of its own, so a placement costs a few sums and not a round over columns; whoever asked for the run
writes its outcome back in one step. What it chooses is what is chosen one by one: it knows the same formula. It never
looks at what is held one by one, at distinct hosts or at volumes.
"""

from heapq import heappop, heappush

from wharf.scheduling.candidates import Candidates
from wharf.scheduling.columns import Floats, Ints
from wharf.scheduling.scoring import NEVER, best_places, packing_of_one
from wharf.scheduling.usage import Usage


class Pile:
    """One node with what the run has put there: the columns of `Candidates`, and the parts of the score."""

    __slots__ = (
        "collisions", "count_room", "cpu", "cpu_with", "disk", "disk_with", "fixed", "is_open", "memory", "memory_with",
        "number", "packed", "taken", "total",
    )  # fmt: skip

    def __init__(self, *amounts: int, fixed: float) -> None:
        self.cpu, self.cpu_with, self.memory, self.memory_with, self.disk, self.disk_with = amounts[:6]
        self.count_room, self.collisions = amounts[6:]
        self.fixed = fixed
        self.taken = 0
        self.packed = self.total = self.number = 0.0
        self.is_open = True

    @property
    def score(self) -> float:
        return self.total / self.number if self.is_open else NEVER


class Filling:
    """`fixed`: by place, what neither comes nor goes with a placement; `parts`: how many parts of the score that are always there.
    `count`: of the group; `keeps_apart`: whether siblings on a node speak against it.
    """

    def __init__(
        self,
        candidates: Candidates,
        demand: Usage,
        *,
        fixed: Floats,
        collisions: Ints,
        parts: int,
        count: int,
        keeps_apart: bool,
        algorithm: str,
    ) -> None:
        self._columns = (
            candidates.cpu, candidates.cpu_with, candidates.memory, candidates.memory_with, candidates.disk,
            candidates.disk_with, candidates.count_room, collisions,
        )  # fmt: skip
        self._demand = demand
        self._fixed = fixed
        self._parts = parts
        self._count = max(1, count)
        self._keeps_apart = keeps_apart
        self._algorithm = algorithm
        self.piles: dict[int, Pile] = {}
        """By place among the candidates: the nodes that were looked at."""
        self.chosen: list[tuple[int, float]] = []
        """Places in the order in which they were taken, each with its score."""

    def look_at(self, places: Ints) -> None:
        """Many at once are cheaper than one by one."""
        rows = zip(*(column[places].tolist() for column in self._columns), strict=True)
        for at, amounts, fixed in zip(places.tolist(), rows, self._fixed[places].tolist(), strict=True):
            self.piles[at] = Pile(*amounts, fixed=fixed)

    def put(self, at: int, score: float) -> Pile:
        """One more there."""
        pile = self.piles.get(at)
        if pile is None:
            pile = Pile(*(column.item(at) for column in self._columns), fixed=self._fixed.item(at))
            self.piles[at] = pile
        self.chosen.append((at, score))
        demand = self._demand
        pile.taken += 1
        pile.collisions += self._keeps_apart
        pile.count_room -= 1
        pile.cpu_with += demand.cpu
        pile.memory_with += demand.memory_mb
        pile.disk_with += demand.disk_mb
        pile.packed = packing_of_one(pile.cpu, pile.cpu_with, pile.memory, pile.memory_with, self._algorithm)
        total, number = pile.packed + pile.fixed, 1.0 + self._parts
        if pile.collisions:
            total, number = total - (pile.collisions + 1) / self._count, number + 1
        pile.total, pile.number = total, number
        pile.is_open = (
            pile.cpu_with <= pile.cpu
            and pile.memory_with <= pile.memory
            and pile.disk_with <= pile.disk
            and pile.count_room > 0
        )
        return pile

    def take_best(self, scores: Floats, number: int) -> None:
        """So many, each on the node that is best then; of equals the one that comes first. A node's score moves only when
        it is taken, so the best are sorted once, and those that were taken come back in a heap.
        """
        order = best_places(scores, number)
        self.look_at(order)
        waiting = list(zip((-scores[order]).tolist(), order.tolist(), strict=True))
        taken: list[tuple[float, int]] = []
        following = 0
        for _ in range(number):
            if following < len(waiting) and not (taken and taken[0] < waiting[following]):
                worst, at = waiting[following]
                following += 1
            elif taken:
                worst, at = heappop(taken)
            else:
                return
            pile = self.put(at, -worst)
            if pile.is_open:
                heappush(taken, (-pile.score, at))

    def taken(self) -> list[tuple[int, Pile]]:
        """The nodes that were taken, with what they hold now."""
        return [(at, pile) for at, pile in self.piles.items() if pile.taken]
