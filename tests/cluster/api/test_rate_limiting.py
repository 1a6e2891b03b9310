"""How the rate limiter in front of the API treats requests: whose budget they use."""

import pytest

from tests.kit.cluster import ACluster
from tests.kit.exchange import build_scope
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.api.asgi import Receive, Scope, Send
from wharf.cluster.api.rate_limiting import RequestClassifier
from wharf.contract.model.secrets import hash_secret


class KnownSecret:
    """Knows the token "known" only."""

    def is_known_token(self, sha256: str) -> bool:
        return sha256 == hash_secret("known")


async def reject_all(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("headers", "authorization"),
    [
        ([(b"x-cluster-token", b"known")], "Bearer known"),
        ([(b"authorization", b"bearer known")], "Bearer known"),
        ([(b"x-nomad-token", b"known")], "Bearer known"),
        ([(b"x-cluster-token", b"other")], None),
        ([(b"x-cluster-token", b"known\xa0")], None),
        ([(b"authorization", b"Bearer\xa0known")], None),
        ([(b"x-cluster-token", b"other"), (b"x-cluster-token", b"known")], None),
        ([(b"x-nomad-token", b"known"), (b"authorization", b"Bearer other")], None),
    ],
)
@in_virtual_time
async def test_a_request_uses_the_budget_of_the_token_that_access_control_reads(
    headers: list[tuple[bytes, bytes]], authorization: str | None
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        classifier = RequestClassifier(reject_all, server.server, KnownSecret(), is_nomad_compatible=True)

        scope = {**build_scope("GET", "/v1/jobs", query="", headers={}), "headers": headers}
        assert classifier.classify_request(scope)["authorization"] == authorization


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/v1/event/stream", "", "waiting"),
        ("/v1/event/changes", "", "waiting"),
        ("/v1/jobs", "index=5", "waiting"),
        ("/v1/jobs", "index=0", "plain"),
        ("/v1/limits", "", "plain"),
    ],
)
@in_virtual_time
async def test_streams_and_blocking_queries_take_no_slot_of_requests_that_compute(
    path: str, query: str, expected: str
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        classifier = RequestClassifier(reject_all, server.server, None)

        assert classifier.classify_request(build_scope("GET", path, query=query, headers={}))["class"] == expected
