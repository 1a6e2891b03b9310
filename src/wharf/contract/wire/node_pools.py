"""Endpoints and messages of node pools."""

from contextlib import suppress
from typing import Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_read, define_write, flag
from wharf.contract.wire.jobs import messages
from wharf.contract.wire.jobs.endpoints import JOB_LIST
from wharf.contract.wire.nodes.endpoints import NODE_FIELD_PARAMETERS
from wharf.contract.wire.nodes.messages import NodeListStub

IDENTITY_TTL_KEY = "NodeIdentityTTL"


class NodePoolRequest(NodePool):
    """A submitted node pool. Its identity TTL may be text such as `12h`."""

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Return the submitted pool with an identity TTL such as `"12h"` converted to ns.

        Text that is not a duration is left unchanged, so that decoding reports it with its path.
        """
        ttl = submitted.get(IDENTITY_TTL_KEY)
        if isinstance(ttl, str):
            with suppress(DurationError):
                return {**submitted, IDENTITY_TTL_KEY: parse_duration_ns(ttl)}
        return submitted

    def to_record(self) -> NodePool:
        """Return the pool as a `NodePool` record."""
        return NodePool(**{name: getattr(self, name) for name in NodePool.__struct_fields__})


POOL_PARAMETER: Final = "{pool_name...}"
POOL_PATH_PARAMETER: Final = "pool_name"

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "node_pool.list", "/v1/node/pools", need=permissions.ANY_TOKEN, summary="List the node pools that the caller may read.",
        list_features=ListFeatures(record=NodePool), reply_type=list[NodePool],
    ),
    define_read(
        "node_pool.read", f"/v1/node/pool/{POOL_PARAMETER}", need=permissions.READ_NODE_POOL, scope_path_parameter=POOL_PATH_PARAMETER, summary="Read a node pool.",
        reply_type=NodePool,
    ),
    define_write(
        "node_pool.store", "/v1/node/pools", need=permissions.WRITE_NODE_POOL, scope_source=ScopeSource.OBJECT,
        summary="Create or replace a node pool.", body_type=NodePoolRequest,
    ),
    define_write(
        "node_pool.update", f"/v1/node/pool/{POOL_PARAMETER}", need=permissions.WRITE_NODE_POOL, scope_path_parameter=POOL_PATH_PARAMETER,
        summary="Create or replace the node pool with this name.", body_type=NodePoolRequest,
    ),
    define_write(
        "node_pool.delete", f"/v1/node/pool/{POOL_PARAMETER}", method="DELETE", need=permissions.DELETE_NODE_POOL, scope_path_parameter=POOL_PATH_PARAMETER,
        summary="Delete a node pool that is not in use.",
    ),
    define_read(
        "node_pool.nodes", f"/v1/node/pool/{POOL_PARAMETER}/nodes", need=permissions.READ_NODE_POOL_NODES, scope_path_parameter=POOL_PATH_PARAMETER,
        summary="List the nodes of a pool.",
        list_features=ListFeatures(record=Node, hidden_fields=frozenset({"SecretDigest"}), can_reverse=False, has_prefix=False),
        parameters=NODE_FIELD_PARAMETERS, reply_type=list[NodeListStub],
    ),
    define_read(
        "node_pool.jobs", f"/v1/node/pool/{POOL_PARAMETER}/jobs", need=permissions.LIST_NODE_POOL_JOBS, scope_path_parameter=POOL_PATH_PARAMETER,
        summary="List the jobs of a pool.",
        list_features=msgspec.structs.replace(JOB_LIST, has_prefix=False), reply_type=list[messages.JobStub],
        parameters=(flag("meta", "Show the meta of each job."),),
    ),
)  # fmt: skip
