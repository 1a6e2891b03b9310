"""Helpers for tests of endpoints: records written to the log without validation, and requests with decoded replies."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.builders import admitted
from tests.kit.cluster import OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import pass_time
from wharf.cluster.engines.port import Committed
from wharf.cluster.state.tables import JOB_VERSIONS, JOBS, NAMESPACES, SCHEDULER_CONFIGURATION
from wharf.contract.client import ClientReply
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration

CAUSE = Cause(CauseKind.REQUEST, "test")
READ = 'namespace "default" { policy = "read" }'
WRITE = 'namespace "default" { policy = "write" }'
DENIED = (403, b"Permission denied")
SETTLED_S = 0.1
"""Seconds after which the leader has committed all consequences of the last write."""


def an_id(number: int, group: int = 0) -> str:
    """Return a UUID that begins with the number in hex."""
    return f"{number:08x}-{group:04x}-4000-8000-000000000000"


async def store(server: OneServer, *changes: Any) -> int:
    """Commit the changes without conditions, and return the index."""
    outcome = await server.server.writer.commit(Write("test", CAUSE, changes))
    assert isinstance(outcome, Committed)
    await server.server.follower.wait_until_applied(outcome.index)
    return outcome.index


async def a_stored_job(server: OneServer, job: Job, **fields: Any) -> Job:
    """Store the job as if it were registered and fully placed, and return it."""
    job = replace(
        admitted(job),
        **{"status": JobStatus.RUNNING, "create_index": WRITE_INDEX, "job_modify_index": WRITE_INDEX, **fields},
    )
    await store(server, JOBS.build_put(job), JOB_VERSIONS.build_put(job))
    stored = server.replica.get(JOBS, job.namespace, job.id)
    assert stored is not None
    return stored


async def a_namespace(server: OneServer, name: str) -> None:
    await store(server, NAMESPACES.build_put(Namespace(name=name, create_index=WRITE_INDEX)))


async def pause_broker(server: OneServer, *, is_paused: bool = True) -> None:
    """Pause the broker, or resume it."""
    configuration = server.replica.get(SCHEDULER_CONFIGURATION) or SchedulerConfiguration(create_index=WRITE_INDEX)
    await store(server, SCHEDULER_CONFIGURATION.build_put(replace(configuration, pause_eval_broker=is_paused)))


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


async def put(server: OneServer, path: str, body: object = None, query: str = "", **options: Any) -> ClientReply:
    data = b"" if body is None else msgspec.json.encode(body)
    return await send_raw(server.api, "PUT", path, query=query, body=data, **options)


async def delete(server: OneServer, path: str, body: object = None, query: str = "", **options: Any) -> ClientReply:
    data = b"" if body is None else msgspec.json.encode(body)
    return await send_raw(server.api, "DELETE", path, query=query, body=data, **options)


async def read_json(server: OneServer, path: str, query: str = "", headers: Mapping[str, str] | None = None) -> Any:
    """Return the decoded body of a successful read."""
    reply = await get(server, path, query, headers=headers)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def list_ids(
    server: OneServer, path: str, query: str = "", headers: Mapping[str, str] | None = None
) -> list[str]:
    return [each["ID"] for each in await read_json(server, path, query, headers)]


def status_and_body(reply: ClientReply) -> tuple[int, bytes]:
    return reply.status, reply.body


async def read_refusal(server: OneServer, reply: Any) -> tuple[int, str]:
    """Return status and text of a refused request, after checking that it changed nothing."""
    await pass_time(SETTLED_S)
    before = server.replica.index
    refusal = await reply
    await pass_time(SETTLED_S)
    await server.server.writer.catch_up()
    assert server.replica.index == before
    assert "x-cluster-index" not in refusal.headers
    return refusal.status, refusal.body.decode()
