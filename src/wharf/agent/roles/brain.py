"""The brain process: elects, schedules, watches nodes, and answers what only the leader may decide."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from wharf.agent.access_control import open_keyring, tending_settings
from wharf.agent.forked import ForkedSideline, leave_copies_alone
from wharf.agent.identity import folder_name
from wharf.agent.life import CannotStart, Life
from wharf.agent.log_access import describe
from wharf.agent.roles.authoritative import copy_from_elsewhere
from wharf.agent.roles.candidacy import election_of
from wharf.agent.roles.serving import brain_socket, follow, make_server, open_log
from wharf.config.settings import Settings
from wharf.controllers.ages import CollectionSettings
from wharf.controllers.heartbeats import HeartbeatSettings
from wharf.engines.election import Election, IdInUse
from wharf.engines.port import Behind, Unavailable
from wharf.model.refusal import Refusal
from wharf.server.asking import Answers
from wharf.server.brain import Brain
from wharf.server.brain_socket import BrainSocket
from wharf.server.collecting import Collecting
from wharf.server.compactor import Compactor
from wharf.server.drain_watch import DrainWatch
from wharf.server.launcher import Launcher
from wharf.server.quota_watch import QuotaWatch
from wharf.server.rollout_watch import RolloutWatch
from wharf.server.server import Server
from wharf.server.tending import Tending

TRY_AGAIN_S: Final = 1.0
LEAVE_WITHIN_S: Final = 1.0


def collection_settings(settings: Settings) -> CollectionSettings:
    server = settings.server
    return CollectionSettings(
        interval_s=server.job_gc_interval.s,
        evaluation_ns=server.eval_gc_threshold.ns,
        batch_evaluation_ns=server.batch_eval_gc_threshold.ns,
        job_ns=server.job_gc_threshold.ns,
        deployment_ns=server.deployment_gc_threshold.ns,
        node_ns=server.node_gc_threshold.ns,
    )


async def run(life: Life) -> None:
    leave_copies_alone()
    server = make_server(life)
    election = election_of(server, folder=folder_name(Path(life.order.data_folder)))
    settings = life.order.settings.server
    brain = Brain(
        life.world,
        server.engine,
        server.follower,
        server.writer,
        election,
        heartbeats=HeartbeatSettings(
            min_ttl_s=settings.min_heartbeat_ttl.s,
            grace_s=settings.heartbeat_grace.s,
            failover_ttl_s=settings.failover_heartbeat_ttl.s,
            max_per_second=settings.max_heartbeats_per_second,
        ),
        founder=server.founder,
    )
    Tending(brain, server.access.keyring, tending_settings(life.order.settings))
    RolloutWatch(life.world, brain)
    DrainWatch(life.world, brain)
    Launcher(life.world, brain, server.job_settings)
    Collecting(life.world, brain, collection_settings(life.order.settings))
    QuotaWatch(brain)
    authoritative = copy_from_elsewhere(life, server, brain)
    if not await open_log(life, server.engine):
        return
    door = BrainSocket(life.world, brain_socket(life), Answers(brain, sideline=ForkedSideline(life.world)))
    following = life.world.start(follow(server), name="follower")
    stopping = life.world.start(life.stopping.wait(), name="asked to stop")
    working = life.world.start(_work(life, server, brain, election, door), name="work")
    staying = life.world.start(election.stay_a_member(), name="membership")
    compactor = Compactor(life.world, server.engine, server.follower, brain)
    compacting = life.world.start(compactor.run(), name="compactor")
    await life.first_of([stopping, following, working, staying, compacting])
    await door.close()
    # Whoever leads next need not wait until our lease runs out.
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await election.leave()
    if authoritative is not None:
        await authoritative.close()
    await server.engine.close()


async def _work(life: Life, server: Server, brain: Brain, election: Election, door: BrainSocket) -> None:
    await server.follower.loaded.wait()
    open_keyring(life, server)
    await _found(server)
    try:
        await _join(election)
        await door.open()
        life.ready(state=describe(life.order.settings))
        await brain.run()
    except IdInUse as error:
        raise CannotStart(str(error)) from error


async def _found(server: Server) -> None:
    while True:
        try:
            await server.found()
            return
        except (Refusal, Unavailable):
            await asyncio.sleep(TRY_AGAIN_S)


async def _join(election: Election) -> None:
    """Before anybody is told that this server is ready: its id may be another's."""
    while True:
        try:
            await election.join()
            return
        except (Unavailable, Behind):
            await asyncio.sleep(TRY_AGAIN_S)
