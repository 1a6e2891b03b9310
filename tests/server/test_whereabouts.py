"""Who holds the connection of which node: told to whoever leads, also to the next one."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, seen
from wharf.server.whereabouts import WHERE_IS, Holding, Place, Telling, Whereabouts, WhereIs

HERE, THERE = Place("m1", "api-1"), Place("m2", "api-1")


async def place_of(whereabouts: Whereabouts, node: str) -> Place | None:
    return (await whereabouts.find(WhereIs(node))).place


@in_virtual_time
async def test_the_newest_place_of_a_node_counts() -> None:
    whereabouts = Whereabouts()
    await whereabouts.hear(Holding(HERE, ("a", "b")))
    await whereabouts.hear(Holding(THERE, ("b",)))
    await whereabouts.hear(Holding(HERE, (), let_go=("b",)))

    assert (HERE, THERE, None) == tuple([await place_of(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_what_a_process_tells_as_all_of_it_takes_the_place_of_what_it_told_before() -> None:
    whereabouts = Whereabouts()
    await whereabouts.hear(Holding(HERE, ("a", "b")))
    await whereabouts.hear(Holding(HERE, ("b", "c"), is_whole=True))

    assert (None, HERE, HERE) == tuple([await place_of(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_a_leader_hears_of_connections_that_come_and_go() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        telling = Telling(cluster.world("m1"), server.server.replica, server.server.leader, HERE)
        cluster.start(telling.run(), name="telling")

        async def known() -> Place | None:
            return (await server.server.leader.ask(WHERE_IS, WhereIs("n1"))).place

        telling.hold("n1")
        await seen(known, lambda place: place == HERE, what="the leader knows of the connection")
        telling.let_go("n1")
        await seen(known, lambda place: place is None, what="the leader knows that it is gone")
