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


async def is_request_admitted(settings: RedisSettings) -> bool:
    rules = read_rules("")
    store = RedisStore(RealWorld(), rules, settings)
    await store.open()
    try:
        return (await Counter(store, rules, Clock()).send(a_user())).is_admitted
    finally:
        await store.close()


def test_3_1_a_redis_with_tls_a_user_and_a_password_accepts_only_connections_with_all_three(tmp_path: Path) -> None:
    created = certificates.create_certificates(
        tmp_path / "tls",
        region="global",
        is_server=True,
        files_name="here",
        alternative_names=(),
        days=1,
        authority_days=1,
    )
    authority, server_files = created[0].certificate_file, created[-1]
    (plain_port, tls_port), password = free_ports(2), tmp_path / "password"
    password.write_text("a password\n")
    server = RedisServer(
        tmp_path,
        plain_port,
        text=f"tls-port {tls_port}\ntls-cert-file {server_files.certificate_file}\ntls-key-file {server_files.key_file}\n"
        f'tls-ca-cert-file {authority}\ntls-auth-clients yes\nuser limiter on ">a password" ~* +@all\n',
    )
    settings = read_settings(
        f'[store]\nkind = "redis"\naddresses = "localhost:{tls_port}"\nuser = "limiter"\npassword_file = "password"\n'
        f'tls = true\nca_file = "{authority}"\ncertificate_file = "{server_files.certificate_file}"\nkey_file = "{server_files.key_file}"\n',
        folder=tmp_path,
    ).store.redis
    without_tls = RedisSettings(addresses=(f"localhost:{tls_port}",), user="limiter", password="a password")
    with_wrong_password = RedisSettings(addresses=(f"localhost:{plain_port}",), user="limiter", password="another")
    try:
        server.start()
        assert asyncio.run(is_request_admitted(settings))
        for wrong_settings in (without_tls, with_wrong_password):
            with pytest.raises(StoreUnavailable):
                asyncio.run(is_request_admitted(wrong_settings))
    finally:
        server.kill()
    assert ssl.HAS_TLSv1_2


def test_3_3_missing_replicas_are_counted_and_refuse_no_request(tmp_path: Path) -> None:
    async def count_replica_shortages(server: RedisServer, *, wait_ms: int) -> int:
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
        without_replica = await count_replica_shortages(server, wait_ms=1)
        replica = RedisServer(tmp_path, free_ports(1)[0], text=f"replicaof 127.0.0.1 {server.port}\n")
        try:
            await asyncio.to_thread(replica.start)
            await wait_on_loop_until(lambda: "state=online" in server.ask("INFO", "replication"), what="a copy")
            return without_replica, await count_replica_shortages(server, wait_ms=20_000)
        finally:
            replica.kill()

    with running_redis(tmp_path) as server:
        without_replica, with_replica = asyncio.run(scenario(server))

    assert without_replica > 0
    assert with_replica == 0


def test_3_4_no_setting_provides_a_clock() -> None:
    with pytest.raises(InvalidFile, match=r"store\.clock: is not known"):
        read_settings("[store]\nclock = 5\n")
