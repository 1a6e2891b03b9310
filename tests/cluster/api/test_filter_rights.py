"""Filters of lists read only fields that the caller may read."""

import json
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from tests.builders import a_group, a_job, a_task
from tests.cluster.api.access import ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.model.acl import permissions
from wharf.contract.wire.endpoint_table import ENDPOINTS
from wharf.contract.wire.jobs.endpoints import JOB_LIST
from wharf.contract.wire.jobs.messages import JobStub
from wharf.languages.filters import iterate_record_selectors, parse_filter

RULES = """
namespace "*" { capabilities = ["list-jobs"] }
namespace "open" { policy = "read" }
node_pool "*" { policy = "read" }
"""
ENVIRONMENT_FILTER = 'any TaskGroups as g { any g.Tasks as t { "PW" in t.Env and t.Env.PW matches "^hidden" } }'
HIDDEN_FILTERS = [
    ENVIRONMENT_FILTER,
    f"not ({ENVIRONMENT_FILTER})",
    'TaskGroups.0.Name == "web"',
    '"/TaskGroups/0/Name" == "web"',
    "TaskGroups is empty",
    'ID == "shop" or Version == 0',
    'Priority == 1 or Update.MaxParallel == 1 or any Datacenters as Update { Update == "x" }',
    'Periodic.Spec == "* * * * *"',
    "Constraints is not empty",
]
SHOWN_FILTERS = [
    'ID == "shop" and Type == "service" and Stop == false and Meta.k == "v"',
    'any Datacenters as d { d == "*" }',
    "Periodic is nil",
]


def build_job(**fields: Any) -> dict[str, Any]:
    task = a_task("server", env={"PW": "hidden"})
    job = a_job("shop", a_group("web", task), meta={"k": "v"}, datacenters=("*",), **fields)
    encoded: dict[str, Any] = json.loads(msgspec.json.encode(job))
    return encoded


async def with_jobs(cluster: ACluster) -> tuple[ApiCaller, ApiCaller]:
    """Return an operator and a caller that may list jobs and, in one namespace, read them. Both namespaces have a job."""
    operator = await an_operator(cluster)
    for name in ("open", "web"):
        await operator.put("/v1/namespace", {"Name": name})
        status, reply = await operator.put("/v1/jobs", {"Job": build_job(namespace=name)})
        assert status == 200, reply
    await operator.policy("lister", RULES)
    return operator, await operator.a_token("lister")


def filtered(text: str, namespace: str = "web") -> str:
    return f"namespace={quote(namespace)}&filter={quote(text)}"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/node/pool/default/jobs"])
@in_virtual_time
async def test_a_filter_on_hidden_fields_is_denied_without_the_right_to_read_jobs(path: str) -> None:
    async with ACluster() as cluster:
        operator, lister = await with_jobs(cluster)

        for text in HIDDEN_FILTERS:
            status, reply = await lister.get(path, filtered(text))
            assert (status, "needs the capability read-job" in reply) == (403, True), (text, reply)
            assert (await operator.get(path, filtered(text)))[0] != 403


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/node/pool/default/jobs"])
@in_virtual_time
async def test_a_filter_on_shown_fields_needs_only_the_right_to_list_jobs(path: str) -> None:
    async with ACluster() as cluster:
        _, lister = await with_jobs(cluster)

        for text in SHOWN_FILTERS:
            status, jobs = await lister.get(path, filtered(text))
            assert (status, [job["ID"] for job in jobs]) == (200, ["shop"]), (text, jobs)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/node/pool/default/jobs"])
@in_virtual_time
async def test_a_filter_over_all_namespaces_omits_jobs_that_the_caller_may_not_read(path: str) -> None:
    async with ACluster() as cluster:
        _, lister = await with_jobs(cluster)

        for text in (ENVIRONMENT_FILTER, "TaskGroups is not empty", "not (TaskGroups is empty)"):
            status, jobs = await lister.get(path, filtered(text, "*"))
            assert (status, [job["Namespace"] for job in jobs]) == (200, ["open"]), text
        assert len((await lister.get(path, filtered('ID == "shop"', "*")))[1]) == 2
        assert (await lister.get(path, filtered(ENVIRONMENT_FILTER, "open")))[0] == 200


def test_the_shown_fields_are_those_of_the_list_item() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(JobStub)}

    assert JOB_LIST.shown_fields <= names
    assert JOB_LIST.shown_presence_fields <= names
    assert names - JOB_LIST.shown_fields - JOB_LIST.shown_presence_fields == {
        "Multiregion", "JobSummary", "GroupCountSum", "Progress", "SubmissionTime"
    }  # fmt: skip


READ_PERMISSIONS = {
    "Allocation": permissions.READ_JOB,
    "Deployment": permissions.READ_JOB,
    "Evaluation": permissions.READ_JOB,
    "HostVolume": permissions.ANY_TOKEN,  # The list omits volumes without host-volume-read.
    "Job": permissions.READ_JOB,
    "KeyringKey": permissions.READ_KEYRING,
    "Node": permissions.READ_NODE,
    "NodePool": permissions.ANY_TOKEN,  # The list shows whole pools, and omits those that the caller may not read.
    "ServiceRegistration": permissions.READ_JOB,
    "Token": permissions.MANAGEMENT_TOKEN,
    "Variable": permissions.ANY_TOKEN,  # Filters cannot read the encrypted items.
}
"""By record type, the permission of a list whose callers may read whole records."""


def test_each_list_with_filters_needs_the_right_to_read_its_records_or_names_the_shown_fields() -> None:
    unprotected = [
        endpoint.name
        for endpoint in ENDPOINTS
        if (lists := endpoint.list_features) is not None
        and lists.can_filter
        and lists.detail_need is None
        and READ_PERMISSIONS.get(lists.record.__name__)
        not in (endpoint.need, *getattr(endpoint.need, "permissions", ()))
    ]

    assert unprotected == []


@pytest.mark.parametrize(
    ("text", "selectors"),
    [
        ('A == 1 and not (B.C is empty or "x" in D)', ["A", "B.C", "D"]),
        ("any A as x { x == 1 and (any x.B as y { y == 1 }) }", ["A"]),
        ("all A as k, v { k == 1 and v.E is nil and F is nil }", ["A", "F"]),
        ("(any A as x { x == 1 }) and x == 2", ["A", "x"]),
    ],
)
def test_the_selectors_of_the_record_are_those_without_bound_names(text: str, selectors: list[str]) -> None:
    assert [str(selector) for selector in iterate_record_selectors(parse_filter(text))] == selectors
