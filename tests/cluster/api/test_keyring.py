"""Keys of the ring over HTTP: rotated, sealed anew with, deleted; and the keys that others check identities with."""

import pytest

from tests.cluster.api.access import AskedAs, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import KEYRING, VARIABLES
from wharf.contract.model.times import SECOND

DB = "/v1/var/db"
KEYS = "/v1/operator/keyring/keys"
ROTATE = "/v1/operator/keyring/rotate"


async def alone(cluster: ACluster) -> AskedAs:
    return AskedAs(await cluster.a_server())


async def states(one: AskedAs) -> dict[str, str]:
    return {key["KeyID"]: key["State"] for key in (await one.get(KEYS))[1]}


@in_virtual_time
async def test_the_first_secret_makes_the_first_key_and_keys_are_listed_without_themselves() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        before = await one.get(KEYS)
        await one.put(DB, {"Items": {"a": "1"}})

        _, keys = await one.get(KEYS)

        assert before == (200, [])
        assert [(key["State"], key["Algorithm"]) for key in keys] == [("active", "aes256-gcm")]
        names = ["Algorithm", "CreateIndex", "CreateTime", "KeyID", "ModifyIndex", "PublishTime", "State"]
        assert sorted(keys[0]) == names


@in_virtual_time
async def test_a_rotation_puts_a_new_key_in_force_and_the_old_one_still_opens() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": {"a": "1"}})
        old = next(iter(await states(one)))

        _, rotated = await one.put(ROTATE)
        await one.put("/v1/var/new", {"Items": {"a": "2"}})

        new = rotated["Key"]["KeyID"]
        stored = [one.server.replica.get(VARIABLES, "default", path) for path in ("db", "new")]
        assert await states(one) == {old: "inactive", new: "active"}
        assert [each.key_id for each in stored if each is not None] == [old, new]
        assert (await one.get(DB))[1]["Items"] == {"a": "1"}


@in_virtual_time
async def test_a_full_rotation_seals_everything_anew_and_then_lets_the_old_key_go() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for number in range(100):
            await operator.put(f"/v1/var/v{number}", {"Items": {"n": str(number)}})
        old = next(iter(await states(operator)))

        await operator.put(ROTATE, query="full")
        replica = operator.server.replica
        await until(lambda: all(v.key_id != old for v in replica.iter_all(VARIABLES)), what="all is sealed anew")
        await pass_time(1)

        assert (await states(operator))[old] == "inactive"
        assert (await operator.get("/v1/var/v42"))[1]["Items"] == {"n": "42"}
        assert (await operator.get("/v1/acl/token/self"))[1]["SecretID"] == operator.token
        assert (await operator.delete(f"/v1/operator/keyring/key/{old}"))[0] == 200


@in_virtual_time
async def test_a_key_that_is_published_before_its_time_takes_over_when_that_comes() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": {"a": "1"}})
        at_ns = one.server.world.now_ns() + 60 * SECOND

        _, waiting = await one.put(ROTATE, query=f"publish_time={at_ns}")
        before = await states(one)
        await pass_time(600)

        new = waiting["Key"]["KeyID"]
        assert (before[new], waiting["Key"]["PublishTime"]) == ("prepublished", at_ns)
        assert (await states(one))[new] == "active"
        assert sorted((await states(one)).values()) == ["active", "inactive"]


@in_virtual_time
async def test_a_key_is_rotated_by_itself_when_it_is_old_and_collected_when_nothing_needs_it() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        _, first = await one.put(ROTATE)

        await pass_time(719 * 3_600)
        before = await states(one)
        await pass_time(3 * 3_600)

        assert before == {first["Key"]["KeyID"]: "active"}
        assert one.server.replica.get(KEYRING, first["Key"]["KeyID"]) is None
        assert list((await states(one)).values()) == ["active"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("full&publish_time=12345", "keyring cannot be prepublished and full rotated at the same time"),
        ("publish_time=soon", 'invalid publish_time: "soon" is no number of nanoseconds since 1970'),
    ],
)
def test_a_rotation_that_makes_no_sense_is_refused_and_changes_nothing(query: str, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            one = await alone(cluster)

            assert await one.put(ROTATE, query=query) == (400, text)
            assert await states(one) == {}

    refuse()


@in_virtual_time
async def test_a_key_in_force_in_use_or_unknown_is_not_deleted() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        await one.put(DB, {"Items": {"a": "1"}})
        old = next(iter(await states(one)))
        path = f"/v1/operator/keyring/key/{old}"

        active = await one.delete(path)
        await one.put(ROTATE)
        in_use = await one.delete(path)

        assert active == (400, "active root key cannot be deleted - call rotate first")
        assert in_use == (400, "root key in use, cannot delete")
        assert await one.delete("/v1/operator/keyring/key/ghost") == (404, "root key not found")
        assert await one.delete(path, query="force=maybe") == (400, "invalid force parameter")
        assert (await one.delete(path, query="force=true"))[0] == 200


@in_virtual_time
async def test_the_ring_needs_its_own_rights() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", 'operator { capabilities = ["keyring-read"] }')
        reader = await operator.a_token("reader")

        assert (await reader.get(KEYS))[0] == 200
        assert await reader.put(ROTATE) == (403, "Permission denied")
        assert await AskedAs(operator.server).get(KEYS) == (403, "Permission denied")


@in_virtual_time
async def test_everybody_may_see_the_public_keys_and_nothing_more_of_them() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, told = await AskedAs(operator.server).get("/.well-known/jwks.json")

        assert status == 200
        assert [(sorted(key), key["kty"], key["crv"]) for key in told["keys"]] == [
            (["alg", "crv", "kid", "kty", "use", "x"], "OKP", "Ed25519")
        ]
        assert {key["kid"] for key in told["keys"]} == set(await states(operator))


@in_virtual_time
async def test_the_issuer_is_told_only_where_it_is_configured() -> None:
    async with ACluster() as cluster:
        one = await alone(cluster)
        access = one.server.server.access
        before = await one.get("/.well-known/openid-configuration")

        access.apply_settings(type(access.settings)(issuer="https://wharf.example/"))
        status, told = await one.get("/.well-known/openid-configuration")

        assert before[0] == 404
        assert (status, told["issuer"], told["jwks_uri"]) == (
            200,
            "https://wharf.example/",
            "https://wharf.example/.well-known/jwks.json",
        )
