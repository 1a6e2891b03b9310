"""Replication of global records from the authoritative region, and forwarding of their writes."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from tests.cluster.api.login_provider import CLIENT_ID, LoginProvider
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import InMemoryTransport, send_raw
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.access import TokenSecret, authenticate_caller
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.server.duties.replication import ReplicationDuty, build_source_client
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.security.logins import LoginVerifier
from wharf.cluster.state import Table
from wharf.cluster.state.tables import (
    ACL_AUTH_METHODS,
    ACL_BINDING_RULES,
    ACL_POLICIES,
    ACL_ROLES,
    ACL_TOKENS,
    NAMESPACES,
    NODE_POOLS,
    QUOTAS,
)
from wharf.cluster.state.watches import watch_table
from wharf.contract.client import ClientReply
from wharf.contract.client.transport import Unreachable
from wharf.contract.model.acl.capabilities import PolicyLevel, PolicyScope
from wharf.contract.model.record import Record
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.times import SECOND, DecisionContext

OF_A_REGION = ("create_index", "modify_index", "secrets_sealed", "sealed_with", "secrets_stamp")
ACCESSOR = "11111111-2222-3333-4444-555555555555"
SECRETS = ["aaaaaaaa-2222-3333-4444-555555555555", "bbbbbbbb-2222-3333-4444-555555555555"]
POLICY = {"Name": "reads", "Rules": 'node { policy = "read" }'}
METHOD = {
    "Name": "ci", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h0m0s",
    "Config": {"JWKSURL": "https://keys.example.org", "BoundAudiences": ["us"], "ExpirationLeeway": "1m0s"},
}  # fmt: skip


class AuthenticatedExchange(InMemoryTransport):
    """A transport to a server that adds a token."""

    def __init__(self, server: OneServer, headers: dict[str, str]) -> None:
        super().__init__(server.api)
        self.token = headers
        self.failing_path = ""
        self.replaced_bodies: dict[str, bytes] = {}
        self.before_request: dict[str, Callable[[], Awaitable[None]]] = {}
        """By path, what happens before the next request is sent."""
        self.before_each_request: dict[str, Callable[[], Awaitable[None]]] = {}

    async def send(self, request: Any) -> ClientReply:
        if request.path == self.failing_path:
            raise Unreachable("this path does not answer", is_sent=True)
        if event := self.before_request.pop(request.path, None):
            await event()
        if event := self.before_each_request.get(request.path):
            await event()
        reply = await super().send(replace(request, headers={**request.headers, **self.token}))
        return replace(reply, body=self.replaced_bodies.get(request.path, reply.body))


class Regions:
    """Two regions: east is the authoritative one, and west replicates from it."""

    def __init__(
        self, east: OneServer, west: OneServer, transports: list[AuthenticatedExchange], first: dict[str, str]
    ) -> None:
        self.east, self.west, self.transports = east, west, transports
        self.first = first["AccessorID"]
        self.root = {"x-cluster-token": first["SecretID"]}

    async def change_east(self, method: str, path: str, body: Any = None) -> Any:
        return await send_request(self.east, method, path, body, self.root)

    async def wait_for_west(self, table: Any, *names: str) -> None:
        def has_names() -> bool:
            return sorted(table.get_key(record) for record in self.west.replica.iter_all(table)) == sorted(names)

        await until(has_names, what=f"west has {names} in {table.name}", within_s=120.0)


async def send_request(server: OneServer, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
    reply = await send_raw(
        server.api, method, path, body=b"" if body is None else json.dumps(body).encode(), headers=headers
    )
    assert reply.status == 200, reply.body
    return json.loads(reply.body) if reply.body else None


@asynccontextmanager
async def start_two_regions() -> AsyncIterator[Regions]:
    """Start east and west. West replicates from east and relays requests to it."""
    async with ACluster() as west_cluster, ACluster(seed=8) as east_cluster:
        east, west = await west_cluster.a_server("e1", access=True), await east_cluster.a_server("w1", access=True)
        for server, region in ((east, "east"), (west, "west")):
            server.server.identity = replace(server.server.identity, region=region)
            server.server.access.apply_settings(replace(server.server.access.settings, authoritative_region="east"))
        first = await send_request(east, "PUT", "/v1/acl/bootstrap", None, {})
        root = {"x-cluster-token": first["SecretID"]}
        transports = [AuthenticatedExchange(east, root), AuthenticatedExchange(east, root)]
        client = build_source_client(west.world, transports, region="east")
        duty = ReplicationDuty(west.brain, west.server.access.keyring, client, region="east")
        east_cluster.start(duty.run(), name="copies")
        relay = InMemoryRelay(east.api)
        west.server.relay = RequestRelay(west.world, {"east": relay}.__getitem__, regions={"east": ["east"]})
        yield Regions(east, west, transports, first)


def get_content(record: Record) -> dict[str, Any]:
    """Return the record without the fields that differ between regions."""
    return {key: value for key, value in asdict(record).items() if key not in OF_A_REGION}


def is_in_log(log: MemoryLog, secret: str) -> bool:
    return secret.encode() in repr(vars(log)).encode()


@in_virtual_time
async def test_global_records_are_replicated_and_deletions_too() -> None:
    async with start_two_regions() as regions:
        await regions.change_east(
            "PUT", "/v1/quota", {"Name": "small", "Limits": [{"Region": "east", "RegionLimit": {"CPU": 500}}]}
        )
        await regions.change_east("PUT", "/v1/namespace", {"Name": "shop"})
        await regions.change_east("PUT", "/v1/node/pool/fast", {"Name": "fast"})
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        role = await regions.change_east("PUT", "/v1/acl/role", {"Name": "readers", "Policies": [{"Name": "reads"}]})
        await regions.change_east("PUT", "/v1/acl/auth-method", METHOD)
        rule = {"AuthMethod": "ci", "BindType": "role", "BindName": "readers"}
        created: dict[str, str] = await regions.change_east("PUT", "/v1/acl/binding-rule", rule)

        await regions.wait_for_west(QUOTAS, "small")
        await regions.wait_for_west(NAMESPACES, "default", "shop")
        await until(lambda: regions.west.replica.get(NODE_POOLS, "fast") is not None, what="the pool", within_s=60.0)
        await regions.wait_for_west(ACL_POLICIES, "reads")
        await regions.wait_for_west(ACL_ROLES, role["ID"])
        await regions.wait_for_west(ACL_AUTH_METHODS, "ci")
        await regions.wait_for_west(ACL_BINDING_RULES, created["ID"])
        tables: list[tuple[Table[Any], str]] = [
            (ACL_POLICIES, "reads"),
            (ACL_ROLES, role["ID"]),
            (ACL_AUTH_METHODS, "ci"),
        ]
        for table, key in tables:
            west_record, east_record = regions.west.replica.get(table, key), regions.east.replica.get(table, key)
            assert west_record is not None
            assert east_record is not None
            assert get_content(east_record) == get_content(west_record)

        await regions.change_east("DELETE", f"/v1/acl/binding-rule/{created['ID']}")
        await regions.change_east("DELETE", "/v1/acl/policy/reads")
        await regions.change_east("DELETE", "/v1/namespace/shop")

        await regions.wait_for_west(ACL_BINDING_RULES)
        await regions.wait_for_west(ACL_POLICIES)
        await regions.wait_for_west(NAMESPACES, "default")


@in_virtual_time
async def test_a_global_token_is_valid_in_every_region_and_its_secret_is_in_no_log() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        requested = {"Name": "both", "Type": "client", "Policies": ["reads"]}
        both = await regions.change_east("PUT", "/v1/acl/token", {**requested, "Global": True})
        await regions.change_east("PUT", "/v1/acl/token", {**requested, "Name": "only east"})
        await regions.wait_for_west(ACL_TOKENS, regions.first, both["AccessorID"])
        await regions.wait_for_west(ACL_POLICIES, "reads")

        own_token = await send_request(
            regions.west, "GET", "/v1/acl/token/self", None, {"x-cluster-token": both["SecretID"]}
        )

        assert (own_token["SecretID"], own_token["Name"]) == (both["SecretID"], "both")
        assert is_in_log(regions.west.engine.log, hash_secret(both["SecretID"]))
        assert not is_in_log(regions.west.engine.log, both["SecretID"])


async def import_token(regions: Regions, secret: str, **fields: Any) -> None:
    """Create a token in east with chosen ids: always the same accessor id and content, unless `fields` differ."""
    token = {"AccessorID": ACCESSOR, "SecretID": secret, "Type": "client", "Policies": ["reads"], "Global": True}
    await regions.change_east("PUT", "/v1/acl/token", token | fields)


def collect_written_keys(server: OneServer, table: Table[Any]) -> set[str]:
    """Return a set to which the key of each record of the table is added as soon as the server has it."""
    keys = {table.get_key(record) for record in server.replica.iter_all(table)}

    def add_keys() -> None:
        keys.update(table.get_key(record) for record in server.replica.iter_all(table))
        subscription.rearm()

    subscription = server.replica.watches.subscribe([watch_table(table)], add_keys)
    return keys


def observe_levels(server: OneServer, secret: str) -> set[str]:
    """Return a set of what the token may do with nodes in each state of the server from now on."""
    levels: set[str] = set()

    def add_level() -> None:
        context = DecisionContext(server.world.now_ns(), server.world.new_id)
        rights = authenticate_caller(server.replica, TokenSecret(hash_secret(secret)), context).rights
        pairs = (PolicyLevel.READ, PolicyLevel.WRITE)
        levels.update(level for level in pairs if rights.allows_level(PolicyScope.NODE, level))
        subscription.rearm()

    subscription = server.replica.watches.subscribe(
        [watch_table(table) for table in (ACL_POLICIES, ACL_ROLES, ACL_TOKENS)], add_level
    )
    return levels


async def move_token_and_widen_policy(regions: Regions) -> None:
    """Move the imported token from the policy "reads" to another one, then let "reads" permit writes."""
    token = {"AccessorID": ACCESSOR, "Type": "client", "Policies": ["other"], "Global": True}
    await regions.change_east("PUT", "/v1/acl/policy/other", {**POLICY, "Name": "other"})
    await regions.change_east("PUT", f"/v1/acl/token/{ACCESSOR}", token)
    await regions.change_east("PUT", "/v1/acl/policy/reads", {"Name": "reads", "Rules": 'node { policy = "write" }'})


def has_wide_policy(server: OneServer) -> bool:
    policy = server.replica.get(ACL_POLICIES, "reads")
    return policy is not None and "write" in policy.rules


@in_virtual_time
async def test_a_widened_policy_is_not_applied_before_the_tokens_that_lost_it() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        for transport in regions.transports:
            transport.failing_path = "/v1/acl/tokens"
        await pass_time(400.0)
        levels = observe_levels(regions.west, SECRETS[0])

        await move_token_and_widen_policy(regions)
        await pass_time(400.0)
        before = has_wide_policy(regions.west)
        for transport in regions.transports:
            transport.failing_path = ""
        await until(lambda: has_wide_policy(regions.west), what="west has the wide policy", within_s=120.0)

        assert (before, levels) == (False, {PolicyLevel.READ})


@in_virtual_time
async def test_records_that_change_while_they_are_read_are_read_again() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        await pass_time(10.0)
        levels = observe_levels(regions.west, SECRETS[0])
        for transport in regions.transports:  # The policies were listed before this.
            transport.before_request["/v1/acl/tokens"] = lambda: move_token_and_widen_policy(regions)

        await regions.change_east("PUT", "/v1/acl/policy/new", {**POLICY, "Name": "new"})
        await until(lambda: has_wide_policy(regions.west), what="west has the wide policy", within_s=120.0)

        assert levels == {PolicyLevel.READ}


async def read_own_status(server: OneServer, secret: str) -> int:
    return (await send_raw(server.api, "GET", "/v1/acl/token/self", headers={"x-cluster-token": secret})).status


async def replace_token(regions: Regions, **fields: Any) -> None:
    """Delete the imported token and import it with another secret, while west cannot reach east; then wait."""
    for transport in regions.transports:
        transport.is_away = True
    await pass_time(400.0)  # No query of west is open.
    await regions.change_east("DELETE", f"/v1/acl/token/{ACCESSOR}")
    await import_token(regions, SECRETS[1], **fields)
    for transport in regions.transports:
        transport.is_away = False
    await pass_time(400.0)


@in_virtual_time
async def test_the_secret_of_a_token_that_was_replaced_is_refused_in_every_region() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        before = [await read_own_status(regions.west, secret) for secret in SECRETS]

        await replace_token(regions)

        assert (before, [await read_own_status(regions.west, secret) for secret in SECRETS]) == ([200, 403], [403, 200])


@in_virtual_time
async def test_a_global_token_that_becomes_local_while_it_is_read_is_not_valid_in_other_regions() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)

        async def make_local() -> None:
            await regions.change_east("DELETE", f"/v1/acl/token/{ACCESSOR}")
            await import_token(regions, SECRETS[1], Global=False)

        for transport in regions.transports:
            transport.before_request[f"/v1/acl/token/{ACCESSOR}"] = make_local
        copied = collect_written_keys(regions.west, ACL_TOKENS)
        await import_token(regions, SECRETS[0])
        await pass_time(400.0)

        assert copied == {regions.first}


@in_virtual_time
async def test_a_login_with_a_default_method_for_global_tokens_is_made_in_the_authoritative_region() -> None:
    async with start_two_regions() as regions:
        provider = LoginProvider(lambda: regions.west.world.now_ns() // SECOND)
        config = {"JWTValidationPubKeys": [provider.public_pem], "BoundAudiences": [CLIENT_ID]}
        method = {**METHOD, "TokenLocality": "global", "Default": True, "Config": config}
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await regions.change_east("PUT", "/v1/acl/auth-method", method)
        rule = {"AuthMethod": "ci", "BindType": "policy", "BindName": "reads"}
        created = await regions.change_east("PUT", "/v1/acl/binding-rule", rule)
        await regions.wait_for_west(ACL_POLICIES, "reads")
        await regions.wait_for_west(ACL_BINDING_RULES, created["ID"])
        await regions.wait_for_west(ACL_AUTH_METHODS, "ci")

        token = await send_request(regions.west, "PUT", "/v1/acl/login", {"LoginToken": provider.identity()}, {})

        assert token["Global"]
        assert regions.east.replica.get(ACL_TOKENS, token["AccessorID"]) is not None


def make_auth_method_body(secret: str) -> dict[str, Any]:
    config = {
        "OIDCDiscoveryURL": "https://login.example.org", "OIDCClientID": "wharf", "OIDCClientSecret": secret,
        "AllowedRedirectURIs": ["https://here"],
    }  # fmt: skip
    return {"Name": "people", "Type": "OIDC", "TokenLocality": "local", "MaxTokenTTL": "1h0m0s", "Config": config}


@in_virtual_time
async def test_an_auth_method_is_replicated_with_its_secret_which_is_in_no_log() -> None:
    async with start_two_regions() as regions:
        west = regions.west.server
        logins = LoginVerifier(west.world, west.access.keyring, west.access.providers)

        def has(secret: str) -> bool:
            method = regions.west.replica.get(ACL_AUTH_METHODS, "people")
            return method is not None and logins.open_secrets(regions.west.replica, method).client_secret == secret

        for secret in ("the first secret", "the second secret"):
            await regions.change_east("PUT", "/v1/acl/auth-method/people", make_auth_method_body(secret))
            await until(lambda secret=secret: has(secret), what="west has the records", within_s=120.0)  # type: ignore[misc]

        west_record, east_record = (
            server.replica.get(ACL_AUTH_METHODS, "people") for server in (regions.west, regions.east)
        )
        assert west_record is not None
        assert east_record is not None
        assert (west_record.hash, west_record.config) == (east_record.hash, east_record.config)
        assert not is_in_log(regions.east.engine.log, "the second secret")
        assert not is_in_log(regions.west.engine.log, "the second secret")


@in_virtual_time
async def test_local_tokens_are_not_changed() -> None:
    async with start_two_regions() as regions:
        await regions.wait_for_west(ACL_TOKENS, regions.first)
        local = await send_request(regions.west, "PUT", "/v1/acl/token", {"Type": "management"}, regions.root)
        both = await regions.change_east("PUT", "/v1/acl/token", {"Type": "management", "Global": True})
        await regions.wait_for_west(ACL_TOKENS, regions.first, local["AccessorID"], both["AccessorID"])

        await regions.change_east("DELETE", f"/v1/acl/token/{both['AccessorID']}")

        await regions.wait_for_west(ACL_TOKENS, regions.first, local["AccessorID"])


@in_virtual_time
async def test_an_unreachable_region_is_logged_once_and_replicated_later(caplog: pytest.LogCaptureFixture) -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await regions.wait_for_west(ACL_POLICIES, "reads")
        caplog.set_level(logging.INFO, logger="wharf.cluster.server.duties.replication")
        for transport in regions.transports:
            transport.is_away = True
        await pass_time(1_000.0)  # All open queries have ended, and many new ones have failed.
        await regions.change_east("PUT", "/v1/acl/policy/new", {**POLICY, "Name": "new"})
        await regions.change_east("DELETE", "/v1/acl/policy/reads")
        regions.transports[1].is_away = False

        await regions.wait_for_west(ACL_POLICIES, "new")

        await pass_time(200.0)
        result = [
            record.levelname for record in caplog.records if record.name == "wharf.cluster.server.duties.replication"
        ]
        assert result == ["WARNING", "INFO"]


@in_virtual_time
async def test_a_replication_token_with_fewer_permissions_deletes_nothing() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/namespace", {"Name": "shop"})
        await regions.wait_for_west(NAMESPACES, "default", "shop")
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        weak = await regions.change_east("PUT", "/v1/acl/token", {"Type": "client", "Policies": ["reads"]})
        for transport in regions.transports:
            transport.token = {"x-cluster-token": weak["SecretID"]}
        await regions.change_east("PUT", "/v1/namespace", {"Name": "other"})
        await pass_time(700.0)

        await regions.wait_for_west(NAMESPACES, "default", "shop")


@in_virtual_time
async def test_writes_of_global_records_are_forwarded_to_the_authoritative_region() -> None:
    async with start_two_regions() as regions:
        await regions.wait_for_west(ACL_TOKENS, regions.first)

        await send_request(regions.west, "PUT", "/v1/namespace", {"Name": "shop"}, regions.root)
        await send_request(regions.west, "PUT", "/v1/node/pool/fast", {"Name": "fast"}, regions.root)
        created = await send_request(
            regions.west, "POST", "/v1/acl/token", {"Type": "management", "Global": True}, regions.root
        )
        local = await send_request(regions.west, "POST", "/v1/acl/token", {"Type": "management"}, regions.root)

        assert regions.east.replica.get(NAMESPACES, "shop") is not None
        assert regions.east.replica.get(NODE_POOLS, "fast") is not None
        assert regions.east.replica.get(ACL_TOKENS, created["AccessorID"]) is not None
        assert regions.east.replica.get(ACL_TOKENS, local["AccessorID"]) is None
        await regions.wait_for_west(ACL_TOKENS, regions.first, created["AccessorID"], local["AccessorID"])
        await send_request(regions.west, "DELETE", f"/v1/acl/token/{created['AccessorID']}", None, regions.root)
        await regions.wait_for_west(ACL_TOKENS, regions.first, local["AccessorID"])


@in_virtual_time
async def test_a_server_of_another_region_is_neither_replicated_nor_sent_writes() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await regions.wait_for_west(ACL_POLICIES, "reads")
        await regions.wait_for_west(ACL_TOKENS, regions.first)
        east = regions.east.server
        east.identity = replace(east.identity, region="north")
        east.access.apply_settings(replace(east.access.settings, authoritative_region="north"))

        await regions.change_east("PUT", "/v1/acl/policy/other", {**POLICY, "Name": "other"})
        await pass_time(700.0)
        reply = await send_raw(
            regions.west.api, "PUT", "/v1/acl/policy/third", body=json.dumps(POLICY).encode(), headers=regions.root
        )

        await regions.wait_for_west(ACL_POLICIES, "reads")
        assert (reply.status, reply.body) == (404, b"No path to region")


@in_virtual_time
async def test_a_restored_snapshot_does_not_bring_deleted_tokens_back() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        log = regions.west.engine.log
        with_token = log.make_copy()
        await regions.change_east("DELETE", f"/v1/acl/token/{ACCESSOR}")
        await regions.wait_for_west(ACL_TOKENS, regions.first)
        await pass_time(10.0)

        log.restore_copy(with_token)
        regions.west.election.allow_campaign()
        epoch = regions.west.replica.epoch
        await until(lambda: regions.west.replica.epoch > epoch, what="the copy is loaded", within_s=60.0)
        loaded_s = regions.west.world.monotonic_s()
        await regions.wait_for_west(ACL_TOKENS, regions.first)

        assert regions.west.world.monotonic_s() - loaded_s < 30.0


@in_virtual_time
async def test_a_deleted_token_is_refused_while_other_records_change_all_the_time() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        count = 0

        async def change_policy() -> None:
            nonlocal count
            count += 1
            await regions.change_east(
                "PUT", "/v1/acl/policy/busy", {**POLICY, "Name": "busy", "Description": f"{count}"}
            )

        for transport in regions.transports:
            transport.before_each_request["/v1/acl/tokens"] = change_policy
        await regions.change_east("DELETE", f"/v1/acl/token/{ACCESSOR}")

        await regions.wait_for_west(ACL_TOKENS, regions.first)


@in_virtual_time
async def test_nothing_is_written_while_nothing_changes() -> None:
    async with start_two_regions() as regions:
        await regions.change_east("PUT", "/v1/acl/policy/reads", POLICY)
        await regions.change_east("PUT", "/v1/acl/role", {"Name": "readers", "Policies": [{"Name": "reads"}]})
        await regions.change_east("PUT", "/v1/acl/auth-method", METHOD)
        rule = {"AuthMethod": "ci", "BindType": "role", "BindName": "readers"}
        created = await regions.change_east("PUT", "/v1/acl/binding-rule", rule)
        await import_token(regions, SECRETS[0])
        await regions.wait_for_west(ACL_BINDING_RULES, created["ID"])
        await regions.wait_for_west(ACL_TOKENS, regions.first, ACCESSOR)
        tables = (ACL_POLICIES, ACL_ROLES, ACL_AUTH_METHODS, ACL_BINDING_RULES, ACL_TOKENS)
        before = regions.west.replica.get_last_change(*tables)

        await pass_time(1_000.0)

        assert regions.west.replica.get_last_change(*tables) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/acl/auth-method/ci", b'{"Name":"ci","MaxTokenTTL":"soon"}'),
        ("/v1/acl/auth-method/ci", b'{"Name":'),
        ("/v1/acl/roles", b"null"),
        ("/v1/acl/tokens", b"null"),
        ("/v1/acl/token/self", b"null"),
    ],
)
@in_virtual_time
async def test_an_invalid_reply_is_reported_and_replicated_later(
    caplog: pytest.LogCaptureFixture, path: str, body: bytes
) -> None:
    async with start_two_regions() as regions:
        await regions.wait_for_west(ACL_TOKENS, regions.first)
        for transport in regions.transports:
            transport.replaced_bodies[path] = body
        await regions.change_east("PUT", "/v1/acl/auth-method", METHOD)
        await pass_time(400.0)
        before = regions.west.replica.get(ACL_AUTH_METHODS, "ci")
        for transport in regions.transports:
            transport.replaced_bodies.clear()

        await regions.wait_for_west(ACL_AUTH_METHODS, "ci")

        assert (before, "replication failed, will retry" in caplog.text) == (None, True)


@in_virtual_time
async def test_a_refusal_of_the_authoritative_region_is_returned_with_the_same_text() -> None:
    async with start_two_regions() as regions:
        local = await a_token(regions.west, management=True)

        reply = await send_raw(regions.west.api, "PUT", "/v1/namespace", body=b'{"Name": "shop"}', headers=local)

        assert (reply.status, reply.body) == (403, b"Permission denied")
        assert regions.west.replica.get(NAMESPACES, "shop") is None
