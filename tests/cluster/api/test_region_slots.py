"""Limits of the requests that a server relays to another region at the same time."""

from contextlib import ExitStack

import pytest

from tests.cluster.api.test_regions import fetch
from tests.kit.callers import CAUSE, a_token
from tests.kit.cluster import ACluster
from tests.kit.in_memory_relay import InMemoryRelay
from tests.kit.requests import put
from tests.kit.virtual_time import in_virtual_time
from wharf.agent.http.limits import ReplicaTokens
from wharf.cluster.api.asgi import Scope
from wharf.cluster.api.relay.region_slots import MAX_RELAYS, MAX_RELAYS_PER_CALLER, MAX_UNKNOWN_RELAYS, RegionSlots
from wharf.cluster.api.relay.regions import RegionRelay
from wharf.cluster.server.relay import RequestRelay
from wharf.cluster.server.security.access_services import AccessSettings
from wharf.cluster.state.tables import ACL_TOKENS
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.log import WRITE_INDEX, Write
from wharf.contract.model.refusal import Overloaded
from wharf.contract.model.secrets import hash_secret


def from_address(address: str) -> Scope:
    return {"headers": [(b"x-cluster-token", b"unknown")], "client": (address, 1)}


def with_header(headers: dict[str, str]) -> Scope:
    return {"headers": [(name.encode(), value.encode()) for name, value in headers.items()], "client": ("10.0.0.1", 1)}


def fill(stack: ExitStack, slots: RegionSlots, scope: Scope, *, region: str = "west") -> int:
    """Hold slots for the caller until it is refused, and return their number."""
    count = 0
    while True:
        try:
            stack.enter_context(slots.hold(region, scope))
        except Overloaded:
            return count
        count += 1


@in_virtual_time
async def test_callers_without_a_known_token_have_half_of_the_relays_and_each_address_a_third() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)
        tokens = [with_header(await a_token(server)) for _ in range(3)]
        await server.server.reader.catch_up()
        slots = RegionSlots(server.server, is_nomad_compatible=False)
        with ExitStack() as stack:
            unknown = [fill(stack, slots, from_address(f"10.0.0.{number}")) for number in range(3)]
            known = [fill(stack, slots, scope) for scope in tokens]
            elsewhere = fill(stack, slots, tokens[0], region="north")

        assert unknown == [MAX_RELAYS_PER_CALLER, MAX_UNKNOWN_RELAYS - MAX_RELAYS_PER_CALLER, 0]
        assert known == [MAX_RELAYS_PER_CALLER, MAX_RELAYS - MAX_UNKNOWN_RELAYS - MAX_RELAYS_PER_CALLER, 0]
        assert elsewhere == MAX_RELAYS_PER_CALLER
        with ExitStack() as stack:
            assert fill(stack, slots, tokens[2]) == MAX_RELAYS_PER_CALLER


@in_virtual_time
async def test_without_access_control_callers_share_all_relays() -> None:
    async with ACluster() as cluster:
        slots = RegionSlots((await cluster.a_server()).server, is_nomad_compatible=False)
        with ExitStack() as stack:
            assert sum(fill(stack, slots, from_address(f"10.0.0.{number}")) for number in range(9)) == MAX_RELAYS


@pytest.mark.parametrize("path", ["/v1/jobs?region=west", "/v1/acl/login?region=west"])
@in_virtual_time
async def test_a_relayed_request_beyond_the_limit_is_503_with_the_time_of_a_retry(path: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        to_west = InMemoryRelay(server.api)
        server.server.relay = RequestRelay(server.world, lambda _: to_west, regions={"west": ["west"]})
        relay = RegionRelay(server.api, server.server, server.api.region_slots)
        with ExitStack() as stack:
            fill(stack, server.api.region_slots, {"headers": [], "client": ("127.0.0.1", 1)})
            fill(stack, server.api.region_slots, {"headers": [], "client": None})
            refused = await fetch(relay, "GET", path)
        answered = await fetch(relay, "GET", path)

        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert b"this server process relays 20 requests to region west of one caller" in refused.body
        assert answered.status != 503
        assert len(to_west.sent) == 1


@in_virtual_time
async def test_a_write_that_is_relayed_to_the_authoritative_region_counts_for_its_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        to_west = InMemoryRelay(server.api)
        server.server.relay = RequestRelay(server.world, lambda _: to_west, regions={"west": ["west"]})
        server.server.access.apply_settings(AccessSettings(is_enabled=True, authoritative_region="west"))
        with ExitStack() as stack:
            fill(stack, server.api.region_slots, {"headers": [], "client": ("127.0.0.1", 1)})
            refused = await put(server, "/v1/namespace", {"Name": "team"})

        assert (refused.status, refused.headers["retry-after"], to_west.sent) == (503, "5", [])
        assert server.api.region_slots.is_empty


@in_virtual_time
async def test_a_secret_of_several_tokens_counts_for_the_address_of_its_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(access=True)
        digest = hash_secret("shared")
        tokens = [Token(accessor_id=id, secret_digest=digest, create_index=WRITE_INDEX) for id in ("a", "b")]
        await server.server.writer.commit(Write("test", CAUSE, [ACL_TOKENS.build_put(token) for token in tokens]))
        await server.server.reader.catch_up()
        slots = RegionSlots(server.server, is_nomad_compatible=False)
        with ExitStack() as stack:
            fill(stack, slots, with_header({"x-cluster-token": "shared"}))

            assert fill(stack, slots, from_address("10.0.0.1")) == 0
        assert ReplicaTokens(server=server.server).find_token(digest) is None
