"""Small words for tests of endpoints about work: records written into the log as they are, and requests about them."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from tests.builders import admitted
from tests.kit.cluster import OneServer
from tests.kit.exchange import ask
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
"""After so long the leader has made true what follows from the last write."""


def an_id(number: int, group: int = 0) -> str:
    """A UUID that begins with the number in hex."""
    return f"{number:08x}-{group:04x}-4000-8000-000000000000"


async def store(server: OneServer, *changes: Any) -> int:
    """Write these, whoever else writes; answers the index."""
    outcome = await server.server.writer.commit(Write("test", CAUSE, changes))
    assert isinstance(outcome, Committed)
    await server.server.follower.wait_until_applied(outcome.index)
    return outcome.index


async def a_stored_job(server: OneServer, job: Job, **fields: Any) -> Job:
    """The job as if it had been registered and had nothing left to do."""
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


async def pause_broker(server: OneServer, *, rests: bool = True) -> None:
    """The scheduler rests, or goes on."""
    configuration = server.replica.get(SCHEDULER_CONFIGURATION) or SchedulerConfiguration(create_index=WRITE_INDEX)
    await store(server, SCHEDULER_CONFIGURATION.build_put(replace(configuration, pause_eval_broker=rests)))


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await ask(server.api, "GET", path, query=query, **options)


async def put(server: OneServer, path: str, body: object = None, query: str = "", **options: Any) -> ClientReply:
    data = b"" if body is None else msgspec.json.encode(body)
    return await ask(server.api, "PUT", path, query=query, body=data, **options)


async def delete(server: OneServer, path: str, body: object = None, query: str = "", **options: Any) -> ClientReply:
    data = b"" if body is None else msgspec.json.encode(body)
    return await ask(server.api, "DELETE", path, query=query, body=data, **options)


async def found(server: OneServer, path: str, query: str = "", headers: Mapping[str, str] | None = None) -> Any:
    """The body of a read that succeeds."""
    reply = await get(server, path, query, headers=headers)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def ids_of(server: OneServer, path: str, query: str = "", headers: Mapping[str, str] | None = None) -> list[str]:
    return [each["ID"] for each in await found(server, path, query, headers)]


def told(reply: ClientReply) -> tuple[int, bytes]:
    return reply.status, reply.body


async def refused(server: OneServer, reply: Any) -> tuple[int, str]:
    """How the request was refused; it changed nothing."""
    await pass_time(SETTLED_S)
    before = server.replica.index
    given = await reply
    await pass_time(SETTLED_S)
    await server.server.writer.catch_up()
    assert server.replica.index == before
    assert "x-cluster-index" not in given.headers
    return given.status, given.body.decode()
