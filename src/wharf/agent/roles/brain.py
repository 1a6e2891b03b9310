"""The brain process: elects, schedules, watches nodes, and answers what only the leader may decide."""

import asyncio

from wharf.agent.life import CannotStart, Life
from wharf.agent.roles.engine import where
from wharf.agent.roles.serving import brain_socket, make_server, open_log
from wharf.agent.roles.sole_election import SoleElection
from wharf.controllers.heartbeats import HeartbeatSettings
from wharf.engines.port import Unavailable
from wharf.model.refusal import Refusal
from wharf.server.asking import Answers
from wharf.server.brain import Brain
from wharf.server.brain_socket import BrainSocket
from wharf.server.server import Server

FOUND_AGAIN_S = 1.0


async def run(life: Life) -> None:
    server = make_server(life)
    if not server.engine.single_server:
        raise CannotStart('state.engine = "etcd" needs an election, which is not built in yet: use "sqlite"')
    settings = life.order.settings.server
    brain = Brain(
        life.world,
        server.engine,
        server.follower,
        server.writer,
        SoleElection(server),
        heartbeats=HeartbeatSettings(
            min_ttl_s=settings.min_heartbeat_ttl.s,
            grace_s=settings.heartbeat_grace.s,
            failover_ttl_s=settings.failover_heartbeat_ttl.s,
        ),
    )
    if not await open_log(life, server.engine):
        return
    door = BrainSocket(life.world, brain_socket(life), Answers(brain))
    following = life.world.start(server.follower.run(), name="follower")
    stopping = life.world.start(life.stopping.wait(), name="asked to stop")
    working = life.world.start(_work(life, server, brain, door), name="work")
    await life.first_of([stopping, following, working])
    await door.close()
    await asyncio.gather(following, working, return_exceptions=True)
    await server.engine.close()


async def _work(life: Life, server: Server, brain: Brain, door: BrainSocket) -> None:
    await server.follower.loaded.wait()
    await _found(server)
    await door.open()
    life.ready(state=where(life.order))
    await brain.run()


async def _found(server: Server) -> None:
    while True:
        try:
            await server.found()
            return
        except (Refusal, Unavailable):
            await asyncio.sleep(FOUND_AGAIN_S)
