"""Identities that nodes request: those of their tasks, and their own."""

import base64
import json
from typing import Any

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.api.access import ApiCaller, an_operator, status_and_json
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.state import SECRET, a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, KEYRING, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.identities import WorkloadIdentity
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.times import HOUR, MINUTE, SECOND

NODE = "5f0c8a9e-0000-4000-8000-000000000001"
VAULT = WorkloadIdentity(name="vault", audience=("vault.example",), ttl=10 * MINUTE)
JOB = a_job("web", a_group("front", a_task("app", identities=(VAULT,))))
ALLOCATION = an_allocation(JOB, id="11111111-1111-4111-8111-111111111111", node_id=NODE)


async def start_server_with_allocation(cluster: ACluster, allocation: Allocation = ALLOCATION) -> ApiCaller:
    """Start a server with this allocation, and return an operator."""
    operator = await an_operator(cluster)
    server = operator.server.server
    puts = [
        NODES.build_put(a_node(NODE)),
        NODES.build_put(a_node("other")),
        JOB_VERSIONS.build_put(JOB),
        ALLOCATIONS.build_put(allocation),
    ]
    await server.writer.commit(Write("test", Cause(CauseKind.REQUEST), puts))
    await server.writer.catch_up()
    return operator


async def as_node(
    operator: ApiCaller, path: str, body: object = None, *, node: str = NODE, secret: str = SECRET
) -> tuple[int, Any]:
    headers = {"X-Cluster-Node-Secret": secret}
    sent = b"" if body is None else json.dumps(body).encode()
    return status_and_json(
        await send_raw(operator.server.api, "POST", f"/v1/node/{node}/{path}", headers=headers, body=sent)
    )


def build_request(*names: str) -> dict[str, object]:
    return {"AllocID": ALLOCATION.id, "Task": "app", "Names": names}


def claims_of(jwt: str) -> dict[str, Any]:
    middle_token = jwt.split(".")[1]
    matches: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle_token + "=" * (-len(middle_token) % 4)))
    return matches


@in_virtual_time
async def test_a_node_gets_the_identities_that_the_jobs_of_its_tasks_declare() -> None:
    async with ACluster() as cluster:
        operator = await start_server_with_allocation(cluster)

        status, reply = await as_node(operator, "identities", build_request("default", "vault"))
        default, vault = reply["Identities"]

        assert (status, default["Name"], default["Expires"], vault["Name"]) == (200, "default", 0, "vault")
        assert claims_of(default["JWT"])["sub"] == "global:default:web:front:app:default"
        assert (claims_of(vault["JWT"])["aud"], claims_of(vault["JWT"])["exp"] * SECOND) == (
            ["vault.example"],
            vault["Expires"],
        )
        assert await ApiCaller(operator.server, default["JWT"]).get("/v1/vars") == (200, [])


@in_virtual_time
async def test_a_node_gets_no_identity_for_other_nodes_tasks_or_finished_allocations() -> None:
    async with ACluster() as cluster:
        operator = await start_server_with_allocation(cluster)

        assert (await as_node(operator, "identities", build_request("default"), node="other"))[0] == 403
        assert (await as_node(operator, "identities", build_request("default"), secret="a guess"))[0] == 403
        undeclared_name = await as_node(operator, "identities", build_request("admin"))
        assert undeclared_name == (400, 'task "app" does not declare an identity "admin"')
        server = operator.server.server
        over = replace(ALLOCATION, client_status=ClientStatus.COMPLETE)
        await server.writer.commit(Write("test", Cause(CauseKind.REQUEST), [ALLOCATIONS.build_put(over)]))
        await server.writer.catch_up()
        assert (await as_node(operator, "identities", build_request("default")))[0] == 400


@in_virtual_time
async def test_the_identity_of_a_node_grants_no_access() -> None:
    async with ACluster() as cluster:
        operator = await start_server_with_allocation(cluster)

        status, reply = await as_node(operator, "identity")
        claims = claims_of(reply["Identity"]["JWT"])

        assert (status, claims["sub"]) == (200, f"node:global:default:{NODE}:default")
        assert (claims["nomad_node_id"], claims["exp"] - claims["iat"]) == (NODE, 24 * HOUR // SECOND)
        assert reply["SigningKeyID"] in [key.key_id for key in operator.server.replica.iter_all(KEYRING)]
        assert (await ApiCaller(operator.server, reply["Identity"]["JWT"]).get("/v1/vars"))[0] == 403
