"""Policies and roles over HTTP, and which callers may see them (reference 5.2 to 5.4)."""

import json

import pytest

from tests.cluster.api.access import ApiCaller, an_operator
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

        stored = await operator.put(path, {"Name": "reader", "Description": "d", "Rules": READ_ALL})
        _, policy = await operator.get(path)
        _, listed = await operator.get("/v1/acl/policies")
        deleted = await operator.delete(path)

        assert (stored, deleted) == ((200, ""), (200, ""))
        result = policy["RulesJSON"]["Namespaces"][0]
        assert (policy["Rules"], result["Name"], result["Policy"]) == (READ_ALL, "*", "read")
        assert [sorted(item) for item in listed] == [
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
        ("a_b", {"Name": "a_b"}, "policy 0 invalid: 1 error occurred:\n\t* invalid name 'a_b'"),
        ("a", {"Name": "a", "Rules": "nothing {}"}, "failed to parse rules: "),
        ("a", {"Name": "a", "Rules": 'namespace "x" {'}, "failed to parse rules: Failed to parse ACL Policy: At "),
        ("a", {"Name": "a", "JobACL": {"JobID": "j"}}, "namespace must be set to set job ID"),
    ],
)
def test_an_invalid_policy_is_refused_and_changes_nothing(name: str, body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            status, result = await operator.put(f"/v1/acl/policy/{name}", body)

            assert (status, text in result) == (400, True), result
            assert operator.server.replica.count_records(ACL_POLICIES) == 0

    refuse()


@in_virtual_time
async def test_callers_without_a_management_token_see_the_policies_of_their_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for name in ("mine", "other", "by-role"):
            await operator.policy(name, READ_ALL)
        _, role = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "by-role"}]})
        guest = await operator.a_token("mine", Roles=[{"ID": role["ID"]}])

        assert [item["Name"] for item in (await guest.get("/v1/acl/policies"))[1]] == ["by-role", "mine"]
        assert (await guest.get("/v1/acl/policy/mine"))[0] == 200
        assert await guest.get("/v1/acl/policy/other") == (403, "Permission denied")
        assert await guest.get("/v1/acl/policy/ghost") == (403, "Permission denied")
        assert [item["Name"] for item in (await guest.get("/v1/acl/policy/self"))[1]] == ["by-role", "mine"]


@in_virtual_time
async def test_own_policies_are_null_for_management_and_refused_for_anonymous_callers() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await operator.get("/v1/acl/policy/self") == (200, None)
        assert await ApiCaller(operator.server).get("/v1/acl/policy/self") == (403, "Permission denied")


@in_virtual_time
async def test_the_policy_anonymous_applies_to_callers_without_a_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        before = await ApiCaller(operator.server).get("/v1/jobs")

        await operator.policy("anonymous", READ_ALL)

        assert (before[0], await ApiCaller(operator.server).get("/v1/jobs")) == (403, (200, []))


@in_virtual_time
async def test_only_management_tokens_write_policies() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")

        response = await guest.put(
            "/v1/acl/policy/reader", {"Name": "reader", "Rules": 'operator { policy = "write" }'}
        )

        assert response == (403, "Permission denied")
        policy = operator.server.replica.get(ACL_POLICIES, "reader")
        assert policy is not None
        assert policy.rules == READ_ALL


# -- roles


@in_virtual_time
async def test_a_role_is_created_changed_found_by_name_and_deleted() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)

        _, created = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "reader"}]})
        path = f"/v1/acl/role/{created['ID']}"
        _, changed = await operator.put(path, {**created, "Description": "they read"})

        assert (await operator.get("/v1/acl/role/name/r"))[1] == changed
        assert (await operator.get("/v1/acl/roles"))[1] == [changed]
        assert (changed["Description"], changed["CreateIndex"]) == ("they read", created["CreateIndex"])
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
            "role 0 invalid: 2 errors occurred:\n\t* invalid name 'a_b': use 1 to 128 letters, digits and dashes\n\t* at least one policy should be specified",
        ),
    ],
)
def test_an_invalid_role_is_refused_and_changes_nothing(body: object, text: str) -> None:
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
async def test_a_token_has_the_current_policies_of_its_roles() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        _, role = await operator.put("/v1/acl/role", {"Name": "r", "Policies": [{"Name": "reader"}]})
        guest = await operator.a_token(Roles=[{"Name": "r"}])
        before = await guest.get("/v1/jobs")

        await operator.delete(f"/v1/acl/role/{role['ID']}")

        assert (before[0], await guest.get("/v1/jobs")) == (200, (403, "Permission denied"))


@in_virtual_time
async def test_callers_without_a_management_token_see_the_roles_of_their_token() -> None:
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
async def test_a_blocking_read_is_refused_if_the_right_is_revoked_while_it_waits() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        first = await guest.send_raw("GET", "/v1/jobs")
        index = first.headers["x-cluster-index"]
        pending_read = cluster.start(guest.send_raw("GET", "/v1/jobs", query=f"index={index}&wait=30s"), name="query")

        await operator.policy("reader", "")
        reply = await pending_read

        assert (reply.status, reply.body) == (403, b"Permission denied")
