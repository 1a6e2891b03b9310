"""Helpers for tests of the specification: short requests and records."""

import json
from typing import Any

import msgspec

from tests.kit.cluster import OneServer
from tests.kit.exchange import send_raw
from wharf.contract.client import ClientReply
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


async def read_list(server: OneServer, path: str, query: str = "", **options: Any) -> list[Any]:
    reply = await get(server, path, query, **options)
    assert reply.status == 200, reply.body
    found: list[Any] = json.loads(reply.body)
    return found


async def register(server: OneServer, job: Job, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "PUT", "/v1/jobs", query=query, body=msgspec.json.encode({"Job": job}), **options)


async def write(server: OneServer, *changes: Any) -> int:
    outcome = await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), changes))
    await server.server.writer.catch_up()
    return outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict


def a_deployment(id: str, **fields: Any) -> Deployment:
    all_fields = {"namespace": "default", "job_id": "shop", "create_index": WRITE_INDEX, **fields}
    return Deployment(id=id, **all_fields)


def uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"
