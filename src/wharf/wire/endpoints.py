"""The endpoint table: every route of the HTTP API, declared once.

Routing, reading of parameters and bodies, blocking, and the client derive from it. The API's issue adds rights, paging,
filters and the OpenAPI document to these declarations.
"""

import enum
from typing import Final

import msgspec

from wharf.wire import shapes


class Kind(enum.Enum):
    READ = "read"  # From the replica; may block on an index.
    LOCAL = "local"  # About this process; no consistency, no index.
    WRITE = "write"  # Decided on this server.
    ASK = "ask"  # Decided by the leader's brain.


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`path`: `{name}` stands for one segment, `{name...}` for one or more (ids of jobs may hold slashes)."""

    name: str
    method: str  # PUT stands for POST too.
    path: str
    kind: Kind
    body: type | None = None
    body_optional: bool = False


def _read(name: str, path: str) -> Endpoint:
    return Endpoint(name=name, method="GET", path=path, kind=Kind.READ)


ENDPOINTS: Final = (
    _read("job.list", "/v1/jobs"),
    Endpoint(name="job.register", method="PUT", path="/v1/jobs", kind=Kind.WRITE, body=shapes.JobRegisterRequest),
    _read("job.read", "/v1/job/{job_id...}"),
    Endpoint(name="job.update", method="PUT", path="/v1/job/{job_id...}", kind=Kind.WRITE, body=shapes.JobRegisterRequest),
    Endpoint(name="job.deregister", method="DELETE", path="/v1/job/{job_id...}", kind=Kind.WRITE),
    _read("job.allocations", "/v1/job/{job_id...}/allocations"),
    _read("job.evaluations", "/v1/job/{job_id...}/evaluations"),
    _read("job.summary", "/v1/job/{job_id...}/summary"),
    _read("allocation.list", "/v1/allocations"),
    _read("allocation.read", "/v1/allocation/{alloc_id}"),
    _read("evaluation.list", "/v1/evaluations"),
    _read("evaluation.read", "/v1/evaluation/{eval_id}"),
    _read("node.list", "/v1/nodes"),
    _read("node.read", "/v1/node/{node_id}"),
    _read("node.allocations", "/v1/node/{node_id}/allocations"),
    Endpoint(
        name="node.eligibility", method="PUT", path="/v1/node/{node_id}/eligibility", kind=Kind.ASK,
        body=shapes.EligibilityRequest,
    ),
    # What nodes themselves say and ask (architecture section 4).
    Endpoint(name="node.register", method="PUT", path="/v1/node/{node_id}/register", kind=Kind.ASK, body=shapes.NodeRegistration),
    Endpoint(name="node.heartbeat", method="PUT", path="/v1/node/{node_id}/heartbeat", kind=Kind.ASK),
    _read("node.desired", "/v1/node/{node_id}/desired"),
    Endpoint(name="node.fetch", method="POST", path="/v1/node/{node_id}/desired", kind=Kind.LOCAL, body=shapes.DesiredRequest),
    Endpoint(name="node.report", method="PUT", path="/v1/node/{node_id}/report", kind=Kind.ASK, body=shapes.NodeReportRequest),
    # What members ask of each other's brains, as msgpack.
    Endpoint(name="server.ask", method="PUT", path="/v1/server/ask/{subject}", kind=Kind.LOCAL),
    Endpoint(name="status.leader", method="GET", path="/v1/status/leader", kind=Kind.LOCAL),
    Endpoint(name="status.peers", method="GET", path="/v1/status/peers", kind=Kind.LOCAL),
    Endpoint(name="agent.health", method="GET", path="/v1/agent/health", kind=Kind.LOCAL),
    Endpoint(name="agent.members", method="GET", path="/v1/agent/members", kind=Kind.LOCAL),
    Endpoint(name="operator.state", method="GET", path="/v1/operator/state", kind=Kind.LOCAL),
)  # fmt: skip

BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}
