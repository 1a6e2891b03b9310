"""Authentication, and errors."""

from tests.builders import a_job
from tests.cluster.api.access import an_operator
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.spec.rules import rule
from tests.spec.server_requests import get, register
from wharf.cluster.engines.memory.faults import EngineOperation, RefuseFault

READ = 'namespace "default" { policy = "read" }'


@rule("authentication", "token", "header", "bearer", "forbidden")
@rule("errors", "forbidden")
@in_virtual_time
async def test_both_token_headers_authenticate_a_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        token = await a_token(server, READ)
        bearer = {"authorization": f"Bearer {token['x-cluster-token']}"}

        assert [(await get(server, "/v1/jobs", headers=headers)).status for headers in (token, bearer)] == [200, 200]
        refusals = [
            await get(server, "/v1/jobs"),
            await get(server, "/v1/jobs", headers={"x-cluster-token": "nobody's"}),
            await register(server, a_job(), headers=token),
        ]
        assert [(reply.status, reply.body) for reply in refusals] == [(403, b"Permission denied")] * 3


@rule("authentication", "expired", "forbidden")
@in_virtual_time
async def test_an_expired_token_is_refused_with_the_reason() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ)
        guest = await operator.a_token("reader", ExpirationTTL="2m")
        before = await guest.get("/v1/jobs")

        await pass_time(121)

        assert before == (200, [])
        assert await guest.get("/v1/jobs") == (403, "Permission denied")
        assert await guest.put("/v1/jobs", {"Job": {"ID": "shop"}}) == (403, "Permission denied")
        assert await guest.get("/v1/acl/token/self") == (403, "ACL token expired")


@rule("errors", "success")
@in_virtual_time
async def test_success_is_200_or_204() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [
            await get(server, "/v1/jobs"),
            await register(server, a_job()),
            await send_raw(server.api, "DELETE", "/v1/var/nothing/there"),
        ]

        assert [reply.status for reply in replies] == [200, 200, 204]


@rule("errors", "invalid", "unknown")
@in_virtual_time
async def test_an_invalid_request_is_400_and_a_missing_record_is_404() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [
            await get(server, "/v1/jobs", "per_page=many"),
            await get(server, "/v1/jobs", "filter=Nope+==+1"),
            await send_raw(server.api, "PUT", "/v1/jobs", body=b"{"),
            await get(server, "/v1/job/nobody"),
            await get(server, "/v1/nowhere"),
        ]

        assert [reply.status for reply in replies] == [400, 400, 400, 404, 404]


@rule("errors", "server")
@in_virtual_time
async def test_a_failure_of_the_server_is_5xx() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda operation: (
            RefuseFault("the disk is full") if operation is EngineOperation.COMMIT else None
        )

        assert (await register(server, a_job())).status == 503
