"""Variables over HTTP: items, check-and-set, locks, rights by path (reference, nodes-allocations 5.2)."""

import pytest

from tests.cluster.api.access import ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.state.tables import VARIABLES

DB = "/v1/var/db/main"
ITEMS = {"user": "me", "password": "tiger"}


async def without_access_control(cluster: ACluster) -> ApiCaller:
    """Return a caller of a server without access control."""
    return ApiCaller(await cluster.a_server())


@in_virtual_time
async def test_a_variable_is_written_read_listed_without_items_and_deleted() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        status, stored = await item.put(DB, {"Items": ITEMS})
        _, listed = await item.get("/v1/vars", "prefix=db")

        assert (status, stored["Items"], stored["Path"]) == (200, ITEMS, "db/main")
        assert await item.get(DB) == (200, stored)
        assert listed == [{name: value for name, value in stored.items() if name != "Items"}]
        assert await item.delete(DB) == (204, "")
        assert await item.get(DB) == (404, "variable not found")
        assert await item.delete(DB) == (204, "")


@in_virtual_time
async def test_the_path_of_the_url_overrides_that_of_the_body() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        assert (await item.put(DB, {"Path": "elsewhere", "Items": ITEMS}))[1]["Path"] == "db/main"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("db", {}, "variable missing required Items object"),
        ("db", {"Items": {}}, "variable missing required Items object"),
        ("db", {"Items": {"a": "x" * 65_536}}, "variables are limited to 64KiB in total size"),
        ("a.b", {"Items": ITEMS}, 'invalid path "a.b". Must match regex ^[a-zA-Z0-9-_~/]{1,128}$'),
        ("nomad/mine", {"Items": ITEMS}, 'only paths at "nomad/jobs"'),
        ("db", {"Items": ITEMS, "Lock": {"TTL": "15s"}}, "TTL and LockDelay are set when a lock is acquired"),
        ("db", {"Namespace": "ghost", "Items": ITEMS}, 'nonexistent namespace: "ghost"'),
        ("db", {"Namespace": "*", "Items": ITEMS}, "cannot write a variable in namespace *"),
    ],
)
def test_an_invalid_variable_is_refused_and_changes_nothing(path: str, body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            item = await without_access_control(cluster)
            status, result = await item.put(f"/v1/var/{path}", body)

            assert (status, text in result) == (400, True), result
            assert item.server.replica.count_records(VARIABLES) == 0

    refuse()


@in_virtual_time
async def test_sixty_four_kilobytes_of_keys_and_values_fit() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        assert (await item.put(DB, {"Items": {"a": "x" * 65_535}}))[0] == 200


# -- check-and-set


@in_virtual_time
async def test_a_check_and_set_of_zero_only_creates() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        first, stored = await item.put(DB, {"Items": ITEMS}, query="cas=0")
        second = await item.put(DB, {"Items": {"other": "x"}}, query="cas=0")

        assert (first, second) == (200, (409, stored))


@in_virtual_time
async def test_a_check_and_set_succeeds_only_for_the_current_version() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, first = await item.put(DB, {"Items": ITEMS})
        _, second = await item.put(DB, {"Items": {"a": "1"}}, query=f"cas={first['ModifyIndex']}")

        late = await item.send_raw("PUT", DB, {"Items": {"a": "2"}}, query=f"cas={first['ModifyIndex']}")
        removed = await item.delete(DB, query=f"cas={first['ModifyIndex']}")

        assert (late.status, late.headers["x-cluster-index"]) == (409, str(second["ModifyIndex"]))
        assert removed == (409, second)
        assert await item.delete(DB, query=f"cas={second['ModifyIndex']}") == (204, "")


@pytest.mark.parametrize("cas", ["x", "-1", "1.5"])
def test_a_check_and_set_with_an_invalid_number_is_refused(cas: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            assert (await (await without_access_control(cluster)).put(DB, {"Items": ITEMS}, query=f"cas={cas}"))[
                0
            ] == 400

    refuse()


# -- locks


@in_virtual_time
async def test_acquiring_a_lock_creates_the_variable_and_returns_the_lock_id_to_the_holder() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        status, lock = await item.put(DB, {}, query="lock-acquire")

        assert (status, lock["Items"]) == (200, {})
        assert (lock["Lock"]["TTL"], lock["Lock"]["LockDelay"], len(lock["Lock"]["ID"])) == ("15s", "15s", 36)


@in_virtual_time
async def test_a_held_lock_is_refused_to_others_without_further_details() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": ITEMS}, query="lock-acquire")

        status, result = await item.put(DB, {}, query="lock-acquire")

        nothing = {"CreateIndex": 0, "ModifyIndex": 0, "CreateTime": 0, "ModifyTime": 0}
        assert (status, result) == (409, {"Namespace": "default", "Path": "db/main", **nothing})


@in_virtual_time
async def test_only_the_holder_writes_a_locked_variable() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        body = {"Items": ITEMS, "Lock": {"TTL": "1m", "LockDelay": "1s"}}
        _, lock = await item.put(DB, body, query="lock-acquire")
        lock_id = lock["Lock"]["ID"]

        other_reply = await item.put(DB, {"Items": {"a": "1"}})
        invalid = await item.put(DB, {"Items": {"a": "1"}, "Lock": {"ID": "nobody"}})
        status, own = await item.put(DB, {"Items": {"a": "1"}, "Lock": {"ID": lock_id}})

        assert (other_reply[0], invalid[0], (await item.delete(DB))[0]) == (409, 409, 409)
        assert (status, own["Items"]) == (200, {"a": "1"})
        # A plain write of the holder resets the lock's durations to the defaults.
        assert own["Lock"] == {"ID": lock_id, "TTL": "15s", "LockDelay": "15s"}


@in_virtual_time
async def test_a_released_lock_can_be_acquired_at_once() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, lock = await item.put(DB, {"Items": ITEMS}, query="lock-acquire")

        released = await item.put(DB, {"Lock": {"ID": lock["Lock"]["ID"]}}, query="lock-release")
        status, repeated = await item.put(DB, {}, query="lock-acquire")

        assert (released[0], "Lock" in released[1], "Items" in released[1]) == (200, False, False)
        assert (status, repeated["Items"]) == (200, ITEMS)
        assert repeated["Lock"]["ID"] != lock["Lock"]["ID"]


@in_virtual_time
async def test_an_expired_lock_cannot_be_acquired_during_its_delay() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": ITEMS, "Lock": {"TTL": "10s", "LockDelay": "5s"}}, query="lock-acquire")

        await pass_time(9.5)
        before = await item.get(DB)
        await pass_time(1)
        after, early = await item.get(DB), await item.put(DB, {}, query="lock-acquire")
        await pass_time(5)

        assert ("Lock" in before[1], "Lock" in after[1], early[0]) == (True, False, 409)
        assert (await item.put(DB, {}, query="lock-acquire"))[0] == 200


@in_virtual_time
async def test_renewing_a_lock_extends_it_without_a_write() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, lock = await item.put(DB, {"Items": ITEMS, "Lock": {"TTL": "10s"}}, query="lock-acquire")
        body = {"Lock": {"ID": lock["Lock"]["ID"]}}

        for _ in range(5):
            await pass_time(7)
            status, result = await item.put(DB, body, query="lock-renew")
            assert (status, "Items" in result) == (200, False)

        assert (await item.get(DB))[1]["ModifyIndex"] == lock["ModifyIndex"]
        await pass_time(11)
        assert "Lock" not in (await item.get(DB))[1]


@in_virtual_time
async def test_a_new_leader_restarts_the_ttl_of_every_lock() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, lock = await item.put(DB, {"Items": ITEMS, "Lock": {"TTL": "20s"}}, query="lock-acquire")
        await pass_time(15)
        assert item.server.election.term is not None
        item.server.election.term.lose()
        item.server.election.allow_campaign()

        await pass_time(15)
        renewed = await item.put(DB, {"Lock": {"ID": lock["Lock"]["ID"]}}, query="lock-renew")
        await pass_time(21)

        assert (renewed[0], "Lock" in (await item.get(DB))[1]) == (200, False)


@in_virtual_time
async def test_a_wrong_lost_or_missing_lock_cannot_be_renewed() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        missing = await item.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")
        await item.put(DB, {"Items": ITEMS})
        without_lock = await item.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")
        await item.put(DB, {}, query="lock-acquire")
        invalid = await item.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")

        assert missing == (404, "variable not found")
        assert without_lock == invalid == (409, "attempting to modify locked variable")


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("lock-acquire&lock-renew", {}),
        ("lock-acquire&cas=1", {}),
        ("lock-acquire", {"Lock": {"TTL": "9s"}}),
        ("lock-acquire", {"Lock": {"TTL": "25h"}}),
        ("lock-acquire", {"Lock": {"LockDelay": "-1s"}}),
        ("lock-release", {}),
        ("lock-release", {"Items": ITEMS, "Lock": {"ID": "x"}}),
        ("lock-renew", {}),
    ],
)
def test_an_invalid_lock_operation_is_refused_and_changes_nothing(query: str, body: object) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            item = await without_access_control(cluster)
            _, before = await item.put(DB, {"Items": ITEMS})

            assert (await item.put(DB, body, query=query))[0] == 400
            assert (await item.get(DB))[1] == before

    refuse()


@in_virtual_time
async def test_releasing_a_lock_of_an_unknown_variable_is_refused() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)

        assert await item.put(DB, {"Lock": {"ID": "x"}}, query="lock-release") == (404, "variable doesn't exist")


# -- rights

OWN = 'namespace "default" { variables { path "own/*" { capabilities = ["read", "write", "destroy"] } } }'
LISTABLE = 'namespace "default" { variables { path "*" { capabilities = ["list"] } } }'
WRITE_ONLY = 'namespace "default" { variables { path "*" { capabilities = ["write"] } } }'


@in_virtual_time
async def test_rights_apply_to_paths_and_lists_omit_other_variables() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for name in ("own/a", "other/b"):
            await operator.put(f"/v1/var/{name}", {"Items": ITEMS})
        await operator.policy("own", OWN)
        guest = await operator.a_token("own")

        assert [item["Path"] for item in (await guest.get("/v1/vars"))[1]] == ["own/a"]
        assert (await guest.get("/v1/var/own/a"))[0] == 200
        assert await guest.get("/v1/var/other/b") == (403, "Permission denied")
        assert await guest.get("/v1/var/other/ghost") == (403, "Permission denied")
        assert await guest.put("/v1/var/other/b", {"Items": ITEMS}) == (403, "Permission denied")
        assert (await guest.put("/v1/var/own/a", {"Items": {"a": "2"}}))[0] == 200
        assert await guest.delete("/v1/var/other/b") == (403, "Permission denied")
        assert (await guest.delete("/v1/var/own/a"))[0] == 204


@in_virtual_time
async def test_a_caller_that_may_only_list_cannot_read_items() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.put(DB, {"Items": ITEMS})
        await operator.policy("seen", LISTABLE)
        guest = await operator.a_token("seen")

        assert [item["Path"] for item in (await guest.get("/v1/vars"))[1]] == ["db/main"]
        assert await guest.get(DB) == (403, "Permission denied")


@in_virtual_time
async def test_a_conflict_shows_the_items_only_to_callers_that_may_read_them() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.put(DB, {"Items": ITEMS})
        await operator.policy("blind", WRITE_ONLY)
        guest = await operator.a_token("blind")

        status, result = await guest.put(DB, {"Items": {"a": "1"}}, query="cas=0")

        assert (status, result["Path"], "Items" in result) == (409, "db/main", False)


@in_virtual_time
async def test_a_lock_id_is_shown_only_to_its_holder_and_to_management_tokens() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("own", OWN)
        guest, second = await operator.a_token("own"), await operator.a_token("own")
        _, lock = await guest.put("/v1/var/own/a", {"Items": ITEMS}, query="lock-acquire")

        assert (await operator.get("/v1/var/own/a"))[1]["Lock"]["ID"] == lock["Lock"]["ID"]
        assert (await second.get("/v1/var/own/a"))[1]["Lock"] == {"TTL": "15s", "LockDelay": "15s"}
        assert (await second.get("/v1/vars"))[1][0]["Lock"] == {"TTL": "15s", "LockDelay": "15s"}


@in_virtual_time
async def test_variables_of_different_namespaces_are_separate() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put("/v1/namespace/web", {"Name": "web"})
        await item.put(DB, {"Items": {"in": "default"}})

        _, stored = await item.put(DB, {"Items": {"in": "web"}}, query="namespace=web")

        assert (stored["Namespace"], (await item.get(DB))[1]["Items"]) == ("web", {"in": "default"})
        assert (await item.get(DB, "namespace=web"))[1]["Items"] == {"in": "web"}
        assert [each["Namespace"] for each in (await item.get("/v1/vars", "namespace=*"))[1]] == ["default", "web"]


# -- encryption


@in_virtual_time
async def test_the_log_never_contains_items_in_plain_text() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": {"password": "tiger-tiger"}})
        stored = item.server.replica.get(VARIABLES, "default", "db/main")

        assert stored is not None
        assert b"tiger-tiger" not in stored.data
        assert b"password" not in stored.data


@in_virtual_time
async def test_a_filter_cannot_use_encrypted_fields() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": ITEMS})

        refusal = await item.get("/v1/vars", "filter=KeyID+is+not+empty")
        accepted = await item.get("/v1/vars", "filter=Path+%3D%3D+%22db%2Fmain%22")

        assert (refusal[0], len(accepted[1])) == (400, 1)


@in_virtual_time
async def test_a_blocking_read_of_a_variable_wakes_when_it_changes() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, first = await item.put(DB, {"Items": ITEMS})
        pending_read = cluster.start(item.get(DB, f"index={first['ModifyIndex']}&wait=30s"), name="query")

        _, second = await item.put(DB, {"Items": {"a": "2"}})

        assert await pending_read == (200, second)
