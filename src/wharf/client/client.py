"""What can be asked of a server, typed. The commands, the nodes and the tests use nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from wharf.client.exchange import Exchange, Reply, Request, Unreachable
from wharf.model.allocation import AllocationStub
from wharf.model.evaluation import Evaluation
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.summary import JobSummary
from wharf.wire import shapes
from wharf.wire.errors import CODE_HEADER, refusal_of

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
BLOCKING_SLACK_S: Final = 30.0
WAIT_DEFAULT_S: Final = 300.0
LONGEST_WAIT: Final = 17 / 16
"""Servers wait up to a sixteenth longer than asked, so that not all come back at once."""


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """A reply's value with its index, for the next blocking query."""

    value: T
    index: int
    known_leader: bool = True
    last_contact_ms: int = 0


class Client:
    def __init__(self, exchange: Exchange, *, namespace: str = "default") -> None:
        self._exchange = exchange
        self._namespace = namespace

    async def close(self) -> None:
        await self._exchange.close()

    # -- any request -----------------------------------------------------------------------------------------------

    async def read(
        self,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        index: int = 0,
        wait_s: float | None = None,
        stale: bool = False,
    ) -> Answer[T]:
        """A GET. With an index it waits until there is something newer, for `wait_s` at most (or as the server likes).

        Raises `Refusal` where the server says no, `Unreachable` where no answer came.
        """
        parameters = {"namespace": self._namespace, **(query or {})}
        timeout_s = TIMEOUT_S
        if index:
            parameters["index"] = str(index)
            if wait_s is not None:
                parameters["wait"] = f"{max(1, round(wait_s * 1000))}ms"  # None at all would mean the server's default.
            waits_s = WAIT_DEFAULT_S if wait_s is None else wait_s
            timeout_s = waits_s * LONGEST_WAIT + BLOCKING_SLACK_S
        if stale:
            parameters["stale"] = ""
        asked = Request("GET", path, tuple(parameters.items()), headers or {}, b"", timeout_s)
        reply = await self._exchange.send(asked)
        return Answer(
            _value(reply, kind),
            _number(reply, "x-cluster-index"),
            reply.headers.get("x-cluster-knownleader", "true") == "true",
            _number(reply, "x-cluster-lastcontact"),
        )

    async def write(
        self,
        method: str,
        path: str,
        body: object,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """A request that may change something. Raises as `read` does; where the answer was lost it may have happened."""
        parameters = {"namespace": self._namespace, **(query or {})}
        coded = b"" if body is None else msgspec.json.encode(body)
        asked = Request(method, path, tuple(parameters.items()), headers or {}, coded, TIMEOUT_S)
        reply = await self._exchange.send(asked)
        return _value(reply, kind)

    # -- work ------------------------------------------------------------------------------------------------------

    async def register_job(self, job: Job, *, enforce_index: int | None = None) -> shapes.JobRegisterResponse:
        request = shapes.JobRegisterRequest(
            job=job, enforce_index=enforce_index is not None, job_modify_index=enforce_index or 0
        )
        return await self.write("PUT", "/v1/jobs", request, shapes.JobRegisterResponse)

    async def deregister_job(self, job_id: str) -> shapes.JobDeregisterResponse:
        return await self.write("DELETE", f"/v1/job/{_part(job_id)}", None, shapes.JobDeregisterResponse)

    async def jobs(self, **options: Any) -> Answer[list[shapes.JobStub]]:
        return await self.read("/v1/jobs", list[shapes.JobStub], **options)

    async def job(self, job_id: str, **options: Any) -> Answer[Job]:
        return await self.read(f"/v1/job/{_part(job_id)}", Job, **options)

    async def job_summary(self, job_id: str, **options: Any) -> Answer[JobSummary]:
        return await self.read(f"/v1/job/{_part(job_id)}/summary", JobSummary, **options)

    async def job_allocations(self, job_id: str, **options: Any) -> Answer[list[AllocationStub]]:
        return await self.read(f"/v1/job/{_part(job_id)}/allocations", list[AllocationStub], **options)

    async def job_evaluations(self, job_id: str, **options: Any) -> Answer[list[Evaluation]]:
        return await self.read(f"/v1/job/{_part(job_id)}/evaluations", list[Evaluation], **options)

    async def allocations(self, **options: Any) -> Answer[list[AllocationStub]]:
        return await self.read("/v1/allocations", list[AllocationStub], **options)

    async def evaluations(self, **options: Any) -> Answer[list[Evaluation]]:
        return await self.read("/v1/evaluations", list[Evaluation], **options)

    # -- machines --------------------------------------------------------------------------------------------------

    async def nodes(self, **options: Any) -> Answer[list[Node]]:
        return await self.read("/v1/nodes", list[Node], **options)

    async def node(self, node_id: str, **options: Any) -> Answer[Node]:
        return await self.read(f"/v1/node/{_part(node_id)}", Node, **options)

    async def set_eligibility(self, node_id: str, *, eligible: bool) -> shapes.NodeUpdateResponse:
        request = shapes.EligibilityRequest(node_id=node_id, eligibility="eligible" if eligible else "ineligible")
        return await self.write("PUT", f"/v1/node/{_part(node_id)}/eligibility", request, shapes.NodeUpdateResponse)

    async def leader(self) -> str:
        return (await self.read("/v1/status/leader", str)).value

    # -- what nodes say --------------------------------------------------------------------------------------------

    async def register_node(self, node: Node, secret_id: str) -> shapes.NodeUpdateResponse:
        body = shapes.NodeRegistration(node=node, secret_id=secret_id)
        return await self.write("PUT", f"/v1/node/{_part(node.id)}/register", body, shapes.NodeUpdateResponse)

    async def heartbeat(self, node_id: str, secret_id: str) -> shapes.NodeUpdateResponse:
        return await self.write(
            "PUT", f"/v1/node/{_part(node_id)}/heartbeat", None, shapes.NodeUpdateResponse, headers=_secret(secret_id)
        )

    async def desired(self, node_id: str, secret_id: str, **options: Any) -> Answer[dict[str, int]]:
        path = f"/v1/node/{_part(node_id)}/desired"
        return await self.read(path, dict[str, int], headers=_secret(secret_id), **options)

    async def fetch(self, node_id: str, secret_id: str, ids: Sequence[str]) -> list[shapes.DesiredAllocation]:
        return await self.write(
            "POST",
            f"/v1/node/{_part(node_id)}/desired",
            shapes.DesiredRequest(ids=tuple(ids)),
            list[shapes.DesiredAllocation],
            headers=_secret(secret_id),
        )

    async def report(self, node_id: str, secret_id: str, report: shapes.NodeReportRequest) -> shapes.NodeReportResponse:
        return await self.write(
            "PUT", f"/v1/node/{_part(node_id)}/report", report, shapes.NodeReportResponse, headers=_secret(secret_id)
        )


def _secret(secret_id: str) -> dict[str, str]:
    return {"x-cluster-node-secret": secret_id}


def _part(id: str) -> str:
    """An id as one part of a path, whatever it holds."""
    return quote(id, safe="")


def _value(reply: Reply, kind: type[T]) -> T:
    if reply.status >= 300:
        text = reply.body.decode("utf-8", "replace") or f"status {reply.status} without a word"
        raise refusal_of(reply.status, text, code=reply.headers.get(CODE_HEADER, ""))
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except msgspec.MsgspecError as error:
        raise Unreachable(f"what answers is no server that this client understands: {error}", sent=True) from error


def _number(reply: Reply, header: str) -> int:
    text = reply.headers.get(header, "0")
    return int(text) if text.isascii() and text.isdigit() else 0
