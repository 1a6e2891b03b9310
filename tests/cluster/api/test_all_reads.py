"""No read holds the event loop: each GET of the endpoint table, on a state with thousands of records in every list.

A new read needs no change here, unless it reads a table or has an id that this module does not know.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from msgspec import inspect
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group
from tests.cluster.api.test_read_limits import send, store_all, store_large_state
from tests.kit.cluster import OneServer
from tests.kit.loop_holds import MeasuredCluster
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import SETTLED_S, an_id
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.state import tables
from wharf.contract.model.jobs.job import Parameterized
from wharf.contract.model.jobs.steps import Need
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.wire.endpoint_table import ENDPOINTS, Endpoint, EndpointKind

RECORDS: Final = 3_000
"""Records in each list. To encode this number in one step takes 60 ms or more."""
MIN_ITEMS: Final = 1_000
"""How many items each list must have, so that it takes long."""
IDS: Final[Mapping[str, str]] = {
    "job_id": "big", "eval_id": an_id(0, 2), "alloc_id": an_id(0, 1), "deployment_id": an_id(0, 5), "node_id": "node-big",
    "service_name": "shared", "policy_id": an_id(0, 10), "pool_name": "default", "namespace_name": "default", "quota_name": "q",
    "volume_id": an_id(0, 9), "name": "name0", "accessor_id": an_id(0, 7), "role_id": an_id(0, 6), "path": "v/0",
    "rule_id": an_id(0, 8),
}  # fmt: skip
"""Ids of records that exist, by the name of their part of the path. Where possible, many other records refer to them."""
SHORT_LISTS: Final[Mapping[str, str]] = {
    "evaluation.count": "is a number",
    "service.list": "has one item for each namespace",
    "keyring.list": "has one item for each key of the cluster, of which there are few",
    "quota.usages": "has the quotas that namespaces use; each namespace is counted",
}
"""Lists that stay short whatever the state, and why."""
UNREADABLE: Final[Mapping[str, int]] = {
    "job.submission": 400,  # It needs a version.
    "flow.run": 400,  # The job has no steps. A test of `test_flows.py` reads the largest run.
    "node.former": 403,  # The secret of the node is missing.
    "node.desired": 403,
    "acl.token.self": 404,  # The request has no token.
    "acl.token.read": 503,  # No key encrypted these secrets.
    "variable.read": 503,
}
"""The statuses of reads that this state does not answer with 200."""
RUN: Final = a_batch_job("run", a_group("build"), a_group("test", depends=(Need(on="build"),)))
"""A job with steps."""
COMPUTED_IN_A_COPY: Final = frozenset(("cluster.usage", "job.explain", "evaluation.explain", "allocation.explain"))
"""Reads that a copy of the brain computes. Here it would be this process."""
READS: Final = [
    endpoint
    for endpoint in ENDPOINTS
    if endpoint.kind is EndpointKind.READ
    and endpoint.method == "GET"
    and not endpoint.unsupported_reason
    and endpoint.name not in COMPUTED_IN_A_COPY
]


def build_record(record_type: type, **fields: Any) -> Any:
    """Return a record with these fields. Other required fields get a value of their type."""
    info = inspect.type_info(record_type)
    assert isinstance(info, inspect.StructType)
    values = {field.name: _build_value(field.type) for field in info.fields if field.required} | fields
    if any(field.name == "create_index" for field in info.fields):
        values.setdefault("create_index", WRITE_INDEX)
    return record_type(**values)


def _build_value(kind: inspect.Type) -> Any:
    match kind:
        case inspect.UnionType():
            return _build_value(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.StructType():
            return build_record(kind.cls)
        case inspect.DateTimeType():
            return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        case inspect.StrType() | inspect.IntType() | inspect.FloatType() | inspect.BoolType() | inspect.BytesType():
            simple = {inspect.StrType: "x", inspect.IntType: 1, inspect.FloatType: 1.0, inspect.BoolType: False}
            return simple.get(type(kind), b"x")
        case inspect.DictType():
            return {}
    return ()


async def store_long_lists(server: OneServer) -> None:
    """Store many records in every table that a list reads."""
    await store_large_state(server)
    puts: list[Any] = []
    templates: dict[str, Any] = {}
    for n in range(RECORDS):
        node = a_node(f"n{n:05}", node_pool="default", attributes={f"attr.{k}": f"value{k}" for k in range(40)})
        puts.append(tables.NODES.build_put(node))
        puts.append(tables.JOBS.build_put(replace(RUN, id=f"run{n:05}")))
        puts.append(tables.JOBS.build_put(replace(RUN, id=f"flow{n:05}", parameterized_job=Parameterized())))
        rules = 'namespace "x" { policy = "read" }'
        for table, fields in (
            (tables.DEPLOYMENTS, {"id": an_id(n, 5), "namespace": "default", "job_id": "big"}),
            (tables.ACL_POLICIES, {"name": f"name{n}", "rules": rules}),
            (tables.ACL_ROLES, {"id": an_id(n, 6), "name": f"name{n}"}),
            (tables.ACL_TOKENS, {"accessor_id": an_id(n, 7), "secret_digest": f"d{n}"}),
            (tables.ACL_AUTH_METHODS, {"name": f"name{n}"}),
            (tables.ACL_BINDING_RULES, {"id": an_id(n, 8), "auth_method": f"name{n}"}),
            (tables.NAMESPACES, {"name": f"ns{n}"}),
            (tables.NODE_POOLS, {"name": f"pool{n}"}),
            (tables.QUOTAS, {"name": f"q{n}"}),
            (tables.HOST_VOLUMES, {"id": an_id(n, 9), "name": f"v{n}", "namespace": "default", "node_id": "node-big"}),
            (
                tables.SCALING_POLICIES,
                {"id": an_id(n, 10), "target": {"Namespace": "default", "Job": "big", "Group": "web"}},
            ),
        ):
            if table.name not in templates:
                templates[table.name] = build_record(table.record_type)
            puts.append(table.build_put(replace(templates[table.name], **fields)))
    await store_all(server, puts)
    await pass_time(SETTLED_S)


def build_path(endpoint: Endpoint) -> str:
    return "/".join(
        quote(IDS[part.strip("{}").removesuffix("...")], safe="") if part.startswith("{") else part
        for part in endpoint.path.split("/")
    )


def list_queries(endpoint: Endpoint) -> list[str]:
    """Return queries that make the read take as long as possible: with all that it can return, and with a filter."""
    flags = [f"{each.name}=true" for each in endpoint.parameters if each.kind.name == "FLAG"]
    queries = ["&".join(flags), "&".join([*flags, "pretty"])]
    if endpoint.list_features is not None:
        queries += ["namespace=*&reverse=true", "namespace=*&per_page=1"]
        if endpoint.list_features.can_filter:
            queries += [f"namespace=*&filter={quote(expression)}" for expression in ('ID != "zzz"', 'Name != "zzz"')]
    return queries


@in_virtual_time
async def test_no_read_of_the_endpoint_table_holds_the_loop() -> None:
    problems: list[str] = []
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        await store_long_lists(server)
        # The application does not check callers, but answers requests about tokens.
        server.server.access.apply_settings(AccessSettings(is_enabled=True))
        for endpoint in READS:
            for query in list_queries(endpoint):
                reply, holds = await send(server, build_path(endpoint), query)

                target = f"{endpoint.name}?{query}"
                holds.require_short(target)
                is_refused_filter = reply.status == 400 and "filter=" in query
                if reply.status != UNREADABLE.get(endpoint.name, 200) and not is_refused_filter:
                    problems.append(f"{target}: {reply.status} {reply.body[:200]!r}")
            if endpoint.list_features is not None and endpoint.name not in SHORT_LISTS:
                reply, _ = await send(server, build_path(endpoint))
                if not reply.body.startswith(b"[") or len(json.loads(reply.body)) < MIN_ITEMS:
                    problems.append(f"{endpoint.name}: too short: {reply.body[:200]!r}")
    assert problems == []
