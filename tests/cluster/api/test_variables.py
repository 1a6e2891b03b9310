"""Variables over HTTP: items, check-and-set, locks, rights by path (reference, nodes-allocations 5.2)."""

import pytest

from tests.cluster.api.access import AskedAs, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.state.tables import VARIABLES

DB = "/v1/var/db/main"
ITEMS = {"user": "me", "password": "tiger"}


async def alone(cluster: ACluster) -> AskedAs:
    """Everybody, on a server without access control."""
    return AskedAs(await cluster.a_server())


@in_virtual_time
async def test_a_variable_is_written_read_listed_without_its_items_and_deleted() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        status, written = await one.put(DB, {"Items": ITEMS})
        _, listed = await one.get("/v1/vars", "prefix=db")

        assert (status, written["Items"], written["Path"]) == (200, ITEMS, "db/main")
        assert await one.get(DB) == (200, written)
        assert listed == [{name: value for name, value in written.items() if name != "Items"}]
        assert await one.delete(DB) == (204, "")
        assert await one.get(DB) == (404, "variable not found")
        assert await one.delete(DB) == (204, "")


@in_virtual_time
async def test_the_path_of_the_url_wins_over_that_of_the_body() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        assert (await one.put(DB, {"Path": "elsewhere", "Items": ITEMS}))[1]["Path"] == "db/main"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("db", {}, "variable missing required Items object"),
        ("db", {"Items": {}}, "variable missing required Items object"),
        ("db", {"Items": {"a": "x" * 65_536}}, "variables are limited to 64KiB in total size"),
        ("a.b", {"Items": ITEMS}, 'invalid path "a.b". Must match regex ^[a-zA-Z0-9-_~/]{1,128}$'),
        ("nomad/mine", {"Items": ITEMS}, 'only paths at "nomad/jobs"'),
        ("db", {"Items": ITEMS, "Lock": {"TTL": "15s"}}, "a lock's TTL and delay are told when it is taken"),
        ("db", {"Namespace": "ghost", "Items": ITEMS}, 'nonexistent namespace: "ghost"'),
        ("db", {"Namespace": "*", "Items": ITEMS}, "cannot write a variable in namespace *"),
    ],
)
def test_a_variable_that_may_not_be_is_refused_and_changes_nothing(path: str, body: object, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            one = await alone(cluster)
            status, told = await one.put(f"/v1/var/{path}", body)

            assert (status, text in told) == (400, True), told
            assert one.server.replica.count_records(VARIABLES) == 0

    refuse()


@in_virtual_time
async def test_sixty_four_kilobytes_of_keys_and_values_fit() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        assert (await one.put(DB, {"Items": {"a": "x" * 65_535}}))[0] == 200


# -- check-and-set


@in_virtual_time
async def test_a_check_and_set_of_zero_only_creates() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        first, written = await one.put(DB, {"Items": ITEMS}, query="cas=0")
        second = await one.put(DB, {"Items": {"other": "x"}}, query="cas=0")

        assert (first, second) == (200, (409, written))


@in_virtual_time
async def test_a_check_and_set_succeeds_only_over_the_version_that_it_names() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, first = await one.put(DB, {"Items": ITEMS})
        _, second = await one.put(DB, {"Items": {"a": "1"}}, query=f"cas={first['ModifyIndex']}")

        late = await one.ask("PUT", DB, {"Items": {"a": "2"}}, query=f"cas={first['ModifyIndex']}")
        gone = await one.delete(DB, query=f"cas={first['ModifyIndex']}")

        assert (late.status, late.headers["x-cluster-index"]) == (409, str(second["ModifyIndex"]))
        assert gone == (409, second)
        assert await one.delete(DB, query=f"cas={second['ModifyIndex']}") == (204, "")


@pytest.mark.parametrize("cas", ["x", "-1", "1.5"])
def test_a_check_and_set_with_no_number_is_refused(cas: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            assert (await (await alone(cluster)).put(DB, {"Items": ITEMS}, query=f"cas={cas}"))[0] == 400

    refuse()


# -- locks


@in_virtual_time
async def test_taking_a_lock_makes_the_variable_and_tells_the_holder_its_id() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        status, held = await one.put(DB, {}, query="lock-acquire")

        assert (status, held["Items"]) == (200, {})
        assert (held["Lock"]["TTL"], held["Lock"]["LockDelay"], len(held["Lock"]["ID"])) == ("15s", "15s", 36)


@in_virtual_time
async def test_a_lock_that_is_held_is_refused_to_others_with_nothing_but_the_name() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": ITEMS}, query="lock-acquire")

        status, told = await one.put(DB, {}, query="lock-acquire")

        nothing = {"CreateIndex": 0, "ModifyIndex": 0, "CreateTime": 0, "ModifyTime": 0}
        assert (status, told) == (409, {"Namespace": "default", "Path": "db/main", **nothing})


@in_virtual_time
async def test_only_the_holder_writes_a_locked_variable() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        body = {"Items": ITEMS, "Lock": {"TTL": "1m", "LockDelay": "1s"}}
        _, held = await one.put(DB, body, query="lock-acquire")
        lock_id = held["Lock"]["ID"]

        others = await one.put(DB, {"Items": {"a": "1"}})
        wrong = await one.put(DB, {"Items": {"a": "1"}, "Lock": {"ID": "nobody"}})
        status, own = await one.put(DB, {"Items": {"a": "1"}, "Lock": {"ID": lock_id}})

        assert (others[0], wrong[0], (await one.delete(DB))[0]) == (409, 409, 409)
        assert (status, own["Items"]) == (200, {"a": "1"})
        # A plain write of the holder puts the lock's times back to what is usual.
        assert own["Lock"] == {"ID": lock_id, "TTL": "15s", "LockDelay": "15s"}


@in_virtual_time
async def test_a_lock_that_is_given_back_is_free_at_once() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, held = await one.put(DB, {"Items": ITEMS}, query="lock-acquire")

        released = await one.put(DB, {"Lock": {"ID": held["Lock"]["ID"]}}, query="lock-release")
        status, again = await one.put(DB, {}, query="lock-acquire")

        assert (released[0], "Lock" in released[1], "Items" in released[1]) == (200, False, False)
        assert (status, again["Items"]) == (200, ITEMS)
        assert again["Lock"]["ID"] != held["Lock"]["ID"]


@in_virtual_time
async def test_a_lock_that_is_not_renewed_goes_and_is_refused_for_its_delay() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": ITEMS, "Lock": {"TTL": "10s", "LockDelay": "5s"}}, query="lock-acquire")

        await pass_time(9.5)
        before = await one.get(DB)
        await pass_time(1)
        after, early = await one.get(DB), await one.put(DB, {}, query="lock-acquire")
        await pass_time(5)

        assert ("Lock" in before[1], "Lock" in after[1], early[0]) == (True, False, 409)
        assert (await one.put(DB, {}, query="lock-acquire"))[0] == 200


@in_virtual_time
async def test_a_lock_that_is_renewed_stays_and_nothing_is_written_for_it() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, held = await one.put(DB, {"Items": ITEMS, "Lock": {"TTL": "10s"}}, query="lock-acquire")
        body = {"Lock": {"ID": held["Lock"]["ID"]}}

        for _ in range(5):
            await pass_time(7)
            status, told = await one.put(DB, body, query="lock-renew")
            assert (status, "Items" in told) == (200, False)

        assert (await one.get(DB))[1]["ModifyIndex"] == held["ModifyIndex"]
        await pass_time(11)
        assert "Lock" not in (await one.get(DB))[1]


@in_virtual_time
async def test_a_new_leader_gives_every_lock_its_whole_time() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, held = await one.put(DB, {"Items": ITEMS, "Lock": {"TTL": "20s"}}, query="lock-acquire")
        await pass_time(15)
        assert one.server.election.held is not None
        one.server.election.held.lose()
        one.server.election.again()

        await pass_time(15)
        renewed = await one.put(DB, {"Lock": {"ID": held["Lock"]["ID"]}}, query="lock-renew")
        await pass_time(21)

        assert (renewed[0], "Lock" in (await one.get(DB))[1]) == (200, False)


@in_virtual_time
async def test_a_wrong_a_lost_and_no_lock_cannot_be_renewed() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        missing = await one.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")
        await one.put(DB, {"Items": ITEMS})
        none = await one.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")
        await one.put(DB, {}, query="lock-acquire")
        wrong = await one.put(DB, {"Lock": {"ID": "x"}}, query="lock-renew")

        assert missing == (404, "variable not found")
        assert none == wrong == (409, "attempting to modify locked variable")


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
def test_a_lock_operation_that_makes_no_sense_is_refused_and_changes_nothing(query: str, body: object) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            one = await alone(cluster)
            _, before = await one.put(DB, {"Items": ITEMS})

            assert (await one.put(DB, body, query=query))[0] == 400
            assert (await one.get(DB))[1] == before

    refuse()


@in_virtual_time
async def test_giving_back_a_lock_of_what_is_not_there_is_told() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)

        assert await one.put(DB, {"Lock": {"ID": "x"}}, query="lock-release") == (404, "variable doesn't exist")


# -- rights

OWN = 'namespace "default" { variables { path "own/*" { capabilities = ["read", "write", "destroy"] } } }'
SEEN = 'namespace "default" { variables { path "*" { capabilities = ["list"] } } }'
BLIND = 'namespace "default" { variables { path "*" { capabilities = ["write"] } } }'


@in_virtual_time
async def test_rights_go_by_path_and_lists_hold_what_may_be_listed() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for name in ("own/a", "other/b"):
            await operator.put(f"/v1/var/{name}", {"Items": ITEMS})
        await operator.policy("own", OWN)
        guest = await operator.a_token("own")

        assert [one["Path"] for one in (await guest.get("/v1/vars"))[1]] == ["own/a"]
        assert (await guest.get("/v1/var/own/a"))[0] == 200
        assert await guest.get("/v1/var/other/b") == (403, "Permission denied")
        assert await guest.get("/v1/var/other/ghost") == (403, "Permission denied")
        assert await guest.put("/v1/var/other/b", {"Items": ITEMS}) == (403, "Permission denied")
        assert (await guest.put("/v1/var/own/a", {"Items": {"a": "2"}}))[0] == 200
        assert await guest.delete("/v1/var/other/b") == (403, "Permission denied")
        assert (await guest.delete("/v1/var/own/a"))[0] == 204


@in_virtual_time
async def test_whoever_may_only_list_reads_nothing() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.put(DB, {"Items": ITEMS})
        await operator.policy("seen", SEEN)
        guest = await operator.a_token("seen")

        assert [one["Path"] for one in (await guest.get("/v1/vars"))[1]] == ["db/main"]
        assert await guest.get(DB) == (403, "Permission denied")


@in_virtual_time
async def test_a_conflict_shows_the_items_only_to_whoever_may_read_them() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.put(DB, {"Items": ITEMS})
        await operator.policy("blind", BLIND)
        guest = await operator.a_token("blind")

        status, told = await guest.put(DB, {"Items": {"a": "1"}}, query="cas=0")

        assert (status, told["Path"], "Items" in told) == (409, "db/main", False)


@in_virtual_time
async def test_the_id_of_a_lock_is_shown_to_its_holder_and_to_management_only() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("own", OWN)
        guest, other = await operator.a_token("own"), await operator.a_token("own")
        _, held = await guest.put("/v1/var/own/a", {"Items": ITEMS}, query="lock-acquire")

        assert (await operator.get("/v1/var/own/a"))[1]["Lock"]["ID"] == held["Lock"]["ID"]
        assert (await other.get("/v1/var/own/a"))[1]["Lock"] == {"TTL": "15s", "LockDelay": "15s"}
        assert (await other.get("/v1/vars"))[1][0]["Lock"] == {"TTL": "15s", "LockDelay": "15s"}


@in_virtual_time
async def test_namespaces_keep_variables_apart() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put("/v1/namespace/web", {"Name": "web"})
        await one.put(DB, {"Items": {"in": "default"}})

        _, written = await one.put(DB, {"Items": {"in": "web"}}, query="namespace=web")

        assert (written["Namespace"], (await one.get(DB))[1]["Items"]) == ("web", {"in": "default"})
        assert (await one.get(DB, "namespace=web"))[1]["Items"] == {"in": "web"}
        assert [each["Namespace"] for each in (await one.get("/v1/vars", "namespace=*"))[1]] == ["default", "web"]


# -- secrecy


@in_virtual_time
async def test_items_are_nowhere_in_the_log_in_clear() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": {"password": "tiger-tiger"}})
        stored = one.server.replica.get(VARIABLES, "default", "db/main")

        assert stored is not None
        assert b"tiger-tiger" not in stored.data
        assert b"password" not in stored.data


@in_virtual_time
async def test_a_filter_cannot_ask_for_what_is_sealed() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": ITEMS})

        refused = await one.get("/v1/vars", "filter=KeyID+is+not+empty")
        taken = await one.get("/v1/vars", "filter=Path+%3D%3D+%22db%2Fmain%22")

        assert (refused[0], len(taken[1])) == (400, 1)


@in_virtual_time
async def test_a_read_of_a_variable_waits_for_its_change() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, first = await one.put(DB, {"Items": ITEMS})
        waiting = cluster.start(one.get(DB, f"index={first['ModifyIndex']}&wait=30s"), name="waits")

        _, second = await one.put(DB, {"Items": {"a": "2"}})

        assert await waiting == (200, second)
