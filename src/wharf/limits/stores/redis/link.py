"""The way to Redis: one command runs the script over a batch. Errors of its library end here as StoreLost.

Nothing here is cancelled in flight: whoever awaits `run` is a task of the batches, which lives until it is answered.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError, ResponseError

from wharf.limits.stores.port import StoreFull, StoreUnavailable, UnsuitableStore
from wharf.limits.stores.redis.settings import RedisKind, RedisSettings

SCRIPT_SOURCE: Final = files(__package__).joinpath("counters.lua").read_text("utf-8")
TAKE_SCRIPT: Final = f"#!lua\n{SCRIPT_SOURCE}"
"""Refused whole when memory is full: then nothing of it has happened."""
SETTLE_SCRIPT: Final = f"#!lua flags=allow-oom\n{SCRIPT_SOURCE}"
"""What gives back and releases must work when memory is full."""
MIN_REDIS_VERSION: Final = 7
VERSION_FIELD: Final = "version"


class RedisLink:
    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: Any = None  # Redis and RedisCluster share no base with the calls used here.
        self._sentinel: Sentinel | None = None
        self._hashes: dict[str, str] = {}
        self._is_fit = False
        self.run_id: str = ""
        self.restarts = 0
        """How often another server, or the same one restarted, was found behind the address."""
        self.replica_shortages = 0

    async def open(self) -> None:
        """Connect, and look whether this Redis may hold counters. After StoreLost it may be looked at again by `check`."""
        for text in (TAKE_SCRIPT, SETTLE_SCRIPT):
            self._hashes[text] = hashlib.sha1(text.encode()).hexdigest()
        self._client = self._connect()
        with _lost():
            if isinstance(self._client, RedisCluster):
                await self._client.initialize()
        await self.check_server()

    @staticmethod
    def _refuse_unfit(info: dict[str, Any]) -> None:
        version = str(info.get("redis_version", "0"))
        if int(version.partition(".")[0]) < MIN_REDIS_VERSION:
            raise UnsuitableStore(f"Redis {version} is too old: counters need Redis {MIN_REDIS_VERSION} or later")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise UnsuitableStore(
                f"Redis has maxmemory-policy {policy}, which forgets counters, and whoever was limited would be free: "
                "set it to noeviction, or give the limiter a Redis of its own"
            )

    def _connect(self) -> Any:
        settings = self._settings
        wait_s = settings.socket_timeout_ms / 1_000
        options: dict[str, Any] = {
            "username": settings.user,
            "password": settings.password,
            "socket_timeout": wait_s,
            "socket_connect_timeout": wait_s,
        }
        if settings.tls:
            options |= {"ssl": True, "ssl_ca_certs": settings.ca_file}
            options |= {"ssl_certfile": settings.certificate_file, "ssl_keyfile": settings.key_file}
        never_again = Retry(NoBackoff(), 0)  # What is asked again, and when, is decided above.
        endpoints = settings.list_endpoints()
        if settings.kind is RedisKind.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in endpoints]
            return RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 1), **options)
        options |= {"db": settings.database, "retry": never_again, "protocol": 2}
        if settings.kind is RedisKind.SENTINEL:
            plain = {"socket_timeout": wait_s, "socket_connect_timeout": wait_s, "retry": never_again, "protocol": 2}
            self._sentinel = Sentinel(  # type: ignore[no-untyped-call] # The library gives it no types.
                endpoints, sentinel_kwargs=plain, **options
            )
            return self._sentinel.master_for(settings.service)
        host, port = endpoints[0]
        return Redis(host=host, port=port, **options)

    async def close(self) -> None:
        with contextlib.suppress(RedisError, OSError):
            if self._client is not None:
                await self._client.aclose()
            for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
                await sentinel.aclose()

    @contextlib.asynccontextmanager
    async def use_client(self) -> AsyncIterator[Any]:  # Redis or RedisCluster, see `_client`.
        """The client, for what is no batch of decisions. Its losses are told as StoreUnavailable."""
        with _lost():
            yield self._client

    async def check_server(self) -> dict[str, Any]:
        """Ask the server about itself. Raises StoreLost when it does not answer, and the first time StoreRefused when it
        may not hold counters."""
        with _lost():
            told: dict[str, Any] = {}
            for section in ("server", "memory"):
                options = {"target_nodes": RedisCluster.RANDOM} if isinstance(self._client, RedisCluster) else {}
                told |= await self._client.info(section, **options)
        if not self._is_fit:
            self._refuse_unfit(told)
            self._is_fit = True
        run_id = str(told.get("run_id", ""))
        if self._settings.kind is not RedisKind.CLUSTER:
            self.restarts += bool(self.run_id) and run_id != self.run_id
            self.run_id = run_id
        return told

    async def run_script(self, text: str, key: str, arguments: list[bytes | str]) -> bytes:
        """Run a script. The key says on which node."""
        with _lost():
            try:
                answer = await self._client.execute_command("EVALSHA", self._hashes[text], 1, key, *arguments)
            except NoScriptError:  # A new server, or one whose scripts were flushed: told whole, it keeps them.
                answer = await self._client.execute_command("EVAL", text, 1, key, *arguments)
            if self._settings.wait_replicas and self._settings.kind is not RedisKind.CLUSTER:
                had = await self._client.wait(self._settings.wait_replicas, self._settings.wait_replicas_ms)
                self.replica_shortages += had < self._settings.wait_replicas
        assert isinstance(answer, bytes), answer
        return answer

    async def record_rules(self, key: str, rules_hash: str, now_ms: int, kept_ms: int) -> int:
        """Say by which rules this process counts. Returns how many different ones are in use."""
        with _lost():
            await self._client.zadd(key, {rules_hash: now_ms})
            await self._client.zremrangebyscore(key, "-inf", now_ms - kept_ms)
            await self._client.pexpire(key, kept_ms)
            return int(await self._client.zcard(key))

    async def read_overrides(self, key: str, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """What stands in a hash whose field of the version differs from the known one; None where it does not."""
        with _lost():
            version = int(await self._client.hget(key, VERSION_FIELD) or 0)
            if version == known_version:
                return None
            found: dict[bytes, bytes] = await self._client.hgetall(key)
        told = {name.decode(): value for name, value in found.items()}
        # What was written between the two questions is in here already; the version that came with it counts.
        return int(told.pop(VERSION_FIELD, b"0")), told

    async def write_override(self, key: str, name: str, value: bytes | None) -> None:
        with _lost():
            if value is None:
                await self._client.hdel(key, name)
            else:
                await self._client.hset(key, name, value)
            await self._client.hincrby(key, VERSION_FIELD, 1)


class _lost(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a word at its uses
    def __exit__(self, kind: Any, problem: BaseException | None, _trace: Any) -> None:
        if isinstance(problem, OutOfMemoryError) or (isinstance(problem, ResponseError) and "OOM" in str(problem)):
            raise StoreFull("Redis is out of memory: nothing was charged") from problem
        if isinstance(problem, RedisError | OSError | TimeoutError):
            raise StoreUnavailable(f"Redis does not answer ({type(problem).__name__}: {problem})") from problem
