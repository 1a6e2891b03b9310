"""The keyring over HTTP: rotation, full rotation, deletion, and the public keys of identities."""

import pytest

from tests.cluster.api.access import ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.state.tables import KEYRING, VARIABLES
from wharf.contract.model.times import SECOND

DB = "/v1/var/db"
KEYS = "/v1/operator/keyring/keys"
ROTATE = "/v1/operator/keyring/rotate"


async def without_access_control(cluster: ACluster) -> ApiCaller:
    return ApiCaller(await cluster.a_server())


async def states(caller: ApiCaller) -> dict[str, str]:
    return {key["KeyID"]: key["State"] for key in (await caller.get(KEYS))[1]}


@in_virtual_time
async def test_the_first_secret_creates_the_first_key_and_lists_show_no_key_material() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        before = await item.get(KEYS)
        await item.put(DB, {"Items": {"a": "1"}})

        _, keys = await item.get(KEYS)

        assert before == (200, [])
        assert [(key["State"], key["Algorithm"]) for key in keys] == [("active", "aes256-gcm")]
        names = ["Algorithm", "CreateIndex", "CreateTime", "KeyID", "ModifyIndex", "PublishTime", "State"]
        assert sorted(keys[0]) == names


@in_virtual_time
async def test_after_a_rotation_the_new_key_encrypts_and_the_old_one_still_decrypts() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": {"a": "1"}})
        old = next(iter(await states(item)))

        _, rotated = await item.put(ROTATE)
        await item.put("/v1/var/new", {"Items": {"a": "2"}})

        new = rotated["Key"]["KeyID"]
        stored = [item.server.replica.get(VARIABLES, "default", path) for path in ("db", "new")]
        assert await states(item) == {old: "inactive", new: "active"}
        assert [each.key_id for each in stored if each is not None] == [old, new]
        assert (await item.get(DB))[1]["Items"] == {"a": "1"}


@in_virtual_time
async def test_a_full_rotation_encrypts_everything_again_and_then_deletes_the_old_key() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        for number in range(100):
            await operator.put(f"/v1/var/v{number}", {"Items": {"n": str(number)}})
        old = next(iter(await states(operator)))

        await operator.put(ROTATE, query="full")
        replica = operator.server.replica
        await until(
            lambda: all(v.key_id != old for v in replica.iter_all(VARIABLES)),
            what="all variables are encrypted with the new key",
        )
        await pass_time(1)

        assert (await states(operator))[old] == "inactive"
        assert (await operator.get("/v1/var/v42"))[1]["Items"] == {"n": "42"}
        assert (await operator.get("/v1/acl/token/self"))[1]["SecretID"] == operator.token
        assert (await operator.delete(f"/v1/operator/keyring/key/{old}"))[0] == 200


@in_virtual_time
async def test_a_prepublished_key_becomes_active_at_its_publish_time() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": {"a": "1"}})
        at_ns = item.server.world.now_ns() + 60 * SECOND

        _, pending_read = await item.put(ROTATE, query=f"publish_time={at_ns}")
        before = await states(item)
        await pass_time(600)

        new = pending_read["Key"]["KeyID"]
        assert (before[new], pending_read["Key"]["PublishTime"]) == ("prepublished", at_ns)
        assert (await states(item))[new] == "active"
        assert sorted((await states(item)).values()) == ["active", "inactive"]


@in_virtual_time
async def test_an_old_key_is_rotated_automatically_and_collected_when_unused() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        _, first = await item.put(ROTATE)

        cluster.advance_clocks(599 * 3_600)  # The kit rotates keys after 600 hours.
        await pass_time(600)  # The brain checks the keys every 250 s.
        before = await states(item)
        cluster.advance_clocks(3_600)
        await pass_time(600)
        cluster.advance_clocks(2 * 3_600)
        await pass_time(600)

        assert before == {first["Key"]["KeyID"]: "active"}
        assert item.server.replica.get(KEYRING, first["Key"]["KeyID"]) is None
        assert list((await states(item)).values()) == ["active"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("full&publish_time=12345", "keyring cannot be prepublished and full rotated at the same time"),
        ("publish_time=soon", 'invalid publish_time "soon": expected nanoseconds since 1970'),
    ],
)
def test_an_invalid_rotation_is_refused_and_changes_nothing(query: str, text: str) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            item = await without_access_control(cluster)

            assert await item.put(ROTATE, query=query) == (400, text)
            assert await states(item) == {}

    refuse()


@in_virtual_time
async def test_an_active_used_or_unknown_key_cannot_be_deleted() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        await item.put(DB, {"Items": {"a": "1"}})
        old = next(iter(await states(item)))
        path = f"/v1/operator/keyring/key/{old}"

        active = await item.delete(path)
        await item.put(ROTATE)
        in_use = await item.delete(path)

        assert active == (400, "active root key cannot be deleted - call rotate first")
        assert in_use == (400, "root key in use, cannot delete")
        assert await item.delete("/v1/operator/keyring/key/ghost") == (404, "root key not found")
        assert await item.delete(path, query="force=maybe") == (400, "invalid force parameter")
        assert (await item.delete(path, query="force=true"))[0] == 200


@in_virtual_time
async def test_the_keyring_needs_its_own_rights() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("reader", 'operator { capabilities = ["keyring-read"] }')
        reader = await operator.a_token("reader")

        assert (await reader.get(KEYS))[0] == 200
        assert await reader.put(ROTATE) == (403, "Permission denied")
        assert await ApiCaller(operator.server).get(KEYS) == (403, "Permission denied")


@in_virtual_time
async def test_public_keys_are_visible_to_everyone_without_key_material() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        status, result = await ApiCaller(operator.server).get("/.well-known/jwks.json")

        assert status == 200
        assert [(sorted(key), key["kty"], key["crv"]) for key in result["keys"]] == [
            (["alg", "crv", "kid", "kty", "use", "x"], "OKP", "Ed25519")
        ]
        assert {key["kid"] for key in result["keys"]} == set(await states(operator))


@in_virtual_time
async def test_the_issuer_is_published_only_if_configured() -> None:
    async with ACluster() as cluster:
        item = await without_access_control(cluster)
        access = item.server.server.access
        before = await item.get("/.well-known/openid-configuration")

        access.apply_settings(type(access.settings)(issuer="https://wharf.example/"))
        status, result = await item.get("/.well-known/openid-configuration")

        assert before[0] == 404
        assert (status, result["issuer"], result["jwks_uri"]) == (
            200,
            "https://wharf.example/",
            "https://wharf.example/.well-known/jwks.json",
        )
