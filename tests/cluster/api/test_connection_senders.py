"""What the secrets of a request prove about the sender of its connection."""

from msgspec.structs import replace

from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.state import SECRET, a_node
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.connection_senders import (
    MAX_NODE_CONNECTIONS,
    MAX_SECRET_BYTES,
    MAX_SERVER_CONNECTIONS,
    ProvenSender,
    SenderFinder,
)
from wharf.cluster.state.tables import NODES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.credentials import NODE_SECRET_HEADER, RELAY_SECRET_HEADER, SERVER_SECRET_HEADER

ADDRESS = "10.0.0.7"


async def store_node(server: OneServer, node: Node) -> None:
    await commit(server, NODES.build_put(node))
    await server.server.reader.catch_up()


@in_virtual_time
async def test_a_secret_proves_its_registered_node_until_the_node_has_another_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        node = a_node("n1", create_index=WRITE_INDEX)
        finder = SenderFinder(server.replica, "")
        secrets = {NODE_SECRET_HEADER: SECRET.encode()}

        before = finder.find_sender(secrets, ADDRESS)
        await store_node(server, node)
        registered = finder.find_sender(secrets, ADDRESS)
        await store_node(server, replace(node, secret_digest=hash_secret("a new secret")))
        after = finder.find_sender(secrets, ADDRESS)

        assert (before, registered, after) == (None, ProvenSender("node n1", MAX_NODE_CONNECTIONS), None)


@in_virtual_time
async def test_the_secret_of_this_server_proves_a_server_of_the_region() -> None:
    async with ACluster() as cluster:
        finder = SenderFinder((await cluster.a_server()).replica, "secret of m1")
        expected = ProvenSender(f"servers at {ADDRESS}", MAX_SERVER_CONNECTIONS)

        for header in (SERVER_SECRET_HEADER, RELAY_SECRET_HEADER):
            assert finder.find_sender({header: b"secret of m1"}, ADDRESS) == expected
            assert finder.find_sender({header: b"secret of m2"}, ADDRESS) is None
        assert finder.find_sender({NODE_SECRET_HEADER: b"secret of m1"}, ADDRESS) is None


@in_virtual_time
async def test_an_empty_and_a_long_secret_prove_nothing() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        long_secret = "x" * (MAX_SECRET_BYTES + 1)
        for id, digest in (("n1", ""), ("n2", hash_secret(long_secret))):
            await store_node(server, a_node(id, create_index=WRITE_INDEX, secret_digest=digest))
        finder = SenderFinder(server.replica, "")

        assert finder.find_sender({NODE_SECRET_HEADER: b"", SERVER_SECRET_HEADER: b""}, ADDRESS) is None
        assert finder.find_sender({NODE_SECRET_HEADER: long_secret.encode()}, ADDRESS) is None
