"""What a new user must understand without help: states, names, times, filters and short IDs."""

import json
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.web.browsing import SESSION_TTL_NS, Browser, a_browser, a_server_with_access
from tests.web.small_cluster import show_all_pages
from tests.web.strict_html import find_problems
from tests.web.test_pages import a_cluster_with_work, build_job, register
from tests.web.test_sign_in import sign_in
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.state.tables import NODES
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy, UpdatePolicy
from wharf.contract.model.jobs.job import GroupSummary, Job, JobSummary
from wharf.contract.model.jobs.plan import DiffType
from wharf.contract.model.nodes.node import DrainMetadata, DrainStatus, NodeStatus, SchedulingEligibility
from wharf.contract.model.times import HOUR, SECOND
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.nodes.messages import NodeListStub
from wharf.job_files.diff_lines import DiffLine
from wharf.web.pages.lists import describe_filter_error, expand_filter
from wharf.web.views.jobs import build_job_row
from wharf.web.views.plans import build_diff_row
from wharf.web.views.states import describe_node
from wharf.web.views.timeline import format_marks


def text_of(html: str) -> str:
    """Return the text of a page, with single spaces."""
    return " ".join(re.sub("<[^>]*>", " ", html.partition("<main")[2]).split())


def failing_service(name: str, exit_code: int, *, is_retried: bool) -> Job:
    """Return a service whose tasks fail after a second. A retried one is placed again after five seconds, for ever."""
    reschedule = (
        ReschedulePolicy(delay=5 * SECOND, unlimited=True, delay_function="constant", interval=0)
        if is_retried
        else ReschedulePolicy(attempts=0, unlimited=False)
    )
    update = UpdatePolicy(
        max_parallel=1, min_healthy_time=5 * SECOND, healthy_deadline=HOUR, progress_deadline=2 * HOUR
    )
    task = a_task("server", driver="mock", config={"run_for": "1s", "exit_code": exit_code})
    restart = RestartPolicy(attempts=0, mode="fail")
    group = a_group("web", task, count=2, update=update, restart_policy=restart, reschedule_policy=reschedule)
    return a_job(name, group)


@in_virtual_time
async def test_a_rollout_that_failed_beside_running_allocations_shows_its_cause_and_the_way_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 2)
        good = failing_service("shop", 0, is_retried=False)
        lasting = a_task("server", driver="mock", config={"run_for": "24h"})
        await register(server, replace(good, task_groups=(replace(good.groups[0], tasks=(lasting,)),)))
        await pass_time(60)
        await register(server, failing_service("shop", 7, is_retried=False))
        await pass_time(60)
        browser = a_browser(server)

        overview = text_of((await browser.get("/ui")).text)
        page = (await browser.get("/ui/jobs/shop")).text

        assert "The rollout of version 1 of shop failed" in overview
        assert "All is well" not in overview
        facts, _, advice = page.partition("<h2>What would help</h2>")
        assert "shop.web[0], server: Exit Code: 7" in text_of(facts)
        assert "<code>wharf job revert shop 0</code>" in advice
        assert "wharf job scale" not in page.partition("<footer")[0]
        assert find_problems(page) == []


@in_virtual_time
async def test_a_service_that_fails_again_and_again_is_on_the_overview() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 2)
        await register(server, failing_service("crash", 3, is_retried=True))
        await pass_time(62)

        overview = text_of((await a_browser(server).get("/ui")).text)

        assert re.search(r"crash runs 0 of 2 allocations, and its allocations fail \d+ allocations failed", overview)


@in_virtual_time
async def test_a_batch_job_whose_new_version_failed_is_failed_on_all_pages() -> None:
    def a_version(exit_code: int) -> Job:
        task = a_task("main", driver="mock", config={"run_for": "1s", "exit_code": exit_code})
        restart = RestartPolicy(attempts=0, mode="fail")
        reschedule = ReschedulePolicy(attempts=0, unlimited=False)
        return a_batch_job("etl", a_group("main", task, restart_policy=restart, reschedule_policy=reschedule))

    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        await cluster.ready_nodes(server, 1)
        await register(server, a_version(0))
        await pass_time(30)
        await register(server, a_version(3))
        await pass_time(30)
        browser = a_browser(server)

        pages = [(await browser.get(path)).text for path in ("/ui/jobs", "/ui/jobs/etl", "/ui")]

        assert ["</span> failed</span>" in page for page in pages] == [True] * 3
        assert "etl failed" in pages[2]
        assert "etl has failed" in pages[1]
        assert "Exit Code: 3" in pages[1]


@pytest.mark.parametrize(("type", "total", "running"), [("system", 0, 20), ("sysbatch", 0, 20), ("service", 4, 5)])
def test_jobs_that_run_on_each_node_show_no_requested_number(type: str, total: int, running: int) -> None:
    summary = JobSummary(job_id="x", namespace="default", summary={"g": GroupSummary(running=running)})
    job = JobStub(id="x", type=type, status="running", group_count_sum=total or 1, job_summary=summary)

    assert build_job_row(job, 0).total == total


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "ineligible"),
        ({"last_drain": DrainMetadata(status=DrainStatus.COMPLETE)}, "drained"),
        ({"last_drain": DrainMetadata(status=DrainStatus.CANCELED)}, "ineligible"),
        ({"drain": True, "last_drain": DrainMetadata()}, "draining"),
        ({"scheduling_eligibility": SchedulingEligibility.ELIGIBLE}, "ready"),
    ],
)
def test_a_drained_node_and_an_ineligible_one_have_different_states(fields: dict[str, Any], text: str) -> None:
    usual = {"status": NodeStatus.READY, "scheduling_eligibility": SchedulingEligibility.INELIGIBLE}

    assert describe_node(NodeListStub(id="n1", **{**usual, **fields})).text == text


async def a_drained_cluster(cluster: ACluster) -> tuple[OneServer, Browser, str]:
    """Return a server whose node-1 the operator `carla` drains, her browser, and the ID of the node."""
    server = await cluster.a_server("m1")
    nodes = await cluster.ready_nodes(server, 2)
    server.server.access.apply_settings(AccessSettings(is_enabled=True, page_session_ttl_ns=SESSION_TTL_NS))
    server.api = server.exchange.api = server.build_api()
    secret = (await server.client.acl.bootstrap()).secret_id
    headers = {"x-cluster-token": secret}
    browser = a_browser(server)
    body = json.dumps({"Name": "carla", "Type": "management"}).encode()
    created = json.loads((await browser.send("PUT", "/v1/acl/token", headers=headers, body=body)).text)
    await sign_in(browser, created["SecretID"])
    browser.cookies["token"] = secret
    return server, browser, nodes[0].id


@in_virtual_time
async def test_the_person_who_drains_is_named_on_all_pages_with_begin_and_end() -> None:
    async with ACluster() as cluster:
        server, browser, node_id = await a_drained_cluster(cluster)
        name = server.replica.get(NODES, node_id).name  # type: ignore[union-attr]
        await browser.post(f"/ui/nodes/{node_id}/drain", {"deadline": "1h", "note": "new disks", "confirmed": "yes"})
        during = text_of((await browser.get(f"/ui/nodes/{node_id}")).text)
        await pass_time(30)

        after = (await browser.get(f"/ui/nodes/{node_id}")).text
        activity = (await browser.get("/ui/activity?kind=nodes")).text
        overview = text_of((await browser.get("/ui")).text)

        assert "by carla (note: new disks). Begun 2026-01-01 00:00 UTC" in during + text_of(after)
        assert re.search(r"Ended 2026-01-01 00:0\d UTC, \d+s ago", text_of(after))
        assert "Make it eligible again" in after
        assert "Put it back into service" in after
        assert "Take it out of service" not in after
        assert ">carla</a>" in activity
        assert f"Node {name} is drained by carla" in overview


@in_virtual_time
async def test_a_version_names_who_submitted_it() -> None:
    async with ACluster() as cluster:
        _, browser, _ = await a_drained_cluster(cluster)
        body = json.dumps({"Job": json.loads(msgspec.json.encode(build_job("shop", 1)))}).encode()
        await browser.send("PUT", "/v1/jobs", headers={"x-cluster-token": browser.cookies["token"]}, body=body)

        page = text_of((await browser.get("/ui/jobs/shop/versions")).text)

        assert "ago by Bootstrap Token" in page


@in_virtual_time
async def test_a_node_and_an_allocation_open_by_their_short_id_and_a_node_by_its_name() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        node = (await server.client.nodes.list()).value[0]
        allocation = (await server.client.jobs.allocations("shop")).value[0]

        found = [
            (await browser.get(path)).get_header("location")
            for path in (f"/ui/nodes/{node.name}", f"/ui/nodes/{node.id[:8]}", f"/ui/allocations/{allocation.id[:8]}")
        ]
        missing = await browser.get("/ui/nodes/no-such-node")

        assert found == [f"/ui/nodes/{node.id}", f"/ui/nodes/{node.id}", f"/ui/allocations/{allocation.id}"]
        assert (missing.status, "no node has the name" in missing.text) == (404, True)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("shop", 'ID contains "shop" or Name contains "shop"'),
        (" shop-1.x ", 'ID contains "shop-1.x" or Name contains "shop-1.x"'),
        ('Type == "batch"', 'Type == "batch"'),
        ("Stop", 'ID contains "Stop" or Name contains "Stop"'),
        ("not Stop", "not Stop"),
        ("", ""),
    ],
)
def test_a_filter_without_operators_is_a_part_of_a_name(text: str, expression: str) -> None:
    assert expand_filter(text, ("ID", "Name")) == expression


def test_a_refused_filter_shows_the_reason_without_the_words_of_the_parser() -> None:
    text = "failed to create result paginator: failed to read filter expression: no field Colour"

    assert describe_filter_error(text, ("Name",)) == (
        "The filter is not valid: no field Colour\nA text without operators finds all names that contain it."
    )


def test_a_refused_filter_names_the_unknown_field_and_the_known_ones() -> None:
    start = "failed to read result page: 1:1 (0): error finding value in datum: /Colour at part 0: couldn't find key: "
    field = 'struct field with name "Colour" in Job'

    assert describe_filter_error(f"{start}{field}; the fields are ID, Name", ()) == (
        "The filter is not valid: Job has no field Colour; its fields are ID, Name"
    )
    assert describe_filter_error(f'{start}{field}; did you mean "Color"?', ()) == (
        "The filter is not valid: Job has no field Colour; did you mean Color?"
    )


@in_virtual_time
async def test_an_address_with_the_beginning_of_no_id_says_so() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        page = await browser.get("/ui/allocations/00000000")

        text = "no allocation that you may see has an ID that begins with &#34;00000000&#34;"
        assert (page.status, text in page.text) == (404, True)


@in_virtual_time
async def test_the_nodes_that_were_compared_have_their_names() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        first = (await server.client.jobs.allocations("shop")).value[0]
        names = [node.name for node in (await server.client.nodes.list()).value]

        page = (await browser.get(f"/ui/allocations/{first.id}")).text

        assert [f">{name}</a>" in page.partition("Scores of nodes")[2] for name in names] == [True] * 3


@in_virtual_time
async def test_lists_find_parts_of_names_and_say_if_a_namespace_may_not_exist() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        jobs, nodes = (
            (await browser.get("/ui/jobs?filter=ho")).text,
            (await browser.get("/ui/nodes?filter=node-2")).text,
        )
        empty = (await browser.get("/ui/jobs?namespace=nope")).text

        assert re.findall(r'id="job-default/([^"]+)"', jobs) == ["shop"]
        assert re.findall(r"<tr id=\"node-", nodes) == ['<tr id="node-']
        assert "no jobs in the namespace nope, or there is no such namespace" in empty


@in_virtual_time
async def test_a_name_that_others_begin_with_is_no_exact_hit() -> None:
    async with ACluster() as cluster:
        server, browser = await a_cluster_with_work(cluster)
        await register(server, build_job("shop-2", 1))

        page = await browser.get("/ui/search?q=shop")

        assert (page.status, ">shop-2</a>" in page.text) == (200, True)


@in_virtual_time
async def test_a_search_finds_tokens_for_who_may_read_them() -> None:
    async with ACluster() as cluster:
        server, token = await a_server_with_access(cluster)
        browser = a_browser(server)
        await sign_in(browser, token)

        page = (await browser.get("/ui/search?q=ootstrap")).text

        assert '<h2 id="found-tokens">Tokens</h2>' in page
        assert 'href="/ui/access/tokens?prefix=' in page


def test_the_marks_of_a_timeline_differ() -> None:
    now = 100 * HOUR

    assert format_marks([now - 2 * HOUR, now - HOUR, now], now) == ["2h ago", "1h ago", "now"]
    assert format_marks([now - 60 * HOUR - 1_800 * SECOND + step * SECOND for step in range(2)], now) == [
        "15:30:00", "15:30:01",
    ]  # fmt: skip


def test_what_a_task_printed_is_not_missing_in_silence_if_it_may_not_be_read() -> None:
    pages = show_all_pages()
    logs, job = pages["logs-of-reader"].text, pages["job-failed-of-reader"].text

    assert "The logs could not be read: " in logs
    assert "No line yet" not in logs
    assert "printed last could not be read: " in job
    assert "marks lines of stderr" in pages["logs"].text


def test_a_deployment_is_named_beside_the_rollout_and_promotion_is_a_button_without_advice() -> None:
    page = show_all_pages()["job-in-rollout"].text

    assert "Commands call it deployment " in page
    assert "wharf deployment promote" not in page
    assert ">Promote</button>" in page


def test_limits_are_in_the_menu() -> None:
    assert '<a href="/ui/limits" aria-current="page" data-key="g l">Limits</a>' in show_all_pages()["limits"].text


def test_a_narrow_list_of_nodes_names_pool_class_and_memory() -> None:
    assert '<span class="narrow detail"><br>pool default, class large, 100 MB</span>' in show_all_pages()["nodes"].text


def test_advice_is_apart_from_facts() -> None:
    facts, _, advice = show_all_pages()["job-waiting"].text.partition("<h2>What would help</h2>")

    assert "1 other node is left out: node is ineligible (node-3)" in text_of(facts)
    assert "lower MemoryMB of web/server" not in facts
    assert "lower MemoryMB of web/server" in advice.partition("</ul>")[0]


def test_notes_of_differences_are_plain_words() -> None:
    line = DiffLine(0, DiffType.EDITED, "Task server (forces create/destroy update)")

    assert build_diff_row(line).text == "Task server (replaces allocations)"


@in_virtual_time
async def test_commands_of_a_list_that_is_searched_for_a_word_contain_its_whole_filter() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        for path, command, api in (
            ("/ui/jobs?filter=ho", 'wharf job status --filter \'ID contains "ho" or Name contains "ho"\'', "/v1/jobs"),
            (
                "/ui/nodes?filter=no",
                'wharf node status --filter \'Name contains "no" or ID contains "no"\'',
                "/v1/nodes",
            ),
        ):
            page = unescape((await browser.get(path)).text)
            assert command in page
            (query,) = set(re.findall(rf"127.0.0.1:\d+{api}\?([^']+)'", page))
            assert parse_qs(query)["filter"] == [command.split("'")[1]]


@in_virtual_time
async def test_commands_of_each_list_contain_the_filter_of_the_page() -> None:
    async with ACluster() as cluster:
        _, browser = await a_cluster_with_work(cluster)

        for path, command, api in (
            (
                'volumes?filter=Name+%3D%3D+"a"',
                "wharf volume status --filter 'Name == \"a\"'",
                "/v1/volumes?namespace=*&",
            ),
            ('pools?filter=Name+%3D%3D+"a"', "wharf node pool list --filter 'Name == \"a\"'", "/v1/node/pools?"),
            ('variables?filter=Path+%3D%3D+"a"', "wharf var list", "/v1/vars?namespace=*&"),
        ):
            page = unescape((await browser.get(f"/ui/{path}")).text)
            assert command in page
            expression = path.partition("filter=")[2].replace('"', "%22")
            assert f"{api}filter={expression}'" in page
