"""The page of the audit log, and its view: who did what, with links and pages."""

import html
import re
from pathlib import Path

import pytest

from tests.kit.cluster import ACluster, OneServer
from tests.kit.file_agent import give_files
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import Browser, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from tests.web.test_cluster_pages import read_text
from tests.web.test_pages import find_link
from tests.web.test_sign_in import sign_in
from wharf.contract.wire.agents import AgentMember, AgentMembers
from wharf.contract.wire.operator import AuditEntries, AuditEntry
from wharf.web.views.audit import (
    AuditView,
    build_audit_view,
    describe_endpoint,
    describe_result,
    find_object,
    name_caller,
)

JOB_PATH = "/v1/job/a%2Fb/evaluate"
ALLOC_ID = "8a6f0c44-0000-0000-0000-000000000001"


async def a_server_with_log(cluster: ACluster, folder: Path) -> tuple[OneServer, Browser]:
    """Return a server whose log has two entries, with a browser."""
    server = await cluster.a_server("m1")
    give_files(server, folder)
    browser = a_browser(server)
    await browser.send("PUT", "/v1/namespace", body=b'{"Name": "shop"}')
    await browser.send("DELETE", "/v1/namespace/default")
    return server, browser


def test_the_page_shows_who_did_what_with_its_result_and_a_link(tmp_path: Path) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_server_with_log(cluster, tmp_path)

            page = await browser.get("/ui/activity/audit")

            assert (page.status, find_problems(page.text)) == (200, [])
            text = read_text(page)
            assert "Delete an empty namespace" in text
            assert "refused" in text
            assert 'href="/ui/namespaces/default">default</a>' in page.text
            assert "wharf operator api /v1/operator/audit" in text
            assert "curl http://127.0.0.1:4646/v1/operator/audit" in text

    look()


def test_the_search_and_the_choice_of_failures_stay_in_all_links(tmp_path: Path) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_server_with_log(cluster, tmp_path)

            page = await browser.get("/ui/activity/audit?q=NAMESPACE&failed=yes")
            nothing = await browser.get("/ui/activity/audit?q=nothing-has-this")

            assert page.text.count("<tr data-row>") == 1
            assert find_link(page.text, "all") == "/ui/activity/audit?q=NAMESPACE"
            assert "'/v1/operator/audit?search=NAMESPACE&failed=true'" in read_text(page)
            assert "No entry matches." in read_text(nothing)

    look()


def test_older_entries_are_on_further_pages(tmp_path: Path) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_server_with_log(cluster, tmp_path)
            for number in range(105):
                await browser.send("PUT", "/v1/namespace", body=b'{"Name": "n%d"}' % number)

            first = await browser.get("/ui/activity/audit")
            second = await browser.get(find_link(first.text, "Older"))

            assert (first.text.count("<tr data-row>"), second.text.count("<tr data-row>")) == (100, 7)
            assert find_link(second.text, "Newest") == "/ui/activity/audit"
            assert ">Older</a>" not in second.text

    look()


def test_only_people_who_may_read_the_log_get_it_and_a_link_to_it() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, secret = await a_server_with_access(cluster)
            manager, reader = a_browser(server), a_browser(server)
            await sign_in(manager, secret)
            headers = {"x-cluster-token": secret}
            policy = b'{"Name": "reader", "Rules": "namespace \\"default\\" { policy = \\"read\\" }"}'
            await manager.send("PUT", "/v1/acl/policy/reader", headers=headers, body=policy)
            created = await manager.send(
                "PUT",
                "/v1/acl/token",
                headers=headers,
                body=b'{"Name": "ann", "Type": "client", "Policies": ["reader"]}',
            )
            await sign_in(reader, re.findall(r'"SecretID":"([^"]*)"', created.text)[0])

            refused = await reader.get("/ui/activity/audit")

            assert refused.status == 403
            assert '<a href="/ui/activity/audit">' not in (await reader.get("/ui/activity")).text
            assert '<a href="/ui/activity/audit">' in (await manager.get("/ui/activity")).text

    look()


def build_view(*entries: AuditEntry, members: tuple[AgentMember, ...] = (), **query: str) -> AuditView:
    log = AuditEntries(server_id="id-1", entries=entries)
    return build_audit_view(
        log,
        AgentMembers(server_name="m1", server_region="global", members=list(members)),
        query,
        query.get("server", ""),
        5,
    )


def test_a_caller_links_to_all_that_it_did() -> None:
    view = build_view(AuditEntry(time=1, accessor_id="5f3c0000-aaaa", token_name="ci", status=200), AuditEntry(time=1))

    assert [(row.caller, row.caller_url) for row in view.rows] == [
        ("ci", "/ui/activity/audit?q=5f3c0000-aaaa"),
        ("anonymous", ""),
    ]


def test_a_cluster_with_several_servers_has_a_link_for_each() -> None:
    members = (
        AgentMember(name="m1.global", tags={"id": "id-1"}),
        AgentMember(name="m2.global", tags={"id": "id-2"}),
        AgentMember(name="m3.global", tags={"id": "id-3"}, status="failed"),
    )

    view = build_view(members=members, q="x")

    assert [(each.text, each.url, each.is_selected) for each in view.servers] == [
        ("m1.global", "/ui/activity/audit?q=x&server=id-1", True),
        ("m2.global", "/ui/activity/audit?q=x&server=id-2", False),
    ]
    assert build_view(members=members[:1]).servers == ()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (AuditEntry(time=1, endpoint="job.evaluate", path=JOB_PATH), ("a/b", "/ui/jobs/a%2Fb")),
        (
            AuditEntry(time=1, endpoint="job.evaluate", path=JOB_PATH, namespace="shop"),
            ("a/b", "/ui/jobs/a%2Fb?namespace=shop"),
        ),
        (
            AuditEntry(time=1, endpoint="client.exec", path="/x", allocation_id=ALLOC_ID),
            ("8a6f0c44", f"/ui/allocations/{ALLOC_ID}"),
        ),
        (
            AuditEntry(time=1, endpoint="node.drain", path=f"/v1/node/{ALLOC_ID}/drain"),
            ("8a6f0c44", f"/ui/nodes/{ALLOC_ID}"),
        ),
        (AuditEntry(time=1, endpoint="variable.put", path="/v1/var/app/db"), ("app/db", "/ui/variables/app%2Fdb")),
        (AuditEntry(time=1, endpoint="job.register", path="/v1/jobs"), ("", "")),
        (AuditEntry(time=1, endpoint="of.tomorrow", path="/v1/new/x"), ("", "")),
        (AuditEntry(time=1, endpoint="node.drain", path="/elsewhere"), ("", "")),
    ],
)
def test_the_object_of_a_request_is_found_by_the_path_of_its_endpoint(
    entry: AuditEntry, found: tuple[str, str]
) -> None:
    assert find_object(entry) == found


def test_a_command_in_a_task_is_shown_with_its_words_and_its_end() -> None:
    view = build_view(
        AuditEntry(
            time=1,
            endpoint="client.exec",
            status=200,
            command=("sh", "-c", "ls /"),
            task="server",
            exit_code=3,
            duration_ms=1500,
        )
    )

    assert view.rows[0].detail == "sh -c 'ls /', in server, exit code 3, after 1.5s"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (101, "began"),
        (200, "done"),
        (400, "refused"),
        (401, "not allowed"),
        (403, "not allowed"),
        (409, "refused"),
        (503, "failed"),
    ],
)
def test_a_status_is_shown_in_words(status: int, text: str) -> None:
    assert describe_result(status).text == text


@pytest.mark.parametrize(("status", "caller"), [(200, "the node"), (403, "anonymous")])
def test_a_node_that_has_authenticated_is_the_caller_of_its_endpoints(status: int, caller: str) -> None:
    path = f"/v1/node/{ALLOC_ID}/register"

    assert name_caller(AuditEntry(time=1, endpoint="node.register", path=path, status=status)) == caller


def test_an_endpoint_is_described_by_its_summary() -> None:
    assert describe_endpoint("namespace.delete") == "Delete an empty namespace"
    assert describe_endpoint("of.tomorrow") == "of.tomorrow"
    assert describe_endpoint("") == "Unknown request"


def test_hostile_entries_add_no_element(tmp_path: Path) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            _, browser = await a_server_with_log(cluster, tmp_path)
            evil = "<script>alert(1)</script>"
            await browser.send("DELETE", f"/v1/namespace/{evil.replace('/', '%2F')}")

            page = await browser.get(f"/ui/activity/audit?q={evil.replace('/', '%2F')}")

            assert find_problems(page.text) == []
            assert evil not in page.text
            assert evil in html.unescape(page.text)

    look()
