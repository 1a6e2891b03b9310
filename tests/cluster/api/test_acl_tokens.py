"""Bootstrap and tokens over HTTP, and which callers may see them (reference 5.1 to 5.3)."""

import asyncio
import json

import pytest

from tests.cluster.api.access import UNKNOWN_SECRET, ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.api.app import Api
from wharf.cluster.api.audit import AuditRecord
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation
from wharf.cluster.state.tables import ACL_TOKENS

READ_ALL = 'namespace "*" { policy = "read" }'
UNKNOWN = "3f1b6b0a-58a9-4a53-8c3b-6ed7b8c7c0aa"


@in_virtual_time
async def test_the_first_token_is_created_without_any_right() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)

        status, token = await ApiCaller(server).put("/v1/acl/bootstrap")

        result = (token["Name"], token["Type"], token["Global"], token["ExpirationTTL"])
        assert (status, result) == (200, ("Bootstrap Token", "management", True, ""))
        assert (await ApiCaller(server, token["SecretID"]).get("/v1/acl/token/self"))[1] == token


@in_virtual_time
async def test_the_first_token_may_have_a_secret_from_the_caller() -> None:
    async with ACluster() as cluster:
        powerless = ApiCaller(await cluster.a_server(access=True))

        refusal = await powerless.put("/v1/acl/bootstrap", {"BootstrapSecret": "let me in"})
        created = await powerless.put("/v1/acl/bootstrap", {"BootstrapSecret": UNKNOWN})

        assert refusal == (400, "invalid acl token")
        assert created[1]["SecretID"] == UNKNOWN


@in_virtual_time
async def test_a_second_bootstrap_is_refused_with_the_index_for_a_reset() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        index = operator.server.replica.get_last_change(ACL_TOKENS)

        response = await ApiCaller(operator.server).put("/v1/acl/bootstrap")

        assert response == (400, f"ACL bootstrap already done (reset index: {index})")


@in_virtual_time
async def test_a_reset_file_with_the_index_allows_one_more_bootstrap() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        index = operator.server.replica.get_last_change(ACL_TOKENS)
        powerless = ApiCaller(operator.server)

        operator.server.server.access.read_bootstrap_reset = lambda: "7777"
        invalid = await powerless.put("/v1/acl/bootstrap")
        operator.server.server.access.read_bootstrap_reset = lambda: f"{index}\n"
        right = await powerless.put("/v1/acl/bootstrap")
        repeated = await powerless.put("/v1/acl/bootstrap")

        assert invalid == (400, f"Invalid bootstrap reset index (specified 7777, reset index: {index})")
        assert (right[0], right[1]["Type"]) == (200, "management")
        assert repeated[0] == 400


@in_virtual_time
async def test_a_bootstrap_with_the_reset_file_is_logged_with_the_new_accessor_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        index = operator.server.replica.get_last_change(ACL_TOKENS)
        operator.server.server.access.read_bootstrap_reset = lambda: str(index)

        _, token = await ApiCaller(operator.server).put("/v1/acl/bootstrap")

        (record,) = [each for each in caplog.records if "reset file" in each.message]
        assert (record.levelname, record.__dict__["accessor_id"]) == ("WARNING", token["AccessorID"])


@in_virtual_time
async def test_while_access_control_is_off_its_endpoints_are_refused() -> None:
    async with ACluster() as cluster:
        powerless = ApiCaller(await cluster.a_server())
        requests = [
            await powerless.put("/v1/acl/bootstrap"),
            await powerless.get("/v1/acl/tokens"),
            await powerless.get("/v1/acl/auth-methods"),
            await powerless.put("/v1/acl/login", {}),
        ]

        assert requests == [(400, "ACL support disabled")] * 4


@in_virtual_time
async def test_while_access_control_is_off_every_caller_has_the_same_placeholder_token() -> None:
    async with ACluster() as cluster:
        status, token = await ApiCaller(await cluster.a_server()).get("/v1/acl/token/self")

        result = (token["AccessorID"], token["Name"], token["Type"])
        assert (status, result) == (200, ("acls-disabled", "ACLs disabled token", "client"))


@in_virtual_time
async def test_a_caller_without_a_token_is_anonymous() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, token = await ApiCaller(operator.server).get("/v1/acl/token/self")

        assert (status, token["AccessorID"], token["SecretID"]) == (200, "anonymous", "")


# -- refusals


@in_virtual_time
async def test_a_missing_right_a_missing_token_and_an_unknown_token_get_the_same_reply() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("nothing", "")
        powerless_caller = await operator.a_token("nothing")
        callers = (ApiCaller(operator.server), ApiCaller(operator.server, UNKNOWN_SECRET), powerless_caller)

        assert [await item.get("/v1/jobs") for item in callers] == [(403, "Permission denied")] * 3


@in_virtual_time
async def test_an_unknown_token_is_refused_where_anonymous_callers_get_an_empty_list() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        lists = ("/v1/acl/policies", "/v1/acl/roles", "/v1/vars")

        assert [await ApiCaller(operator.server).get(path) for path in lists] == [(200, [])] * 3
        unknown = ApiCaller(operator.server, UNKNOWN_SECRET)
        assert [await unknown.get(path) for path in lists] == [(403, "Permission denied")] * 3


@in_virtual_time
async def test_auth_methods_are_listed_for_every_caller() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await ApiCaller(operator.server, UNKNOWN_SECRET).get("/v1/acl/auth-methods") == (200, [])


@in_virtual_time
async def test_an_expired_token_is_refused_at_once_with_the_reason() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")
        before = await guest.get("/v1/jobs")

        await pass_time(121)

        assert before == (200, [])
        assert await guest.get("/v1/jobs") == (403, "Permission denied")
        assert await guest.get("/v1/acl/token/self") == (403, "ACL token expired")


@pytest.mark.parametrize(
    ("time", "status"),
    [
        ("0001-01-01T00:00:00Z", 200),
        ("0001-01-01T00:00:00.000000Z", 200),
        ("0001-01-01T00:00:01Z", 400),
        ("0001-01-01T00:00:00+05:00", 400),
        ("0001-12-31T23:59:59Z", 400),
        ("0001-01-01T00:00:00", 400),
        ("1970-01-01T00:00:00Z", 400),
    ],
)
def test_only_the_zero_time_means_that_a_token_does_not_expire(time: str, status: int) -> None:
    @in_virtual_time
    async def create() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)

            reply, created = await operator.put("/v1/acl/token", {"Type": "management", "ExpirationTime": time})

            assert reply == status, created
            if status == 200:
                assert created.get("ExpirationTime") is None

    create()


@in_virtual_time
async def test_an_expired_token_cannot_create_a_one_time_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")

        await pass_time(121)

        assert await guest.put("/v1/acl/token/onetime") == (403, "Permission denied")


@in_virtual_time
async def test_expired_tokens_are_deleted_after_a_while() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader", ExpirationTTL="2m")

        cluster.advance_clocks(2 * 3_600)
        await pass_time(600)  # The brain checks the tokens every 300 s.

        assert operator.server.replica.get(ACL_TOKENS, guest.accessor) is None
        assert operator.server.replica.get(ACL_TOKENS, operator.accessor) is not None


@in_virtual_time
async def test_a_changed_policy_takes_effect_at_once() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        before = await guest.get("/v1/jobs")

        await operator.policy("reader", "")

        assert (before[0], (await guest.get("/v1/jobs"))[0]) == (200, 403)


@in_virtual_time
async def test_a_bearer_header_works_like_the_token_header() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        headers = {"Authorization": f"bearer {operator.token} and more"}

        reply = await send_raw(operator.server.api, "GET", "/v1/acl/tokens", headers=headers)

        assert reply.status == 200


# -- secrets


@in_virtual_time
async def test_a_secret_is_shown_at_creation_to_its_owner_and_to_management_by_accessor() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")
        second = await operator.a_token("reader")
        path = f"/v1/acl/token/{guest.accessor}"

        assert (await guest.get("/v1/acl/token/self"))[1]["SecretID"] == guest.token
        assert (await guest.get(path))[1]["SecretID"] == guest.token
        assert (await operator.get(path))[1]["SecretID"] == guest.token
        assert await second.get(path) == (403, "Permission denied")


@in_virtual_time
async def test_no_list_of_tokens_contains_a_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        guest = await operator.a_token("reader")

        reply = await operator.send_raw("GET", "/v1/acl/tokens")

        assert guest.accessor in reply.body.decode()
        assert guest.token not in reply.body.decode()
        assert "Secret" not in reply.body.decode()


@in_virtual_time
async def test_the_log_never_contains_a_token_secret_in_plain_text() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        token = operator.server.replica.get(ACL_TOKENS, operator.accessor)

        assert token is not None
        assert operator.token.encode() not in token.secret_sealed
        assert operator.token not in repr(token)


@in_virtual_time
async def test_tokens_cannot_be_filtered_by_the_stored_form_of_their_secrets() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, text = await operator.get("/v1/acl/tokens", "filter=SecretDigest+matches+%22%5Ea%22")

        assert (status, "SecretDigest" in text) == (400, True)


# -- writing


@in_virtual_time
async def test_a_token_is_created_changed_and_deleted() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", READ_ALL)
        body = {"Name": "ci", "Type": "client", "Policies": ["reader", "reader", "unknown"]}
        _, created = await operator.put("/v1/acl/token", body)
        path = f"/v1/acl/token/{created['AccessorID']}"

        _, changed = await operator.put(path, {**created, "Name": "build"})
        deleted = await operator.delete(path)

        assert created["Policies"] == ["reader", "unknown"]
        assert (changed["Name"], changed["SecretID"], changed["CreateIndex"]) == (
            "build",
            created["SecretID"],
            created["CreateIndex"],
        )
        assert (deleted, await operator.get(path)) == ((200, ""), (404, "ACL token not found"))


@in_virtual_time
async def test_a_token_is_imported_with_both_of_its_ids() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        body = {"AccessorID": UNKNOWN, "SecretID": UNKNOWN_SECRET, "Type": "client", "Policies": ["p"]}

        status, created = await operator.put("/v1/acl/token", body)

        assert (status, created["AccessorID"], created["SecretID"]) == (200, UNKNOWN, UNKNOWN_SECRET)
        assert (await ApiCaller(operator.server, UNKNOWN_SECRET).get("/v1/acl/token/self"))[0] == 200


class RetainedAudit:
    """Collects audit records."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def record(self, entry: AuditRecord) -> None:
        self.records.append(entry)


@pytest.mark.parametrize(
    ("path", "is_stored"),
    [
        ("/v1/acl/token/{secret}", True),
        ("/v1/acl/token/{secret}", False),  # Of a deleted token, or of another cluster.
        ("/v1/node/{secret}/eligibility", True),
        ("/v1/volume/host/{secret}", True),
    ],
)
@in_virtual_time
async def test_a_secret_in_the_place_of_an_id_is_in_no_reply_and_no_audit_record(path: str, is_stored: bool) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        audit = RetainedAudit()
        operator.server.api = Api(operator.server.server, audit=audit)
        secret = operator.token if is_stored else UNKNOWN_SECRET

        replies = [
            await operator.send_raw(method, path.format(secret=secret), {}) for method in ("PUT", "POST", "DELETE")
        ]

        assert all(reply.status >= 400 for reply in replies)
        assert secret not in " ".join(map(str, [*replies, *audit.records]))
        assert any("<hidden>" in record.path for record in audit.records)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"AccessorID": UNKNOWN, "Type": "client", "Policies": ["p"]},
            "cannot find token: no token has this accessor ID, which is not the token's secret",
        ),
        ({"AccessorID": "x"}, "token lookup failed: the accessor ID is not a UUID"),
        (
            {"Type": "client"},
            "token 0 invalid: 1 error occurred:\n\t* client token missing policies or roles",
        ),
        (
            {"Type": "management", "Policies": ["p"], "Name": "x" * 257},
            "token 0 invalid: 2 errors occurred:\n"
            "\t* management token cannot be associated with policies or roles\n\t* token name too long",
        ),
        (
            {"Type": "root"},
            "token 0 invalid: 1 error occurred:\n\t* token type must be client or management",
        ),
        (
            {"Type": "management", "ExpirationTTL": "5s"},
            "token 0 invalid: 1 error occurred:\n\t* expiration time cannot be less than 1m0s in the future (was 5s)",
        ),
        (
            {"Type": "management", "ExpirationTTL": "25h"},
            "token 0 invalid: 1 error occurred:\n"
            "\t* expiration time cannot be more than 24h0m0s in the future (was 25h0m0s)",
        ),
        ({"Type": "client", "Roles": [{"Name": "ghost"}]}, "cannot find role ghost"),
    ],
)
def test_an_invalid_token_is_refused_with_all_errors(body: dict[str, object], text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            count = operator.server.replica.count_records(ACL_TOKENS)

            assert await operator.put("/v1/acl/token", body) == (400, text)
            assert operator.server.replica.count_records(ACL_TOKENS) == count

    refuse()


@in_virtual_time
async def test_a_token_without_an_expiration_cannot_get_one() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, created = await operator.put("/v1/acl/token", {"Type": "management"})

        status, text = await operator.put(f"/v1/acl/token/{created['AccessorID']}", {**created, "ExpirationTTL": "1h"})

        assert (status, "cannot update expiration TTL" in text) == (400, True)


@in_virtual_time
async def test_the_path_and_the_body_must_name_the_same_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        response = await operator.put(f"/v1/acl/token/{UNKNOWN}", {"AccessorID": UNKNOWN_SECRET, "Type": "management"})

        assert response == (400, "ACL token accessor does not match request path")


@in_virtual_time
async def test_deleting_an_unknown_token_is_refused() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await operator.delete(f"/v1/acl/token/{UNKNOWN}") == (
            400,
            "Cannot delete nonexistent tokens: no token has this accessor ID, which is not the token's secret",
        )


@in_virtual_time
async def test_tokens_are_listed_by_creation_with_pages() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        created = [operator.accessor, *[(await operator.a_token("p")).accessor for _ in range(3)]]

        first = await operator.send_raw("GET", "/v1/acl/tokens", query="per_page=3")
        token = first.headers["x-cluster-nexttoken"]
        _, last_page = await operator.get("/v1/acl/tokens", f"per_page=3&next_token={token}")

        assert [*[item["AccessorID"] for item in (await operator.get("/v1/acl/tokens"))[1]]] == created
        assert [item["AccessorID"] for item in last_page] == created[3:]


# -- one-time tokens


@in_virtual_time
async def test_a_one_time_token_is_exchanged_once() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, created = await operator.put("/v1/acl/token/onetime")
        body = {"OneTimeSecretID": created["OneTimeToken"]["OneTimeSecretID"]}

        status, exchanged = await ApiCaller(operator.server).put("/v1/acl/token/onetime/exchange", body)
        repeated = await ApiCaller(operator.server).put("/v1/acl/token/onetime/exchange", body)

        assert (status, exchanged["Token"]["SecretID"]) == (200, operator.token)
        assert repeated == (403, "Permission denied")


@in_virtual_time
async def test_servers_that_exchange_a_one_time_token_at_the_same_time_return_its_token_once() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        second = await cluster.a_server("m2", leads=False, access=True)
        _, created = await operator.put("/v1/acl/token/onetime")
        body = {"OneTimeSecretID": created["OneTimeToken"]["OneTimeSecretID"]}
        await until(lambda: second.replica.index == operator.server.replica.index, what="m2 has the one-time token")

        replies = await asyncio.gather(
            *(
                ApiCaller(server).put("/v1/acl/token/onetime/exchange", body)
                for server in (operator.server, second)
                for _ in range(5)
            )
        )

        assert sorted(status for status, _ in replies) == [200] + [403] * 9


@in_virtual_time
async def test_an_exchange_is_not_repeated_for_the_same_idempotency_key() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, created = await operator.put("/v1/acl/token/onetime")
        body = json.dumps({"OneTimeSecretID": created["OneTimeToken"]["OneTimeSecretID"]}).encode()

        replies = [
            await send_raw(
                operator.server.api,
                "PUT",
                "/v1/acl/token/onetime/exchange",
                body=body,
                headers={"idempotency-key": "11111111-2222-3333-4444-555555555555"},
            )
            for _ in range(2)
        ]

        assert [reply.status for reply in replies] == [200, 403]


@in_virtual_time
async def test_a_one_time_token_is_valid_for_ten_minutes() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        _, created = await operator.put("/v1/acl/token/onetime")

        await pass_time(600)

        body = {"OneTimeSecretID": created["OneTimeToken"]["OneTimeSecretID"]}
        assert (await ApiCaller(operator.server).put("/v1/acl/token/onetime/exchange", body))[0] == 403


@in_virtual_time
async def test_a_caller_without_a_token_cannot_create_a_one_time_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await ApiCaller(operator.server).put("/v1/acl/token/onetime") == (403, "Permission denied")


@in_virtual_time
async def test_a_deleted_token_writes_nothing_even_on_a_lagging_server() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        second = await cluster.a_server("m2", leads=False, access=True)
        _, created = await operator.put("/v1/acl/token", {"Type": "management"})
        guest = ApiCaller(second, created["SecretID"])
        body = {"Name": "p", "Rules": ""}
        before = await guest.put("/v1/acl/policy/p", body)
        second.faults.choose_fault = lambda operation: (
            DelayFault(reply_s=1.0) if operation is EngineOperation.FEED else None
        )

        await operator.delete(f"/v1/acl/token/{created['AccessorID']}")

        assert before == (200, "")
        assert await guest.put("/v1/acl/policy/q", {**body, "Name": "q"}) == (403, "Permission denied")
