"""The connection to Redis. One command runs the Lua script over a batch of operations; errors become `StoreUnavailable`.

Nothing here is cancelled while it runs: only tasks of `OperationBatches` await `run_script`, and they live until the
reply.
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
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisError

from wharf.limits.stores.port import StoreFull, StoreUnavailable, UnsuitableStore
from wharf.limits.stores.redis.settings import RedisKind, RedisSettings

SCRIPT_SOURCE: Final = files(__package__).joinpath("counters.lua").read_text("utf-8")
TAKE_SCRIPT: Final = f"#!lua\n{SCRIPT_SOURCE}"
"""The Lua script for batches with charges. Redis rejects it completely if its memory is full."""
SETTLE_SCRIPT: Final = f"#!lua flags=allow-oom\n{SCRIPT_SOURCE}"
"""The same script for batches that only refund and release, which must work with full memory too."""
MIN_REDIS_VERSION: Final = 7
"""Older versions do not support script flags."""
VERSION_FIELD: Final = "version"
"""The field of the overrides hash that holds its version."""


class RedisLink:
    """The connection to one Redis server, Sentinel group or cluster."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: Any = None  # Redis and RedisCluster share no base with the calls used here.
        self._sentinel: Sentinel | None = None
        self._hashes: dict[str, str] = {}
        self._has_checked_suitability = False
        self.run_id: str = ""
        self.restarts = 0
        """How often another or a restarted server was found at the address."""
        self.replica_shortages = 0
        """How often fewer replicas than `wait_replicas` confirmed a batch."""

    async def open(self) -> None:
        """Connect, and check that this Redis can be used for counters.

        Raises `UnsuitableStore`, or `StoreUnavailable`; after the latter, call `check_server` again later.
        """
        for script in (TAKE_SCRIPT, SETTLE_SCRIPT):
            self._hashes[script] = hashlib.sha1(script.encode()).hexdigest()
        self._client = self._connect()
        with _translated_errors():
            if isinstance(self._client, RedisCluster):
                await self._client.initialize()
        await self.check_server()

    @staticmethod
    def _require_suitable_server(info: dict[str, Any]) -> None:
        """Raise `UnsuitableStore` if this Redis is too old or evicts keys."""
        version = str(info.get("redis_version", "0"))
        if int(version.partition(".")[0]) < MIN_REDIS_VERSION:
            raise UnsuitableStore(f"Redis {version} is too old: counters need Redis {MIN_REDIS_VERSION} or later")
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise UnsuitableStore(
                f"Redis has maxmemory-policy {policy}, which deletes counters and so ends limits early: "
                "set it to noeviction, or use a separate Redis for the limiter"
            )

    def _connect(self) -> Any:
        """Return a client for the configured kind of Redis."""
        settings = self._settings
        timeout_s = settings.socket_timeout_ms / 1_000
        options: dict[str, Any] = {
            "username": settings.user,
            "password": settings.password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
        }
        if settings.tls:
            options |= {"ssl": True, "ssl_ca_certs": settings.ca_file}
            options |= {"ssl_certfile": settings.certificate_file, "ssl_keyfile": settings.key_file}
        no_retry = Retry(NoBackoff(), 0)  # `GuardedStore` decides whether and when to retry.
        endpoints = settings.list_endpoints()
        if settings.kind is RedisKind.CLUSTER:
            nodes = [ClusterNode(host, port) for host, port in endpoints]
            return RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 1), **options)
        options |= {"db": settings.database, "retry": no_retry, "protocol": 2}
        if settings.kind is RedisKind.SENTINEL:
            sentinel_options = {
                "socket_timeout": timeout_s,
                "socket_connect_timeout": timeout_s,
                "retry": no_retry,
                "protocol": 2,
            }
            self._sentinel = Sentinel(  # type: ignore[no-untyped-call] # The library has no types for it.
                endpoints, sentinel_kwargs=sentinel_options, **options
            )
            return self._sentinel.master_for(settings.service)
        host, port = endpoints[0]
        return Redis(host=host, port=port, **options)

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(RedisError, OSError):
            if self._client is not None:
                await self._client.aclose()
            for sentinel in self._sentinel.sentinels if self._sentinel is not None else ():
                await sentinel.aclose()

    @contextlib.asynccontextmanager
    async def use_client(self) -> AsyncIterator[Any]:  # Redis or RedisCluster, see `_client`.
        """Yield the Redis client, for commands other than the Lua script. Its errors become `StoreUnavailable`."""
        with _translated_errors():
            yield self._client

    async def check_server(self) -> dict[str, Any]:
        """Read the sections `server` and `memory` of the INFO of Redis, and return their entries.

        If the run id differs from the last call, Redis was restarted or replaced, and the restart is counted. Raises
        `StoreUnavailable` if Redis does not reply. The first call raises `UnsuitableStore` if this Redis cannot hold
        counters.
        """
        with _translated_errors():
            info: dict[str, Any] = {}
            for section in ("server", "memory"):
                options = {"target_nodes": RedisCluster.RANDOM} if isinstance(self._client, RedisCluster) else {}
                info |= await self._client.info(section, **options)
        if not self._has_checked_suitability:
            self._require_suitable_server(info)
            self._has_checked_suitability = True
        run_id = str(info.get("run_id", ""))
        if self._settings.kind is not RedisKind.CLUSTER:
            self.restarts += bool(self.run_id) and run_id != self.run_id
            self.run_id = run_id
        return info

    async def run_script(self, script: str, key: str, arguments: list[bytes | str]) -> bytes:
        """Run a Lua script on the node that holds `key`, and return its reply.

        If replicas must confirm writes, wait for them, and count it if too few do. Raises `StoreUnavailable` or `StoreFull`.
        """
        with _translated_errors():
            try:
                result = await self._client.execute_command("EVALSHA", self._hashes[script], 1, key, *arguments)
            except NoScriptError:  # A new server, or a flushed script cache: send the whole script.
                result = await self._client.execute_command("EVAL", script, 1, key, *arguments)
            if self._settings.wait_replicas and self._settings.kind is not RedisKind.CLUSTER:
                replica_count = await self._client.wait(self._settings.wait_replicas, self._settings.wait_replicas_ms)
                self.replica_shortages += replica_count < self._settings.wait_replicas
        assert isinstance(result, bytes), result
        return result

    async def record_rules(self, key: str, rules_hash: str, now_ms: int, retention_ms: int) -> int:
        """Record in the sorted set `key` that this process uses rules with this hash.

        Return how many different hashes were recorded in the last `retention_ms`. Raises `StoreUnavailable`.
        """
        with _translated_errors():
            await self._client.zadd(key, {rules_hash: now_ms})
            await self._client.zremrangebyscore(key, "-inf", now_ms - retention_ms)
            await self._client.pexpire(key, retention_ms)
            return int(await self._client.zcard(key))

    async def read_overrides(self, key: str, known_version: int) -> tuple[int, Mapping[str, bytes]] | None:
        """Return the version and the fields of the hash `key`, or `None` if the version is `known_version`.

        Raises `StoreUnavailable`.
        """
        with _translated_errors():
            version = int(await self._client.hget(key, VERSION_FIELD) or 0)
            if version == known_version:
                return None
            fields: dict[bytes, bytes] = await self._client.hgetall(key)
        overrides = {name.decode(): value for name, value in fields.items()}
        # A write between the two commands is already included, so use the version that was read with the fields.
        return int(overrides.pop(VERSION_FIELD, b"0")), overrides

    async def write_override(self, key: str, name: str, value: bytes | None) -> None:
        """Set a field of the hash `key`, or delete it if `value` is `None`, and increase the version of the hash."""
        with _translated_errors():
            if value is None:
                await self._client.hdel(key, name)
            else:
                await self._client.hset(key, name, value)
            await self._client.hincrby(key, VERSION_FIELD, 1)


class _translated_errors(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """A context manager that translates errors of the Redis library to `StoreUnavailable` and `StoreFull`."""

    def __exit__(self, _error_type: Any, problem: BaseException | None, _trace: Any) -> None:
        """Raise `StoreFull` if Redis has no memory left, and `StoreUnavailable` for any other error of Redis."""
        if isinstance(problem, OutOfMemoryError):
            raise StoreFull("Redis is out of memory: nothing was charged") from problem
        if isinstance(problem, RedisError | OSError | TimeoutError):
            raise StoreUnavailable(f"Redis does not reply ({type(problem).__name__}: {problem})") from problem
