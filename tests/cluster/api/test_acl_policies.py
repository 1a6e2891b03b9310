"""Policies, roles and what they let somebody see, over HTTP (reference 5.2 to 5.4)."""

import json

import pytest

from tests.cluster.api.access import AskedAs, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.state.tables import ACL_POLICIES, ACL_ROLES

READ_ALL = 'namespace "*" { policy = "read" }'
UNKNOWN = "3f1b6b0a-58a9-4a53-8c3b-6ed7b8c7c0aa"


@in_virtual_time
async def test_a_policy_is_written_read_with_its_rules_as_json_and_deleted() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        path = "/v1/acl/policy/reader"

        written = await operator.put(path, {"Name": "reader", "Description": "d", "Rules": READ_ALL})
        _, policy = await operator.get(path)
        _, listed = await operator.get("/v1/acl/policies")
        deleted = await operator.delete(path)

        assert (written, deleted) == ((200, ""), (200, ""))
        told = policy["RulesJSON"]["Namespaces"][0]
        assert (policy["Rules"], told["Name"], told["Policy"]) == (READ_ALL, "*", "read")
        assert [sorted(one) for one in listed] == [
            ["CreateIndex", "Description", "Hash", "JobACL", "ModifyIndex", "Name"]
        ]
        assert await operator.get(path) == (404, "ACL policy not found")


@in_virtual_time
async def test_deleting_an_unknown_policy_succeeds() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await operator.delete("/v1/acl/policy/ghost") == (200, "")


@in_virtual_time
async def test_rules_may_be_json() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        await operator.policy("reader", json.dumps({"namespace": {"*": {"policy": "read"}}}))

        assert (await (await operator.a_token("reader")).get("/v1/jobs"))[0] == 200


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("a", {"Name": "b"}, "ACL policy name does not match request path"),
        ("a_b", {"Name": "a_b"}, "policy 0 invalid: 1 error occurred:\n\t* invalid name 'a_b'\n\n"),
        ("a", {"Name": "a", "Rules": "nothing {}"}, "failed to parse rules: "),
        ("a", {"Name": "a", "Rules": 'namespace "x" {'}, "failed to parse rules: Failed to parse ACL Policy: At "),
        ("a", {"Name": "a", "JobACL": {"JobID": "j"}}, "namespace must be set to set job ID"),
    ],
)
def test_a_policy_that_may_not_be_is_refused_and_changes_nothing(name: str, body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            status, told = await operator.put(f"/v1/acl/policy/{name}", body)

            assert (status, text in told) == (400, True), told
            assert operator.server.replica.count_records(ACL_POLICIES) == 0

    refuse()


@in_virtual_time
async def test_others_than_management_see_the_policies_that_they_carry() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for name in ("mine", "other", "by-role"):
            await operator.policy(name, READ_ALL)
        _, role = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "by-role"}]})
        guest = await operator.a_token("mine", Roles=[{"ID": role["ID"]}])

        assert [one["Name"] for one in (await guest.get("/v1/acl/policies"))[1]] == ["by-role", "mine"]
        assert (await guest.get("/v1/acl/policy/mine"))[0] == 200
        assert await guest.get("/v1/acl/policy/other") == (403, "Permission denied")
        assert await guest.get("/v1/acl/policy/ghost") == (403, "Permission denied")
        assert [one["Name"] for one in (await guest.get("/v1/acl/policy/self"))[1]] == ["by-role", "mine"]


@in_virtual_time
async def test_the_own_policies_of_management_are_null_and_anonymous_callers_have_none() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await operator.get("/v1/acl/policy/self") == (200, None)
        assert await AskedAs(operator.server).get("/v1/acl/policy/self") == (403, "Permission denied")


@in_virtual_time
async def test_the_policy_named_anonymous_is_that_of_callers_without_a_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        before = await AskedAs(operator.server).get("/v1/jobs")

        await operator.policy("anonymous", READ_ALL)

        assert (before[0], await AskedAs(operator.server).get("/v1/jobs")) == (403, (200, []))


@in_virtual_time
async def test_no_one_but_management_writes_policies() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")

        answer = await guest.put("/v1/acl/policy/reader", {"Name": "reader", "Rules": 'operator { policy = "write" }'})

        assert answer == (403, "Permission denied")
        policy = operator.server.replica.get(ACL_POLICIES, "reader")
        assert policy is not None
        assert policy.rules == READ_ALL


# -- roles


@in_virtual_time
async def test_a_role_is_made_changed_found_by_its_name_and_deleted() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)

        _, made = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "reader"}]})
        path = f"/v1/acl/role/{made['ID']}"
        _, changed = await operator.put(path, {**made, "Description": "they read"})

        assert (await operator.get("/v1/acl/role/name/r"))[1] == changed
        assert (await operator.get("/v1/acl/roles"))[1] == [changed]
        assert (changed["Description"], changed["CreateIndex"]) == ("they read", made["CreateIndex"])
        assert await operator.delete(path) == (200, "")
        assert await operator.get(path) == (404, "ACL role not found")
        assert await operator.delete(path) == (404, "ACL role not found")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"Name": "s", "Policies": [{"Name": "ghost"}]}, "cannot find policy ghost"),
        ({"Name": "r", "Policies": [{"Name": "reader"}]}, "role with name r already exists"),
        ({"ID": UNKNOWN, "Name": "s", "Policies": [{"Name": "reader"}]}, f"cannot find role {UNKNOWN}"),
        (
            {"Name": "a_b"},
            "role 0 invalid: 2 errors occurred:\n\t* invalid name 'a_b'\n"
            "\t* at least one policy should be specified\n\n",
        ),
    ],
)
def test_a_role_that_may_not_be_is_refused_and_changes_nothing(body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            await operator.policy("reader", READ_ALL)
            await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "reader"}]})

            assert await operator.put("/v1/acl/role", body) == (400, text)
            assert operator.server.replica.count_records(ACL_ROLES) == 1

    refuse()


@in_virtual_time
async def test_a_token_gets_what_its_roles_give_at_the_moment() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        _, role = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "reader"}]})
        guest = await operator.a_token(Roles=[{"Name": "r"}])
        before = await guest.get("/v1/jobs")

        await operator.delete(f"/v1/acl/role/{role['ID']}")

        assert (before[0], await guest.get("/v1/jobs")) == (200, (403, "Permission denied"))


@in_virtual_time
async def test_others_than_management_see_the_roles_that_they_carry() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        roles = [
            (await operator.put("/v1/acl/role", {"Name": name, "Policies": [{"Name": "reader"}]}))[1]
            for name in ("mine", "other")
        ]
        guest = await operator.a_token(Roles=[{"ID": roles[0]["ID"]}])

        assert (await guest.get("/v1/acl/roles"))[1] == [roles[0]]
        assert (await guest.get(f"/v1/acl/role/{roles[0]['ID']}"))[0] == 200
        assert await guest.get(f"/v1/acl/role/{roles[1]['ID']}") == (403, "Permission denied")


@in_virtual_time
async def test_a_blocked_read_is_refused_when_the_right_goes_while_it_waits() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        first = await guest.ask("GET", "/v1/jobs")
        index = first.headers["x-cluster-index"]
        waiting = cluster.start(guest.ask("GET", "/v1/jobs", query=f"index={index}&wait=30s"), name="waits")

        await operator.policy("reader", "")
        reply = await waiting

        assert (reply.status, reply.body) == (403, b"Permission denied")
