"""Endpoints of node pools."""

from typing import Final

from wharf.model import need
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.model.node_pool import NodePool
from wharf.wire import shapes
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, flag, reads, writes
from wharf.wire.endpoints.nodes import SHOWN_MORE
from wharf.wire.node_pool_shapes import NodePoolRequest
from wharf.wire.node_shapes import NodeListStub

NAME: Final = "{pool_name...}"
OF_THE_PATH: Final = "pool_name"

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "node_pool.list", "/v1/node/pools", need=need.ANY_TOKEN, summary="List the node pools that the caller may read.",
        lists=Lists(record=NodePool), returns=list[NodePool],
    ),
    reads(
        "node_pool.read", f"/v1/node/pool/{NAME}", need=need.READ_POOL, label=OF_THE_PATH, summary="Read a node pool.",
        returns=NodePool,
    ),
    writes(
        "node_pool.store", "/v1/node/pools", need=need.WRITE_POOL, decides=Decides.OBJECT,
        summary="Create a node pool or change it.", body=NodePoolRequest,
    ),
    writes(
        "node_pool.update", f"/v1/node/pool/{NAME}", need=need.WRITE_POOL, label=OF_THE_PATH,
        summary="Create a node pool or change it, under its name.", body=NodePoolRequest,
    ),
    writes(
        "node_pool.delete", f"/v1/node/pool/{NAME}", method="DELETE", need=need.DELETE_POOL, label=OF_THE_PATH,
        summary="Delete a node pool that nobody uses.",
    ),
    reads(
        "node_pool.nodes", f"/v1/node/pool/{NAME}/nodes", need=need.READ_NODES_OF_POOL, label=OF_THE_PATH,
        summary="List the nodes of a pool.",
        lists=Lists(record=Node, hidden=frozenset({"SecretDigest"}), reverses=False, prefix=False),
        parameters=SHOWN_MORE, returns=list[NodeListStub],
    ),
    reads(
        "node_pool.jobs", f"/v1/node/pool/{NAME}/jobs", need=need.LIST_JOBS_OF_POOL, label=OF_THE_PATH,
        summary="List the jobs that name a pool.",
        lists=Lists(record=Job, prefix=False), returns=list[shapes.JobStub],
        parameters=(flag("meta", "Show the meta of each job."),),
    ),
)  # fmt: skip
