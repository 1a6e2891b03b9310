"""All who ask something of the cluster: people, operators and those who wait for changes, and what they were told."""

import asyncio
from random import Random
from typing import Final

from simulation.cluster import Cluster
from simulation.history import History
from simulation.models import NOTHING, Answer, Asked, Put, Restored, Seen
from simulation.network import Request
from simulation.operator import Operator
from simulation.person import Person
from simulation.process import Process, current_process
from simulation.reads import Judge
from simulation.rollouts import reverted
from simulation.sketches import JOBS_COUNT, JobSketch, value_of
from simulation.story import Story
from simulation.witness import Taken
from wharf.state import Replica
from wharf.state.tables import JOBS, NODES

PEOPLE: Final = 8
OPERATORS: Final = 2
WATCHERS: Final = 10


class Workload:
    def __init__(self, cluster: Cluster, judge: Judge, story: Story) -> None:
        self.cluster = cluster
        self.judge = judge
        self.story = story
        self.history: History[Asked, Answer] = History(cluster.loop)
        self.switches: History[Asked, Answer] = History(cluster.loop)
        """Of the nodes: whether they take new work."""
        self.asking: dict[Process, tuple[History[Asked, Answer], str, Asked]] = {}
        """What each person asks just now, so that a request that comes twice is known for what it is."""
        random = Random(f"{cluster.seed}/jobs")
        self.sketches = [JobSketch(number, random) for number in range(JOBS_COUNT)]
        self.dispatched: dict[str, int] = {}
        """The jobs that dispatches were answered with, and the index told."""
        self.restores = 0
        """How often the log was restored so far."""
        self._values = 0
        self._tasks: list[asyncio.Task[None]] = []
        cluster.network.on_repeated = self._on_repeated

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def start(self) -> None:
        for number in range(PEOPLE):
            person = Person(self, f"person-{number + 1}")
            self._tasks.append(person.process.start(person.live(), name=person.name))
        for number in range(OPERATORS):
            operator = Operator(self, f"operator-{number + 1}")
            self._tasks.append(operator.process.start(operator.live(), name=operator.name))
        for number in range(WATCHERS):
            watcher = Person(self, f"watcher-{number + 1}")
            self._tasks.append(watcher.process.start(watcher.watch(), name=watcher.name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tidy_up(self) -> None:
        """Somebody resumes what was paused, and stops the jobs that fail again and again: with them a cluster never
        comes to rest."""
        operator = Operator(self, "the tidy one")
        await operator.process.start(operator.tidy_up(), name=operator.name)

    def on_restored(self, replica: Replica) -> None:
        """The log is now as this replica shows it: whatever was told of jobs and nodes begins anew from there."""
        self.restores += 1
        for sketch in self.sketches:
            job = replica.get(JOBS, "default", sketch.id)
            stands = NOTHING if job is None else Seen(value_of(job), job.job_modify_index)
            self.history.ok(self.history.begin("the restore", sketch.id, Restored()), stands)
        for host in self.cluster.nodes:
            node = replica.get(NODES, host.node.id) if host.node is not None else None
            eligible = node is None or node.scheduling_eligibility == "eligible"
            self.switches.ok(self.switches.begin("the restore", host.name, Restored()), Seen(eligible, 0))

    def on_batch(self, taken: Taken) -> None:
        """A deployment that fails takes its job back to what it was: a write of a job that nobody asked for."""
        for changed in taken.changes:
            if (job := reverted(taken.batch.kind, changed)) is not None and job.parent_id == "":
                call = self.history.begin("the end of a deployment", job.id, Put(value_of(job)))
                self.history.ok(call, Seen(value_of(job), taken.batch.index))

    def _on_repeated(self, _request: Request) -> None:
        process = current_process()
        asking = self.asking.get(process) if process is not None else None
        if asking is not None:
            history, key, asked = asking
            history.unknown(history.begin("the network", key, asked))
