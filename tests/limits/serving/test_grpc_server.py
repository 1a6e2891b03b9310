"""The gRPC server with real channels: calls, errors, deadlines, limits, health, TLS, and counters on other stores."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse  # type: ignore[import-untyped]

from tests.limits.serving.messages import OK, OVER_LIMIT, make_request
from tests.limits.stores.redis_server import RedisServer
from tests.ports import free_ports
from wharf.limits.config.settings import LimiterSettings, ServeSettings, StoreKind, StoreSettings
from wharf.limits.decisions.descriptors import DescriptorDecisions
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.serving.envoy import RateLimitService
from wharf.limits.serving.grpc_server import HEALTH_SERVICE, RateLimitServer
from wharf.limits.serving.messages import SERVICE
from wharf.limits.stores.guard import GuardSettings
from wharf.limits.stores.redis.settings import RedisSettings
from wharf.limits.toml.problems import InvalidFile
from wharf.world import RealWorld
from wharf.world.quiet_grpc import grpc

T = TypeVar("T")

RULES = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "remote_address"
ceiling = 3
window = "1h"
[[domain.descriptors]]
key = "open"
on_store_loss = "open"
ceiling = 1
[[domain.descriptors]]
key = "local"
ceiling = 16
"""
SETTINGS = ServeSettings(grpc_host="127.0.0.1", drain_ms=200)


class RunningServer:
    """A server on a free port, and a channel to it."""

    def __init__(self, server: RateLimitServer, limits: RateLimiter, channel: Any) -> None:
        self.server = server
        self.limits = limits
        self.channel = channel

    async def call(self, method: str, message: bytes, timeout_s: float = 10.0) -> bytes:
        reply: bytes = await self.channel.unary_unary(method)(message, timeout=timeout_s, wait_for_ready=True)
        return reply

    async def ask(self, *descriptors: Any, **fields: Any) -> Any:
        message = make_request(*descriptors, **fields).SerializeToString()
        return RateLimitResponse.FromString(await self.call(f"/{SERVICE}/ShouldRateLimit", message))

    async def ask_code(self, *descriptors: Any, **fields: Any) -> int:
        code: int = (await self.ask(*descriptors, **fields)).overall_code
        return code

    async def get_error(self, method: str, message: bytes) -> tuple[str, str]:
        """Return code and text of the error of a call."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, message)
        return caught.value.code().name, caught.value.details()


@asynccontextmanager
async def running(
    folder: Path, settings: ServeSettings = SETTINGS, *, credentials: Any = None, **fields: Any
) -> AsyncIterator[RunningServer]:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - Nothing else runs on this loop.
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    store = fields.pop("store", StoreSettings(is_saved=False))
    limits = RateLimiter(
        LimiterSettings(rules_file=rules, data_folder=folder / "data", store=store, serve=settings, **fields),
        RealWorld(),
    )
    await limits.open()
    server = RateLimitServer(RateLimitService(DescriptorDecisions(limits.decision_service)), settings)
    try:
        await server.open()
        address = f"localhost:{server.port}"
        channel = (
            grpc.aio.insecure_channel(address) if credentials is None else grpc.aio.secure_channel(address, credentials)
        )
        async with channel:
            yield RunningServer(server, limits, channel)
    finally:
        await server.close()
        await limits.close()


def run(folder: Path, scenario: Callable[[RunningServer], Awaitable[T]], **fields: Any) -> T:
    async def start() -> T:
        async with running(folder, **fields) as setting:
            return await scenario(setting)

    return asyncio.run(start())


def test_a_channel_gets_decisions(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> list[int]:
        return [await setting.ask_code("remote_address=10.0.0.1") for _ in range(4)]

    assert run(tmp_path, scenario) == [OK, OK, OK, OVER_LIMIT]


def test_concurrent_calls_never_exceed_a_ceiling(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> list[int]:
        return await asyncio.gather(*(setting.ask_code("remote_address=10.0.0.1") for _ in range(50)))

    assert sorted(run(tmp_path, scenario)) == [OK] * 3 + [OVER_LIMIT] * 47


def test_an_invalid_request_has_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> tuple[tuple[str, str], int]:
        message = make_request().SerializeToString()
        return await setting.get_error(f"/{SERVICE}/ShouldRateLimit", message), setting.server.invalid_requests

    text = "the request has no descriptors: add rate limit actions to the route"
    assert run(tmp_path, scenario) == (("INVALID_ARGUMENT", text), 1)


def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> str:
        message = make_request(f"user={'x' * 2_000}").SerializeToString()
        return (await setting.get_error(f"/{SERVICE}/ShouldRateLimit", message))[0]

    settings = msgspec.structs.replace(SETTINGS, message_bytes_most=1_024)
    assert run(tmp_path, scenario, settings=settings) == "RESOURCE_EXHAUSTED"


def test_a_value_as_long_as_all_headers_of_a_request_is_counted(tmp_path: Path) -> None:
    """Otherwise callers could avoid a limit with a long header: proxies admit requests if the limiter reports an error."""

    async def scenario(setting: RunningServer) -> list[int]:
        return [await setting.ask_code(f"remote_address={'x' * 200_000}") for _ in range(4)]

    assert run(tmp_path, scenario) == [OK, OK, OK, OVER_LIMIT]


@pytest.mark.parametrize(("most", "state"), [(1, "UNAVAILABLE"), (3, "OK")])
def test_more_connections_than_allowed_are_refused(tmp_path: Path, most: int, state: str) -> None:
    async def scenario(setting: RunningServer) -> list[str]:
        assert await setting.ask_code("unknown=1") == OK  # The first channel is connected now.
        states = []
        for number in range(2):
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.channel_number", number)]
            async with grpc.aio.insecure_channel(f"localhost:{setting.server.port}", options=options) as channel:
                call = channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
                try:
                    await call(make_request("a=b").SerializeToString(), timeout=10)
                    states.append("OK")
                except grpc.aio.AioRpcError as error:
                    states.append(error.code().name)
        return states

    settings = msgspec.structs.replace(SETTINGS, connections_most=most)
    assert run(tmp_path, scenario, settings=settings) == [state, state]


@pytest.mark.needs_program("redis-server")
def test_a_call_ends_at_its_deadline_while_the_store_does_not_reply(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    redis = RedisServer(tmp_path, port)
    redis.start()

    async def scenario(setting: RunningServer) -> tuple[str, int]:
        redis.pause()
        message = make_request("remote_address=10.0.0.1").SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await setting.call(f"/{SERVICE}/ShouldRateLimit", message, timeout_s=0.1)
        redis.resume()
        return caught.value.code().name, setting.server.failures

    store = StoreSettings(
        kind=StoreKind.REDIS,
        redis=RedisSettings(addresses=(redis.address,)),
        guard=GuardSettings(wait_ms=60_000),
    )
    try:
        assert run(tmp_path, scenario, store=store) == ("DEADLINE_EXCEEDED", 0)
    finally:
        redis.kill()


def test_more_calls_at_a_time_than_allowed_are_refused(tmp_path: Path) -> None:
    """A watcher of the health is a call that lasts."""

    async def scenario(setting: RunningServer) -> str:
        watch = setting.channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")(b"", timeout=10, wait_for_ready=True)
        await watch.read()
        error = await setting.get_error(f"/{SERVICE}/ShouldRateLimit", make_request("a=b").SerializeToString())
        watch.cancel()
        return error[0]

    settings = msgspec.structs.replace(SETTINGS, calls_most=1)
    assert run(tmp_path, scenario, settings=settings) == "RESOURCE_EXHAUSTED"


def build_health_request(service: str) -> bytes:
    return bytes((0x0A, len(service))) + service.encode() if service else b""


@pytest.mark.parametrize("service", ["", SERVICE, HEALTH_SERVICE])
def test_the_health_service_reports_that_the_server_is_serving(tmp_path: Path, service: str) -> None:
    async def scenario(setting: RunningServer) -> bytes:
        return await setting.call(f"/{HEALTH_SERVICE}/Check", build_health_request(service))

    assert run(tmp_path, scenario) == b"\x08\x01"


def test_the_health_of_an_unknown_service_is_not_found(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> str:
        return (await setting.get_error(f"/{HEALTH_SERVICE}/Check", build_health_request("other")))[0]

    assert run(tmp_path, scenario) == "NOT_FOUND"


def test_a_watcher_of_the_health_hears_that_the_server_stops(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> list[bytes]:
        call = setting.channel.unary_stream(f"/{HEALTH_SERVICE}/Watch")(b"", timeout=10, wait_for_ready=True)
        first = await call.read()
        closing = asyncio.ensure_future(setting.server.close())
        second = await call.read()
        await closing
        return [first, second]

    assert run(tmp_path, scenario) == [b"\x08\x01", b"\x08\x02"]


def test_a_second_server_cannot_listen_on_the_same_port(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> str:
        settings = msgspec.structs.replace(SETTINGS, grpc_port=setting.server.port)
        second = RateLimitServer(RateLimitService(DescriptorDecisions(setting.limits.decision_service)), settings)
        try:
            await second.open()
        except OSError as error:
            return str(error)
        finally:
            await second.close()
        return ""

    assert run(tmp_path, scenario).endswith("the port is in use, or this machine does not have the address")


def write_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a self-signed certificate for localhost and its key, and return both paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


@pytest.mark.parametrize(("presents_certificate", "expected"), [(True, "OK"), (False, "UNAVAILABLE")])
def test_with_a_client_ca_only_proxies_with_a_certificate_are_answered(
    tmp_path: Path, presents_certificate: bool, expected: str
) -> None:
    certificate_file, key_file = write_certificate(tmp_path, "server")
    client_file, client_key_file = write_certificate(tmp_path, "client")
    settings = msgspec.structs.replace(
        SETTINGS, certificate_file=certificate_file, key_file=key_file, client_ca_file=client_file
    )
    pair = (client_key_file.read_bytes(), client_file.read_bytes()) if presents_certificate else (None, None)
    credentials = grpc.ssl_channel_credentials(certificate_file.read_bytes(), *pair)

    async def scenario(setting: RunningServer) -> str:
        call = setting.channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")
        try:
            await call(make_request("a=b").SerializeToString(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"

    assert run(tmp_path, scenario, settings=settings, credentials=credentials) == expected


def test_a_renewed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    certificate_file, key_file = write_certificate(tmp_path, "server")
    renewed_file, renewed_key_file = write_certificate(tmp_path, "renewed")
    settings = msgspec.structs.replace(SETTINGS, certificate_file=certificate_file, key_file=key_file)

    async def scenario(running: RunningServer) -> int:
        watched = running.server.build_watched_certificate()
        assert watched is not None
        certificate_file.write_bytes(renewed_file.read_bytes())
        key_file.write_bytes(renewed_key_file.read_bytes())
        await watched.check(is_forced=True)
        trusting_new = grpc.ssl_channel_credentials(renewed_file.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{running.server.port}", trusting_new) as channel:
            return await RunningServer(running.server, running.limits, channel).ask_code("remote_address=192.0.2.7")

    credentials = grpc.ssl_channel_credentials(certificate_file.read_bytes())
    assert run(tmp_path, scenario, settings=settings, credentials=credentials) == OK


def test_a_certificate_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    settings = msgspec.structs.replace(SETTINGS, certificate_file=missing, key_file=missing)

    async def scenario(setting: RunningServer) -> None:
        raise AssertionError(f"unexpected server on port {setting.server.port}")

    with pytest.raises(InvalidFile, match=r"certificate not usable: .* does not exist"):
        run(tmp_path, scenario, settings=settings)


def test_during_an_outage_of_the_store_each_limit_follows_its_policy(tmp_path: Path) -> None:
    async def scenario(setting: RunningServer) -> list[list[int]]:
        return [[await setting.ask_code(f"{key}=1") for _ in range(3)] for key in ("open", "local")]

    (port,) = free_ports(1)
    store = StoreSettings(kind=StoreKind.REDIS, redis=RedisSettings(addresses=(f"127.0.0.1:{port}",)))
    # Eight processes share the 16 of the limit `local`.
    assert run(tmp_path, scenario, store=store) == [[OK, OK, OK], [OK, OK, OVER_LIMIT]]


@pytest.mark.needs_program("redis-server")
def test_processes_share_limits_on_redis(tmp_path: Path) -> None:
    async def scenario(store: StoreSettings) -> tuple[list[int], Any]:
        async with running(tmp_path / "a", store=store) as first, running(tmp_path / "b", store=store) as second:
            both = ("remote_address=10.0.0.1", "local=1")
            codes = [await server.ask_code(*both) for server in (first, second, first)]
            return codes, await second.ask(*both)

    (port,) = free_ports(1)
    redis = RedisServer(tmp_path, port)
    redis.start()
    try:
        store = StoreSettings(kind=StoreKind.REDIS, redis=RedisSettings(addresses=(redis.address,)))
        codes, reply = asyncio.run(scenario(store))
    finally:
        redis.kill()
    assert (codes, reply.overall_code) == ([OK, OK, OK], OVER_LIMIT)
    assert [status.limit_remaining for status in reply.statuses] == [0, 13]
    assert 3_590 <= reply.statuses[0].duration_until_reset.seconds <= 3_600


def test_processes_of_one_machine_share_limits_through_a_counter_server(tmp_path: Path) -> None:
    socket = tmp_path / "counters.sock"
    server_store = StoreSettings(is_saved=False, socket=socket)
    neighbour_store = StoreSettings(kind=StoreKind.NEIGHBOUR, socket=socket, guard=GuardSettings(wait_ms=5_000))

    async def scenario() -> tuple[list[int], Any]:
        async with (
            running(tmp_path / "a", store=server_store) as first,
            running(tmp_path / "b", store=neighbour_store) as second,
        ):
            both = ("remote_address=10.0.0.1", "local=1")
            codes = [await server.ask_code(*both) for server in (first, second, second)]
            return codes, await second.ask(*both)

    codes, reply = asyncio.run(scenario())
    assert (codes, reply.overall_code) == ([OK, OK, OK], OVER_LIMIT)
    assert [status.limit_remaining for status in reply.statuses] == [0, 13]
