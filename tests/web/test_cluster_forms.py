"""Forms on the pages of node pools, volumes and services: rights, questions, and mistakes at their fields."""

import json
import re

import pytest
from msgspec.structs import replace

from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import CONFIRMED, Browser, ShownPage, a_browser, a_server_with_access
from tests.web.strict_html import find_problems
from tests.web.test_cluster_pages import read_text
from tests.web.test_node_list import store_nodes
from tests.web.test_sign_in import sign_in
from wharf.cluster.state.tables import HOST_VOLUMES, NODE_POOLS, NODES, SERVICES
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.services import ServiceRegistration
from wharf.web.views.field_errors import FormView, build_refused_form, split_problems

NODE_ID = "00000000-0000-0000-0000-000000000000"
VOLUME = {"kind": "register", "name": "data", "namespace": "default", "access": "single-node-writer"}


def find_mistake(page: ShownPage, field: str) -> str:
    """Return the text of a mistake, which the control names as its description."""
    found = re.search(rf'aria-describedby="{field}-error".*?id="{field}-error">([^<]*)<', page.text, re.DOTALL)
    return found[1] if found else ""


async def a_server_with_nodes(cluster: ACluster) -> tuple[OneServer, Browser]:
    server = await cluster.a_server("m1")
    await store_nodes(server, 2)
    return server, a_browser(server)


def read_pool(server: OneServer, name: str) -> NodePool | None:
    return server.replica.get(NODE_POOLS, name)


@in_virtual_time
async def test_a_node_pool_is_created_changed_and_after_a_question_deleted() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)

        created = await browser.post("/ui/pools", {"name": "gpu", "description": "cards", "algorithm": "spread"})
        pool = read_pool(server, "gpu")
        assert pool is not None
        assert pool.scheduler_configuration is not None
        assert (created.get_header("location"), pool.description) == ("/ui/pools/gpu", "cards")
        assert pool.scheduler_configuration.scheduler_algorithm == "spread"

        await browser.post("/ui/pools/gpu", {"description": "", "algorithm": "", "oversubscription": "no"})
        changed = read_pool(server, "gpu")
        assert changed is not None
        assert changed.scheduler_configuration is not None
        assert (changed.description, changed.scheduler_configuration.memory_oversubscription_enabled) == ("", False)

        question = await browser.post("/ui/pools/gpu/delete")
        assert "Delete the node pool gpu?" in read_text(question)
        assert read_pool(server, "gpu") is not None
        await browser.post("/ui/pools/gpu/delete", CONFIRMED)
        assert read_pool(server, "gpu") is None


@in_virtual_time
async def test_what_a_form_of_a_node_pool_does_not_have_stays() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)
        await server.client.node_pools.store(NodePool(name="gpu", meta={"rack": "7"}, node_identity_ttl=60_000_000_000))

        await browser.post("/ui/pools/gpu", {"description": "cards"})

        pool = read_pool(server, "gpu")
        assert pool is not None
        assert (pool.description, pool.meta, pool.node_identity_ttl) == ("cards", {"rack": "7"}, 60_000_000_000)


@pytest.mark.parametrize(
    ("form", "field", "text"),
    [
        ({"name": "not valid!"}, "pool-name", "invalid name"),
        ({"name": ""}, "pool-name", "invalid name"),
        ({"name": "default"}, "pool-name", "There is a node pool default already."),
        ({"name": "gpu", "description": "x" * 257}, "pool-description", "longer than 256"),
        ({"name": "gpu", "algorithm": "guess"}, "pool-algorithm", "guess"),
    ],
)
@in_virtual_time
async def test_a_mistake_in_a_node_pool_is_shown_at_its_field_and_nothing_is_stored(
    form: dict[str, str], field: str, text: str
) -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)

        page = await browser.post("/ui/pools", form)

        assert (page.status, find_problems(page.text)) == (400, [])
        assert text in find_mistake(page, field)
        assert "<details open>" in page.text
        assert read_pool(server, "gpu") is None


GOOD_QUOTA = {"name": "gold", "region": "global", "cpu": "1000", "memory": "-1", "count": "0"}


@pytest.mark.parametrize(
    ("path", "form", "field", "text"),
    [
        ("namespaces", {"name": "not valid!"}, "namespace-name", "invalid name"),
        ("namespaces", {"name": ""}, "namespace-name", "invalid name"),
        ("namespaces", {"name": "default"}, "namespace-name", "There is a namespace default already."),
        ("namespaces", {"name": "shop", "weight": "many"}, "namespace-weight", "expected a whole number"),
        ("namespaces", {"name": "shop", "weight": "5000"}, "namespace-weight", "between 1 and 1000"),
        ("namespaces", {"name": "shop", "quota": "gone"}, "namespace-quota", "not found"),
        ("namespaces", {"name": "shop", "description": "x" * 257}, "namespace-description", "longer than 256"),
        ("namespaces/default", {"weight": "0"}, "namespace-weight", "between 1 and 1000"),
        ("quotas", {**GOOD_QUOTA, "name": "not valid!"}, "quota-name", "invalid name"),
        ("quotas", {**GOOD_QUOTA, "name": "team"}, "quota-name", "There is a quota team already."),
        ("quotas", {**GOOD_QUOTA, "region": ""}, "quota-region", "must name its region"),
        ("quotas", {**GOOD_QUOTA, "cpu": "much"}, "quota-cpu", "expected a whole number"),
        ("quotas", {**GOOD_QUOTA, "description": "x" * 257}, "quota-description", "longer than 256"),
        ("quotas/team", {"region": "global", "memory": "x"}, "region-1-memory", "expected a whole number"),
        ("quotas/team", {"region": "west", "count": "x"}, "other-count", "expected a whole number"),
    ],
)
@in_virtual_time
async def test_a_mistake_in_a_namespace_or_a_quota_is_shown_at_its_field_and_nothing_is_stored(
    path: str, form: dict[str, str], field: str, text: str
) -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)
        await browser.post("/ui/quotas", {**GOOD_QUOTA, "name": "team"})
        index = server.replica.index

        page = await browser.post(f"/ui/{path}", form)

        assert (page.status, find_problems(page.text)) == (400, [])
        assert text in find_mistake(page, field)
        assert page.text.count("<details open>") == 1
        assert 'data-topics=""' in page.text
        assert server.replica.index == index


@in_virtual_time
async def test_a_quota_gets_limits_in_another_region_and_those_of_the_first_stay() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)
        await browser.post("/ui/quotas", GOOD_QUOTA)

        await browser.post("/ui/quotas/gold", {"region": "west", "cpu": "0", "memory": "0", "count": "7"})

        quota = (await server.client.quotas.read("gold")).value
        amounts = [(each.region, each.region_limit.cpu, each.region_limit.count) for each in quota.limits or ()]
        assert amounts == [("global", 1000, 0), ("west", 0, 7)]


@in_virtual_time
async def test_every_mistake_of_a_form_is_at_its_own_field_and_what_was_entered_stays() -> None:
    async with ACluster() as cluster:
        _, browser = await a_server_with_nodes(cluster)

        page = await browser.post("/ui/namespaces", {"name": "no good!", "quota": "gone<b>", "weight": "0"})

        assert "invalid name" in find_mistake(page, "namespace-name")
        assert "not found" in find_mistake(page, "namespace-quota")
        assert "between 1 and 1000" in find_mistake(page, "namespace-weight")
        assert 'value="gone&lt;b&gt;"' in page.text


@in_virtual_time
async def test_built_in_node_pools_have_no_forms() -> None:
    async with ACluster() as cluster:
        _, browser = await a_server_with_nodes(cluster)

        page = await browser.get("/ui/pools/default")

        assert page.status == 200
        assert 'method="post"' not in page.text


@in_virtual_time
async def test_a_folder_is_registered_on_the_node_with_this_name_and_its_volume_deleted_after_a_question() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)

        created = await browser.post("/ui/volumes", {**VOLUME, "node": "m999", "path": "/srv/data"})
        [volume] = server.replica.iter_all(HOST_VOLUMES)
        assert created.get_header("location") == f"/ui/volumes/{volume.id}"
        assert "Warning: registered only on the servers" in read_text(await browser.get(f"/ui/volumes/{volume.id}"))
        assert (volume.name, volume.node_id, volume.host_path) == ("data", NODE_ID, "/srv/data")

        question = await browser.post(f"/ui/volumes/{volume.id}/delete")
        assert "Delete the volume data?" in read_text(question)
        assert server.replica.count_records(HOST_VOLUMES) == 1
        await browser.post(f"/ui/volumes/{volume.id}/delete", CONFIRMED)
        assert server.replica.count_records(HOST_VOLUMES) == 0


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"node": "m999", "path": "srv"}, "register-path", "must be absolute"),
        ({"node": "m999", "path": ""}, "register-path", "host path is required"),
        ({"node": "", "path": "/srv"}, "register-node", "node ID is required"),
        ({"node": "nobody", "path": "/srv"}, "register-node", "No node has this name or ID."),
        ({"node": NODE_ID.replace("0", "f"), "path": "/srv"}, "register-node", "does not exist"),
        ({"node": "m999", "path": "/srv", "name": "not valid!"}, "register-name", "invalid name"),
        ({"node": "m999", "path": "/srv", "name": ""}, "register-name", "missing name"),
        ({"node": "m999", "path": "/srv", "namespace": "gone"}, "register-namespace", "gone"),
        ({"node": "m999", "path": "/srv", "access": "multi-node-multi-writer"}, "register-access", "access mode"),
        ({"kind": "create", "min": "x"}, "create-min", "expected a whole number"),
        ({"kind": "create", "min": "5", "max": "3"}, "create-max", "must be larger"),
        ({"kind": "create", "min": "-1"}, "create-min", "cannot be negative"),
        ({"kind": "create", "node": "m999", "pool": "gpu"}, "create-pool", "in node pool"),
    ],
)
@in_virtual_time
async def test_a_mistake_in_a_volume_is_shown_at_its_field_and_nothing_is_stored(
    changes: dict[str, str], field: str, text: str
) -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)

        page = await browser.post("/ui/volumes", {**VOLUME, **changes})

        assert (page.status, find_problems(page.text)) == (400, [])
        assert text in find_mistake(page, field)
        assert page.text.count("<details open>") == 1
        assert server.replica.count_records(HOST_VOLUMES) == 0


@in_virtual_time
async def test_a_mistake_that_belongs_to_no_field_is_above_the_form() -> None:
    async with ACluster() as cluster:
        _, browser = await a_server_with_nodes(cluster)

        page = await browser.post("/ui/volumes", {**VOLUME, "kind": "create"})

        assert '<p class="error" role="alert">no node can create the volume: not ready (2)</p>' in page.text


@in_virtual_time
async def test_what_was_entered_stays_in_a_refused_form_and_the_page_does_not_change_by_itself() -> None:
    async with ACluster() as cluster:
        _, browser = await a_server_with_nodes(cluster)

        page = await browser.post(
            "/ui/volumes", {**VOLUME, "node": "m999", "path": "srv<b>", "access": "single-node-reader-only"}
        )

        assert 'value="srv&lt;b&gt;"' in page.text
        assert 'value="single-node-reader-only" selected' in page.text
        assert 'data-topics=""' in page.text


@in_virtual_time
async def test_two_nodes_of_one_name_are_told_apart_by_their_ids() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)
        for number in (7, 8):
            node = next(iter(server.replica.iter_all(NODES)))
            await commit(
                server, NODES.build_put(replace(node, id=f"{number:08x}-0000-0000-0000-000000000000", name="twin"))
            )

        page = await browser.post("/ui/volumes", {**VOLUME, "node": "twin", "path": "/srv"})

        assert "Several nodes have this name" in find_mistake(page, "register-node")


@in_virtual_time
async def test_an_instance_of_a_service_is_deregistered_after_a_question() -> None:
    async with ACluster() as cluster:
        server, browser = await a_server_with_nodes(cluster)
        instance = ServiceRegistration(
            id="_a/1",
            service_name="web",
            namespace="default",
            node_id=NODE_ID,
            job_id="shop",
            address="192.0.2.1",
            port=80,
        )
        await commit(server, SERVICES.build_put(instance))
        url = re.findall(r'action="([^"]*deregister[^"]*)"', (await browser.get("/ui/services/web")).text)[0]

        question = await browser.post(url)
        assert "Deregister an instance of web?" in read_text(question)
        assert server.replica.count_records(SERVICES) == 1
        await browser.post(url, CONFIRMED)

        assert server.replica.count_records(SERVICES) == 0


RULES = """
namespace "default" { policy = "read" capabilities = ["host-volume-read"] }
node_pool "*" { policy = "read" }
"""
WRITES = (
    ("/ui/pools", {"name": "gpu"}),
    ("/ui/pools/web", {"description": "x"}),
    ("/ui/pools/web/delete", CONFIRMED),
    ("/ui/volumes", {**VOLUME, "node": NODE_ID, "path": "/srv"}),
    ("/ui/volumes", {**VOLUME, "kind": "create"}),
    ("/ui/services/web/_a/deregister", CONFIRMED),
)


@in_virtual_time
async def test_people_without_the_rights_have_no_forms_and_are_refused() -> None:
    async with ACluster() as cluster:
        server, secret = await a_server_with_access(cluster)
        await store_nodes(server, 1)
        browser = a_browser(server)
        headers = {"x-cluster-token": secret}
        policy = json.dumps({"Name": "reader", "Rules": RULES}).encode()
        await browser.send("PUT", "/v1/acl/policy/reader", headers=headers, body=policy)
        await browser.send("PUT", "/v1/node/pools", headers=headers, body=b'{"Name": "web"}')
        token = json.dumps({"Name": "ann", "Type": "client", "Policies": ["reader"]}).encode()
        created = await browser.send("PUT", "/v1/acl/token", headers=headers, body=token)
        await sign_in(browser, json.loads(created.text)["SecretID"])
        index = server.replica.index

        pages = [await browser.get(path) for path in ("/ui/pools", "/ui/pools/web", "/ui/volumes", "/ui/services/web")]
        replies = [await browser.post(path, form) for path, form in WRITES]

        assert [page.status for page in pages] == [200] * 4
        assert [page.text.count('method="post"') for page in pages] == [1] * 4  # The sign-out.
        assert [page.status for page in replies] == [403] * len(WRITES)
        assert server.replica.index == index


def test_the_problems_of_a_refusal_are_split_and_a_single_one_stays_whole() -> None:
    assert split_problems(
        "volume validation failed: 2 errors occurred:\n\t* missing name\n\t* capacity cannot be negative"
    ) == (
        "missing name",
        "capacity cannot be negative",
    )
    assert split_problems(" node pool in use ") == ("node pool in use",)


def test_each_problem_is_at_its_field_and_the_others_are_above_the_form() -> None:
    text = "3 errors occurred:\n\t* name: too long\n\t* name: not valid\n\t* the moon is full\n\n"

    form = build_refused_form({"name": "x"}, text, (("name", "name"),))

    assert form == FormView({"name": "x"}, {"name": "name: too long; name: not valid"}, "the moon is full")
    assert form.is_refused
    assert not FormView({}).is_refused


@in_virtual_time
async def test_a_right_in_one_namespace_is_enough_for_the_form_that_creates_volumes() -> None:
    async with ACluster() as cluster:
        server, secret = await a_server_with_access(cluster)
        browser = a_browser(server)
        headers = {"x-cluster-token": secret}
        await browser.send("PUT", "/v1/namespace", headers=headers, body=b'{"Name": "team"}')
        rules = 'namespace "team" { capabilities = ["host-volume-read", "host-volume-create"] }'
        policy = json.dumps({"Name": "maker", "Rules": rules}).encode()
        await browser.send("PUT", "/v1/acl/policy/maker", headers=headers, body=policy)
        token = json.dumps({"Name": "ann", "Type": "client", "Policies": ["maker"]}).encode()
        created = await browser.send("PUT", "/v1/acl/token", headers=headers, body=token)
        await sign_in(browser, json.loads(created.text)["SecretID"])

        page = await browser.get("/ui/volumes?namespace=team")

        assert "Create a volume" in page.text
        assert "Register a folder" not in page.text


@pytest.mark.parametrize(
    ("rules", "address", "form"),
    [
        ('node_pool "team-*" { policy = "write" }', "/ui/pools", "Create a node pool"),
        (
            'namespace "default" { variables { path "app/*" { capabilities = ["list", "write"] } } }',
            "/ui/variables",
            "Create a variable",
        ),
    ],
)
@in_virtual_time
async def test_a_right_for_some_names_is_enough_for_the_form_that_creates_an_object(
    rules: str, address: str, form: str
) -> None:
    async with ACluster() as cluster:
        server, secret = await a_server_with_access(cluster)
        browser = a_browser(server)
        headers = {"x-cluster-token": secret}
        policy = json.dumps({"Name": "maker", "Rules": rules}).encode()
        await browser.send("PUT", "/v1/acl/policy/maker", headers=headers, body=policy)
        token = json.dumps({"Name": "ann", "Type": "client", "Policies": ["maker"]}).encode()
        created = await browser.send("PUT", "/v1/acl/token", headers=headers, body=token)
        await sign_in(browser, json.loads(created.text)["SecretID"])
        assert form in (await browser.get(address)).text
