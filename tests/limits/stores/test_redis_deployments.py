"""Redis with TLS, a password or replicas."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.limits.builders import a_user
from tests.limits.stores.contract import Clock, Counter
from tests.limits.stores.redis_server import RedisServer, running_redis
from tests.ports import free_ports
from tests.waiting import wait_on_loop_until
from wharf.agent.tls import certificates
from wharf.limits.config.settings_file import read_settings
from wharf.limits.rules import InvalidFile, read_rules
from wharf.limits.stores import StoreUnavailable
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")


async def admitted(settings: RedisSettings) -> bool:
    rules = read_rules("")
    store = RedisStore(RealWorld(), rules, settings)
    await store.open()
    try:
        return (await Counter(store, rules, Clock()).send(a_user())).is_admitted
    finally:
        await store.close()


def test_3_1_a_redis_with_tls_a_user_and_a_password_is_reached_with_all_three_and_not_without(tmp_path: Path) -> None:
    made = certificates.create_certificates(
        tmp_path / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    authority, own = made[0].certificate_file, made[-1]
    (plain_port, tls_port), password = free_ports(2), tmp_path / "password"
    password.write_text("a password\n")
    server = RedisServer(
        tmp_path,
        plain_port,
        text=f"tls-port {tls_port}\ntls-cert-file {own.certificate_file}\ntls-key-file {own.key_file}\n"
        f'tls-ca-cert-file {authority}\ntls-auth-clients yes\nuser limiter on ">a password" ~* +@all\n',
    )
    settings = read_settings(
        f'[store]\nkind = "redis"\naddresses = "localhost:{tls_port}"\nuser = "limiter"\npassword_file = "password"\n'
        f'tls = true\nca_file = "{authority}"\ncertificate_file = "{own.certificate_file}"\nkey_file = "{own.key_file}"\n',
        folder=tmp_path,
    ).store.redis
    without_tls = RedisSettings(addresses=(f"localhost:{tls_port}",), user="limiter", password="a password")
    with_another = RedisSettings(addresses=(f"localhost:{plain_port}",), user="limiter", password="another")
    try:
        server.start()
        assert asyncio.run(admitted(settings))
        for wrong in (without_tls, with_another):
            with pytest.raises(StoreUnavailable):
                asyncio.run(admitted(wrong))
    finally:
        server.kill()
    assert ssl.HAS_TLSv1_2


def test_3_3_missing_replicas_are_counted_and_refuse_no_request(tmp_path: Path) -> None:
    async def too_few(server: RedisServer, *, wait_ms: int) -> int:
        """Return the number of replica shortages; the charge is admitted nevertheless."""
        rules = read_rules("")
        settings = RedisSettings(addresses=(server.address,), wait_replicas=1, wait_replicas_ms=wait_ms)
        store = RedisStore(RealWorld(), rules, settings)
        await store.open()
        try:
            assert (await Counter(store, rules, Clock()).send(a_user())).is_admitted
            return store.link.replica_shortages
        finally:
            await store.close()

    async def scenario(server: RedisServer) -> tuple[int, int]:
        without_copy = await too_few(server, wait_ms=1)
        copy = RedisServer(tmp_path, free_ports(1)[0], text=f"replicaof 127.0.0.1 {server.port}\n")
        try:
            await asyncio.to_thread(copy.start)
            await wait_on_loop_until(lambda: "state=online" in server.ask("INFO", "replication"), what="a copy")
            return without_copy, await too_few(server, wait_ms=20_000)
        finally:
            copy.kill()

    with running_redis(tmp_path) as server:
        without_copy, with_copy = asyncio.run(scenario(server))

    assert without_copy > 0
    assert with_copy == 0


def test_3_4_no_setting_provides_a_clock() -> None:
    with pytest.raises(InvalidFile, match=r"store\.clock: is not known"):
        read_settings("[store]\nclock = 5\n")
