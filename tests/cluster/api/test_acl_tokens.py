"""Bootstrap, tokens and who may see them, over HTTP (reference 5.1 to 5.3)."""

import pytest

from tests.cluster.api.access import NOBODY_S_SECRET, AskedAs, an_operator
from tests.kit.cluster import ACluster
from tests.kit.exchange import ask
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import ACL_TOKENS

READ_ALL = 'namespace "*" { policy = "read" }'
UNKNOWN = "3f1b6b0a-58a9-4a53-8c3b-6ed7b8c7c0aa"


@in_virtual_time
async def test_the_first_token_is_made_without_any_right() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)

        status, token = await AskedAs(server).put("/v1/acl/bootstrap")

        told = (token["Name"], token["Type"], token["Global"], token["ExpirationTTL"])
        assert (status, told) == (200, ("Bootstrap Token", "management", True, ""))
        assert (await AskedAs(server, token["SecretID"]).get("/v1/acl/token/self"))[1] == token


@in_virtual_time
async def test_the_first_token_may_have_a_secret_that_the_caller_brings() -> None:
    async with ACluster() as cluster:
        nobody = AskedAs(await cluster.a_server(access=True))

        refused = await nobody.put("/v1/acl/bootstrap", {"BootstrapSecret": "let me in"})
        made = await nobody.put("/v1/acl/bootstrap", {"BootstrapSecret": UNKNOWN})

        assert refused == (400, "invalid acl token")
        assert made[1]["SecretID"] == UNKNOWN


@in_virtual_time
async def test_a_second_bootstrap_is_refused_with_the_index_that_a_reset_needs() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        index = operator.server.replica.get_last_change(ACL_TOKENS)

        answer = await AskedAs(operator.server).put("/v1/acl/bootstrap")

        assert answer == (400, f"ACL bootstrap already done (reset index: {index})")


@in_virtual_time
async def test_a_file_with_the_index_allows_another_bootstrap_once() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        index = operator.server.replica.get_last_change(ACL_TOKENS)
        nobody = AskedAs(operator.server)

        operator.server.server.access.read_bootstrap_reset = lambda: "7777"
        wrong = await nobody.put("/v1/acl/bootstrap")
        operator.server.server.access.read_bootstrap_reset = lambda: f"{index}\n"
        right = await nobody.put("/v1/acl/bootstrap")
        again = await nobody.put("/v1/acl/bootstrap")

        assert wrong == (400, f"Invalid bootstrap reset index (specified 7777, reset index: {index})")
        assert (right[0], right[1]["Type"]) == (200, "management")
        assert again[0] == 400


@in_virtual_time
async def test_while_access_control_is_off_its_endpoints_say_so() -> None:
    async with ACluster() as cluster:
        nobody = AskedAs(await cluster.a_server())
        asked = [
            await nobody.put("/v1/acl/bootstrap"),
            await nobody.get("/v1/acl/tokens"),
            await nobody.get("/v1/acl/auth-methods"),
            await nobody.put("/v1/acl/login", {}),
        ]

        assert asked == [(400, "ACL support disabled")] * 4


@in_virtual_time
async def test_while_access_control_is_off_everybody_is_the_same_pseudo_token() -> None:
    async with ACluster() as cluster:
        status, token = await AskedAs(await cluster.a_server()).get("/v1/acl/token/self")

        told = (token["AccessorID"], token["Name"], token["Type"])
        assert (status, told) == (200, ("acls-disabled", "ACLs disabled token", "client"))


@in_virtual_time
async def test_whoever_comes_without_a_token_is_anonymous() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, token = await AskedAs(operator.server).get("/v1/acl/token/self")

        assert (status, token["AccessorID"], token["SecretID"]) == (200, "anonymous", "")


# -- refusals


@in_virtual_time
async def test_without_a_right_without_a_token_and_with_an_unknown_one_the_answer_is_the_same() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("nothing", "")
        poor = await operator.a_token("nothing")
        who = (AskedAs(operator.server), AskedAs(operator.server, NOBODY_S_SECRET), poor)

        assert [await one.get("/v1/jobs") for one in who] == [(403, "Permission denied")] * 3


@in_virtual_time
async def test_an_unknown_token_is_refused_where_anonymous_callers_get_an_empty_list() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        lists = ("/v1/acl/policies", "/v1/acl/roles", "/v1/vars")

        assert [await AskedAs(operator.server).get(path) for path in lists] == [(200, [])] * 3
        unknown = AskedAs(operator.server, NOBODY_S_SECRET)
        assert [await unknown.get(path) for path in lists] == [(403, "Permission denied")] * 3


@in_virtual_time
async def test_ways_to_log_in_are_listed_for_everybody() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await AskedAs(operator.server, NOBODY_S_SECRET).get("/v1/acl/auth-methods") == (200, [])


@in_virtual_time
async def test_an_expired_token_stops_working_at_once_and_its_owner_learns_why() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")
        before = await guest.get("/v1/jobs")

        await pass_time(121)

        assert before == (200, [])
        assert await guest.get("/v1/jobs") == (403, "Permission denied")
        assert await guest.get("/v1/acl/token/self") == (403, "ACL token expired")


@in_virtual_time
async def test_an_expired_token_gets_no_one_time_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")

        await pass_time(121)

        assert await guest.put("/v1/acl/token/onetime") == (403, "Permission denied")


@in_virtual_time
async def test_expired_tokens_are_removed_after_a_while() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")

        await pass_time(2 * 3_600)

        assert operator.server.replica.get(ACL_TOKENS, guest.accessor) is None
        assert operator.server.replica.get(ACL_TOKENS, operator.accessor) is not None


@in_virtual_time
async def test_rights_are_those_of_the_moment_when_a_policy_is_written_again() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        before = await guest.get("/v1/jobs")

        await operator.policy("reader", "")

        assert (before[0], (await guest.get("/v1/jobs"))[0]) == (200, 403)


@in_virtual_time
async def test_a_bearer_is_as_good_as_our_own_header() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        headers = {"Authorization": f"bearer {operator.token} and more"}

        reply = await ask(operator.server.api, "GET", "/v1/acl/tokens", headers=headers)

        assert reply.status == 200


# -- secrets


@in_virtual_time
async def test_a_secret_is_shown_when_made_to_its_owner_and_to_management_by_accessor() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        other = await operator.a_token("reader")
        path = f"/v1/acl/token/{guest.accessor}"

        assert (await guest.get("/v1/acl/token/self"))[1]["SecretID"] == guest.token
        assert (await guest.get(path))[1]["SecretID"] == guest.token
        assert (await operator.get(path))[1]["SecretID"] == guest.token
        assert await other.get(path) == (403, "Permission denied")


@in_virtual_time
async def test_no_list_of_tokens_shows_a_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")

        reply = await operator.ask("GET", "/v1/acl/tokens")

        assert guest.accessor in reply.body.decode()
        assert guest.token not in reply.body.decode()
        assert "Secret" not in reply.body.decode()


@in_virtual_time
async def test_no_secret_of_a_token_is_in_the_log_in_clear() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        token = operator.server.replica.get(ACL_TOKENS, operator.accessor)

        assert token is not None
        assert operator.token.encode() not in token.secret_sealed
        assert operator.token not in repr(token)


@in_virtual_time
async def test_tokens_cannot_be_filtered_by_what_their_secrets_are_kept_as() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, text = await operator.get("/v1/acl/tokens", "filter=SecretDigest+matches+%22%5Ea%22")

        assert (status, "SecretDigest" in text) == (400, True)


# -- writing


@in_virtual_time
async def test_a_token_is_made_changed_and_deleted() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        body = {"Name": "ci", "Type": "client", "Policies": ["reader", "reader", "unknown"]}
        _, made = await operator.put("/v1/acl/token", body)
        path = f"/v1/acl/token/{made['AccessorID']}"

        _, changed = await operator.put(path, {**made, "Name": "build"})
        deleted = await operator.delete(path)

        assert made["Policies"] == ["reader", "unknown"]
        assert (changed["Name"], changed["SecretID"], changed["CreateIndex"]) == (
            "build",
            made["SecretID"],
            made["CreateIndex"],
        )
        assert (deleted, await operator.get(path)) == ((200, ""), (404, "ACL token not found"))


@in_virtual_time
async def test_a_token_from_elsewhere_is_taken_in_with_both_of_its_ids() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        body = {"AccessorID": UNKNOWN, "SecretID": NOBODY_S_SECRET, "Type": "client", "Policies": ["p"]}

        status, made = await operator.put("/v1/acl/token", body)

        assert (status, made["AccessorID"], made["SecretID"]) == (200, UNKNOWN, NOBODY_S_SECRET)
        assert (await AskedAs(operator.server, NOBODY_S_SECRET).get("/v1/acl/token/self"))[0] == 200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"AccessorID": UNKNOWN, "Type": "client", "Policies": ["p"]}, f"cannot find token {UNKNOWN}"),
        ({"AccessorID": "x"}, 'token lookup failed: "x" is no UUID'),
        (
            {"Type": "client"},
            "token 0 invalid: 1 error occurred:\n\t* client token missing policies or roles\n\n",
        ),
        (
            {"Type": "management", "Policies": ["p"], "Name": "x" * 257},
            "token 0 invalid: 2 errors occurred:\n"
            "\t* management token cannot be associated with policies or roles\n\t* token name too long\n\n",
        ),
        (
            {"Type": "root"},
            "token 0 invalid: 1 error occurred:\n\t* token type must be client or management\n\n",
        ),
        (
            {"Type": "management", "ExpirationTTL": "5s"},
            "token 0 invalid: 1 error occurred:\n"
            "\t* expiration time cannot be less than 1m0s in the future (was 5s)\n\n",
        ),
        (
            {"Type": "management", "ExpirationTTL": "25h"},
            "token 0 invalid: 1 error occurred:\n"
            "\t* expiration time cannot be more than 24h0m0s in the future (was 25h0m0s)\n\n",
        ),
        ({"Type": "client", "Roles": [{"Name": "ghost"}]}, "cannot find role ghost"),
    ],
)
def test_a_token_that_may_not_be_is_refused_with_all_that_is_wrong(body: dict[str, object], text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            count = operator.server.replica.count_records(ACL_TOKENS)

            assert await operator.put("/v1/acl/token", body) == (400, text)
            assert operator.server.replica.count_records(ACL_TOKENS) == count

    refuse()


@in_virtual_time
async def test_a_token_without_an_end_never_gets_one() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, made = await operator.put("/v1/acl/token", {"Type": "management"})

        status, text = await operator.put(f"/v1/acl/token/{made['AccessorID']}", {**made, "ExpirationTTL": "1h"})

        assert (status, "cannot update expiration TTL" in text) == (400, True)


@in_virtual_time
async def test_the_path_and_the_body_name_the_same_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        answer = await operator.put(f"/v1/acl/token/{UNKNOWN}", {"AccessorID": NOBODY_S_SECRET, "Type": "management"})

        assert answer == (400, "ACL token accessor does not match request path")


@in_virtual_time
async def test_deleting_an_unknown_token_is_a_mistake() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await operator.delete(f"/v1/acl/token/{UNKNOWN}") == (
            400,
            f"Cannot delete nonexistent tokens: {UNKNOWN}",
        )


@in_virtual_time
async def test_tokens_are_listed_in_order_of_creation_page_by_page() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        made = [operator.accessor, *[(await operator.a_token("p")).accessor for _ in range(3)]]

        first = await operator.ask("GET", "/v1/acl/tokens", query="per_page=3")
        token = first.headers["x-cluster-nexttoken"]
        _, rest = await operator.get("/v1/acl/tokens", f"per_page=3&next_token={token}")

        assert [*[one["AccessorID"] for one in (await operator.get("/v1/acl/tokens"))[1]]] == made
        assert [one["AccessorID"] for one in rest] == made[3:]


# -- once


@in_virtual_time
async def test_a_one_time_token_stands_for_a_token_once() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, made = await operator.put("/v1/acl/token/onetime")
        body = {"OneTimeSecretID": made["OneTimeToken"]["OneTimeSecretID"]}

        status, exchanged = await AskedAs(operator.server).put("/v1/acl/token/onetime/exchange", body)
        again = await AskedAs(operator.server).put("/v1/acl/token/onetime/exchange", body)

        assert (status, exchanged["Token"]["SecretID"]) == (200, operator.token)
        assert again == (403, "Permission denied")


@in_virtual_time
async def test_a_one_time_token_holds_for_ten_minutes() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, made = await operator.put("/v1/acl/token/onetime")

        await pass_time(600)

        body = {"OneTimeSecretID": made["OneTimeToken"]["OneTimeSecretID"]}
        assert (await AskedAs(operator.server).put("/v1/acl/token/onetime/exchange", body))[0] == 403


@in_virtual_time
async def test_nobody_without_a_token_passes_one_on() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await AskedAs(operator.server).put("/v1/acl/token/onetime") == (403, "Permission denied")


@in_virtual_time
async def test_a_token_that_was_deleted_writes_nothing_on_any_server_however_far_behind() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        other = await cluster.a_server("m2", leads=False, access=True)
        _, made = await operator.put("/v1/acl/token", {"Type": "management"})
        guest = AskedAs(other, made["SecretID"])
        body = {"Name": "p", "Rules": ""}
        before = await guest.put("/v1/acl/policy/p", body)
        other.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=1.0) if operation is EngineOperation.FEED else None
        )

        await operator.delete(f"/v1/acl/token/{made['AccessorID']}")

        assert before == (200, "")
        assert await guest.put("/v1/acl/policy/q", {**body, "Name": "q"}) == (403, "Permission denied")
