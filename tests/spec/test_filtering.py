"""The filter language on lists. The tests in `tests/languages/filters` cover the language itself."""

from urllib.parse import quote

import pytest

from tests.builders import a_job
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time
from tests.spec.rules import rule
from tests.spec.server_requests import a_deployment, get, read_list, register, uuid, write
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import DEPLOYMENTS, JOBS
from wharf.contract.model.deployments import DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX


async def with_jobs(cluster: ACluster) -> OneServer:
    server = await cluster.a_server(leads=False)
    jobs = [
        Job(id="web", name="web", type="service", priority=50, datacenters=("dc1", "dc2"), meta={"a b": "x", "team": "red"}),
        Job(id="db", name="db", type="service", priority=70, datacenters=("dc1",), task_groups=(TaskGroup(name="disk"),)),
        Job(id="nightly", name="line\nend", type="batch", priority=50, datacenters=()),
    ]  # fmt: skip
    stamped = [Job(**{f: getattr(j, f) for f in j.__struct_fields__} | {"create_index": WRITE_INDEX, "namespace": "default"}) for j in jobs]  # fmt: skip
    await write(server, *(JOBS.build_put(job) for job in stamped))
    return server


def assert_filter_selects(text: str, expected: list[str]) -> None:
    """Assert that the filter selects exactly these jobs."""

    @in_virtual_time
    async def scenario() -> None:
        async with ACluster() as cluster:
            server = await with_jobs(cluster)

            found = await read_list(server, "/v1/jobs", f"stale&filter={quote(text)}")

            assert [job["ID"] for job in found] == expected

    scenario()


@rule("filtering", "equality")
@pytest.mark.parametrize(
    ("text", "expected"),
    [('Type == "batch"', ["nightly"]), ('Type != "batch"', ["db", "web"]), ("Priority == 70", ["db"])],
)
def test_equality(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "emptiness")
@pytest.mark.parametrize(
    ("text", "expected"), [("Datacenters is empty", ["nightly"]), ("Datacenters is not empty", ["db", "web"])]
)
def test_emptiness(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "containment", "selectors-that-occur")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Datacenters contains "dc2"', ["web"]),
        ('Datacenters not contains "dc1"', ["nightly"]),
        ('"dc1" in Datacenters', ["db", "web"]),
        ('"dc1" not in Datacenters', ["nightly"]),
        ('"eb" in ID', ["web"]),
        ('"team" in Meta', ["web"]),
    ],
)
def test_containment(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "patterns")
@pytest.mark.parametrize(
    ("text", "expected"), [('ID matches "^[dw]"', ["db", "web"]), ('ID not matches "b$"', ["nightly"])]
)
def test_patterns(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "selectors", "map-keys")
@pytest.mark.parametrize(
    ("text", "expected"), [('Meta.team == "red"', ["web"]), ('Meta["a b"] == "x"', ["web"]), ("Meta.team is empty", ["db", "nightly"])]
)  # fmt: skip
def test_selectors(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "values")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Type == batch", ["nightly"]),
        ("Type == `batch`", ["nightly"]),
        ('Name == "line\\nend"', ["nightly"]),
        ("Name == `line\\nend`", []),
        ("Priority == 50", ["nightly", "web"]),
    ],
)
def test_values(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "precedence", "whitespace")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Priority == 50 and not Type == batch or ID == db", ["db", "web"]),
        ("(Priority == 50 and (not Type == batch)) or ID == db", ["db", "web"]),
        ("Priority == 50 and not (Type == batch or ID == db)", ["web"]),
        ("  Type==batch\n\t or   ID  ==  db ", ["db", "nightly"]),
    ],
)
def test_precedence_and_white_space(text: str, expected: list[str]) -> None:
    assert_filter_selects(text, expected)


@rule("filtering", "whole-object")
@in_virtual_time
async def test_a_match_inside_an_array_gives_the_whole_object() -> None:
    async with ACluster() as cluster:
        server = await with_jobs(cluster)

        text = 'any TaskGroups as g { g.Name == "disk" }'
        (job,) = await read_list(server, "/v1/jobs", f"stale&filter={quote(text)}")

        assert (job["ID"], job["Priority"]) == ("db", 70)


@rule("filtering", "with-others")
@in_virtual_time
async def test_a_filter_beside_another_filtering_parameter_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        for other_filter in ("status=pending", "job=web"):
            reply = await get(server, "/v1/evaluations", f"stale&{other_filter}&filter={quote('ID is not empty')}")
            message = b"Filter expression cannot be used with other filter parameters"
            assert (reply.status, reply.body) == (400, message)


@rule("filtering", "selectors-that-occur")
@in_virtual_time
async def test_deployments_are_filtered_by_their_status_and_groups() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        groups = {"web": DeploymentGroup(promoted=True)}
        await write(
            server,
            DEPLOYMENTS.build_put(a_deployment(uuid(1), status=DeploymentStatus.SUCCESSFUL)),
            DEPLOYMENTS.build_put(a_deployment(uuid(2), status=DeploymentStatus.RUNNING, task_groups=groups)),
        )

        async def list_selected(text: str) -> list[str]:
            return [d["ID"] for d in await read_list(server, "/v1/deployments", f"stale&filter={quote(text)}")]

        assert await list_selected("TaskGroups.web is not empty") == [uuid(2)]
        assert await list_selected("TaskGroups.web is empty") == [uuid(1)]
        assert await list_selected('Status == "successful"') == [uuid(1)]
        assert await list_selected("web in TaskGroups") == [uuid(2)]
        assert await list_selected("web in TaskGroups and TaskGroups.web.Promoted == true") == [uuid(2)]


@rule("filtering", "selectors")
@pytest.mark.parametrize("selector", ["1ID", "_ID", "I-D", "ID..Name", ".ID", "ID."])
@in_virtual_time
async def test_a_selector_must_be_a_name(selector: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        text = quote(f'{selector} == "x"')
        reply = await get(server, "/v1/jobs", f"filter={text}")

        assert reply.status == 400
        assert b"failed to read filter expression: 1:" in reply.body


@rule("filtering", "values")
@in_virtual_time
async def test_numbers_may_be_whole_or_floating() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        replies = [
            await get(server, "/v1/jobs", f"stale&filter={quote(text)}")
            for text in ("Priority == 5.5", "Priority == 5")
        ]

        assert [reply.status for reply in replies] == [
            400,
            200,
        ]  # A filter may contain 5.5, but a priority is a whole number.
        assert b'"5.5" is not a whole number' in replies[0].body


@rule("filtering", "on-the-leader")
@in_virtual_time
async def test_a_filter_uses_the_leaders_state_unless_the_read_is_stale() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)
        second.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=2.0) if operation is EngineOperation.FEED else None
        )
        await register(first, a_job())
        query = f"filter={quote('ID == shop')}"

        stale = await read_list(second, "/v1/jobs", f"stale&{query}")
        default = await read_list(second, "/v1/jobs", query)

        assert (stale, [job["ID"] for job in default]) == ([], ["shop"])


@rule("filtering", "on-the-leader")
@in_virtual_time
async def test_without_a_leader_only_a_stale_filter_is_answered() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        query = f"filter={quote('ID == shop')}"

        assert [(await get(server, "/v1/jobs", q)).status for q in (query, f"stale&{query}")] == [500, 200]
