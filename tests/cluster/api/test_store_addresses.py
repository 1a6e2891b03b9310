"""While the store of the log is away, only callers who may read the agent or the operator learn its addresses."""

import pytest

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time

REASON = "the log in memory cannot be reached"
"""What names the addresses of etcd in a cluster with etcd."""
REQUESTS = [
    ("GET", "/v1/jobs"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/agent/self"),
    ("PUT", "/v1/namespace/shop"),
    ("GET", "/v1/agent/health"),
]


async def read_texts(server: OneServer, headers: dict[str, str]) -> dict[str, str]:
    """Return the text of the reply to each request."""
    texts = {}
    for method, path in REQUESTS:
        body = b'{"Name": "shop"}' if method == "PUT" else b""
        reply = await send_raw(server.api, method, path, headers=headers, body=body)
        texts[path] = reply.body.decode()
    return texts


@in_virtual_time
async def test_callers_without_rights_learn_no_address_of_a_lost_store() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        reads_jobs = await a_token(server, 'namespace "default" { policy = "write" }')
        unknown = {"x-cluster-token": server.world.new_id()}
        await server.server.reader.catch_up()
        server.faults.disconnect()
        await pass_time(60.0)

        for headers in ({}, unknown, {"x-cluster-token": "x" * 40}, reads_jobs):
            for path, text in (await read_texts(server, headers)).items():
                assert "the store has not replied since 20" in text, (path, text)
                assert REASON not in text, (path, text)


@pytest.mark.parametrize("rules", ['agent { policy = "read" }', 'operator { policy = "read" }', ""])
@in_virtual_time
async def test_callers_who_may_read_the_agent_or_the_operator_learn_why_the_store_is_lost(rules: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, rules, management=not rules)
        await server.server.reader.catch_up()
        server.faults.disconnect()
        await pass_time(60.0)

        texts = await read_texts(server, headers)

        refusals = {path: text for path, text in texts.items() if path != "/v1/agent/self" or not text.startswith("{")}
        assert len(refusals) >= len(texts) - 1
        for path, text in refusals.items():
            assert REASON in text, (path, text)
