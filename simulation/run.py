"""One seed: a cluster is built, works while everything goes wrong, is left in peace, and is judged."""

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from simulation.chaos import LEASE_RAN_OUT, Chaos
from simulation.cluster import Cluster, new_log
from simulation.complaints import ErrorLines, attentive
from simulation.history import History
from simulation.invariants import (
    BatchInvariants,
    Transition,
    require_equal,
    require_whole,
)
from simulation.ledger import Ledger
from simulation.linearizability import Model, check_all
from simulation.loop import RunFailed, SimulatedLoop, StandsStill
from simulation.models import NOTHING, Answer, Asked, Purge, Read, Register, Restored, Seen, VersionedRecord
from simulation.plants import Plant, plant
from simulation.reads import Judge
from simulation.rest import is_anything_to_keep, require_rest
from simulation.rollouts import RolloutInvariants
from simulation.sketches import value_of
from simulation.story import Broken, LogLines, Story
from simulation.tasks import TaskInvariants
from simulation.weather import CALM, Weather
from simulation.witness import Taken, Witness
from simulation.workload import Workload
from wharf.engines.port import LEASE_ENDED
from wharf.model.changes import join_key
from wharf.state.tables import JOBS, LEADER

EVENTS_LEAST: Final = 2_000
FAULTS_LEAST: Final = 10
WORKS_AT_LEAST_S: Final = 60.0
WORKS_AT_MOST_S: Final = 900.0
FULL_CHECK_EVERY: Final = 200
STEPS_MAX: Final = 1_500_000
RESTS_AT_MOST_S: Final = 400.0
WAITS_TOO_LONG_S: Final = 200.0
"""Then whatever waits for room has waited so long that a node is to be kept for it."""


class Failure(msgspec.Struct, frozen=True):
    text: str
    story: Sequence[str]


class Result(msgspec.Struct, frozen=True):
    """What a seed came to."""

    seed: int
    fingerprint: str
    events: int
    steps: int
    virtual_s: float
    real_s: float
    faults: dict[str, int]
    transitions: dict[Transition, int]
    calls: int
    reads_judged: int
    full_checks: int
    failure: Failure | None


class Run:
    def __init__(self, seed: int, *, bug: Plant | None = None, shuffle: bool = True) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed, shuffle=shuffle, steps_max=STEPS_MAX)
        self.story = Story(self.loop)
        self.log = new_log(self.loop, seed)
        self.weather = Weather(seed)
        self.weather.roughness = CALM
        self.witness = Witness(self.story, self.loop.fail)
        self.ledger = Ledger(self.witness, self.story, self.loop.fail)
        self.cluster = Cluster(seed, self.loop, self.log, self.weather, self.ledger)
        self.tasks = TaskInvariants(self.cluster, self.witness)
        self.log.eye = self.witness
        self.invariants = BatchInvariants(self.witness)
        self.rollouts = RolloutInvariants(self.witness, self.loop.time)
        self.witness.checks += [self._count_leases, self._check_in_full_now_and_then]
        self.judge = Judge(self.witness)
        self.chaos = Chaos(self.cluster, self.story)
        self.workload = Workload(self.cluster, self.judge, self.story)
        self.witness.checks.append(self.workload.on_batch)
        self.witness.on_new_epoch.append(lambda: self.workload.on_restored(self.witness.replica))
        self.full_checks = 0
        self._checked_at = 0
        self.cluster.serving = lambda process, app: attentive(app, process.name, self.loop.fail)
        if bug is not None:
            plant(bug, self.cluster)

    # -- the course of it ------------------------------------------------------------------------------------------

    def go(self) -> Result:
        began_s = time.perf_counter()
        handlers = (LogLines(self.story), ErrorLines(self.loop.fail))
        logger = logging.getLogger("wharf")
        before = logger.level, logger.propagate
        for handler in handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        failure = None
        try:
            self.loop.run_until_complete(self._course())
            self._require_acknowledged()
            self._require_linearizable()
        except Broken as broken:
            failure = self._failure(str(broken), broken.about)
        except (RunFailed, StandsStill) as error:
            failure = self._failure(str(error), ())
        except Exception as error:  # The top of a run: whatever it is, it is this seed's.
            failure = self._failure("".join(traceback.format_exception(error)), ())
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
            self.loop.abandon()
        return Result(
            seed=self.seed, fingerprint=self.loop.fingerprint, events=self.story.events, steps=self.loop.steps,
            virtual_s=self.loop.time(), real_s=time.perf_counter() - began_s, faults=dict(self.weather.counts),
            transitions=dict(self.invariants.transitions), calls=len(self.workload.history.calls) + len(self.workload.switches.calls),
            reads_judged=self.judge.judged, full_checks=self.full_checks, failure=failure,
        )  # fmt: skip

    async def _course(self) -> None:
        self.cluster.start()
        await asyncio.sleep(8.0)
        self.workload.start()
        raging = self.cluster.log_world.start(self.chaos.rage(), name="chaos")
        began_s = self.loop.time()
        while not self._has_seen_enough(began_s):
            await asyncio.sleep(1.0)
            if raging.done():
                raging.result()
        raging.cancel()
        await asyncio.gather(raging, return_exceptions=True)
        await self.workload.stop()
        await self.chaos.calm()
        await asyncio.sleep(30.0)
        await self.workload.tidy_up()
        await self._come_to_rest()
        if is_anything_to_keep(self.witness.replica):
            await asyncio.sleep(WAITS_TOO_LONG_S)
            await self._come_to_rest()
        self._check_in_full(deep=True)

    def _has_seen_enough(self, began_s: float) -> bool:
        worked_s = self.loop.time() - began_s
        enough = self.story.events >= EVENTS_LEAST and sum(self.weather.counts.values()) >= FAULTS_LEAST
        return (enough and worked_s >= WORKS_AT_LEAST_S) or worked_s > WORKS_AT_MOST_S

    async def _come_to_rest(self) -> None:
        """Until everything is done that can be done; what is still not so at the end is told."""
        until_s = self.loop.time() + RESTS_AT_MOST_S
        while True:
            await asyncio.sleep(10.0)
            try:
                require_rest(self.witness, self._leaders_clock_ns())
                self.tasks.what_runs_is_what_the_log_says()
                self._require_caught_up()
                return
            except Broken:
                if self.loop.time() > until_s:
                    raise

    def _leaders_clock_ns(self) -> int:
        """Clocks that were stepped stay so; by the leader's it is told who has waited long enough."""
        leader = self.witness.replica.get(LEADER)
        offset_ns = self.cluster.clock_offsets_ns.get(leader.member_id, 0) if leader is not None else 0
        return self.cluster.log_world.now_ns() + offset_ns

    def _require_caught_up(self) -> None:
        for process in self.cluster.server_processes:
            at = process.server.replica.index if process.server is not None else 0
            if at < self.log.head:
                raise Broken(f"{process.name} stands at {at}; the log at {self.log.head}", process.name)

    # -- judging ---------------------------------------------------------------------------------------------------

    def _count_leases(self, taken: Taken) -> None:
        if taken.batch.kind == LEASE_ENDED:
            self.weather.count(LEASE_RAN_OUT)

    def _check_in_full_now_and_then(self, _taken: Taken) -> None:
        if self.story.events - self._checked_at >= FULL_CHECK_EVERY:
            self._checked_at = self.story.events
            self._check_in_full(deep=False)

    def _check_in_full(self, *, deep: bool) -> None:
        self.full_checks += 1
        require_whole(self.witness)
        self.tasks.what_is_to_stop_ends()
        for process in self.cluster.server_processes:
            if process.is_alive and process.server is not None and process.server.replica.index:
                require_equal(self.witness, process.server.replica, process.name, deep=deep)

    def _require_acknowledged(self) -> None:
        """Every write that was acknowledged is in the log, at the index told, as it was asked for."""
        for call in self.workload.history.calls:
            answer = call.answer
            if isinstance(call.asked, Read | Restored) or not isinstance(answer, Seen) or answer == NOTHING:
                continue
            job = self.witness.at(JOBS, join_key("default", call.key), answer.version)
            if isinstance(call.asked, Purge):
                if job is not None:
                    raise Broken(f"a purged job stands in the log: {call.told()}", call.key)
                continue
            if job is None or job.modify_index != answer.version:
                raise Broken(f"an acknowledged write is not in the log: {call.told()}", call.key)
            if answer.value is not None and value_of(job) != answer.value:
                raise Broken(f"the log has {value_of(job)} in place of an acknowledged write: {call.told()}", call.key)

        for job_id, index in self.workload.dispatched.items():
            if self.witness.at(JOBS, join_key("default", job_id), index) is None:
                raise Broken(f"{job_id} was dispatched and is not in the log at {index}", job_id)

    def _require_linearizable(self) -> None:
        _require_explained(self.workload.history, VersionedRecord())
        _require_explained(self.workload.switches, Register(True))

    def _failure(self, text: str, about: Sequence[str]) -> Failure:
        return Failure(text, [str(line) for line in self.story.of(about)])


def _require_explained(history: History[Asked, Answer], model: Model[Any, Asked, Answer]) -> None:
    for key, verdict in check_all(history.calls, model).items():
        if not verdict.is_linearizable:
            told = "\n".join(f"  {call.told()}" for call in history.calls if call.key == key)
            stuck = "\n".join(f"  {call.told()}" for call in verdict.stuck)
            raise Broken(f"no order of these calls explains their answers; stuck at\n{stuck}\nof\n{told}", key)


def run_seed(seed: int, *, bug: Plant | None = None, shuffle: bool = True) -> Result:
    return Run(seed, bug=bug, shuffle=shuffle).go()
