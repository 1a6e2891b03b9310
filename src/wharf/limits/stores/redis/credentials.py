"""The accepted credentials on Redis, which several gateways share. Each is a key that expires by itself."""

from wharf.limits.stores.redis.link import RedisLink


class RedisCredentials:
    """The keyed hashes of accepted credentials on Redis. Every method raises `StoreUnavailable`."""

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        self._prefix = f"{prefix}accepted:"

    async def find(self, key: str) -> int | None:
        """Return until when a credential is accepted, in Unix milliseconds; `None` if it is not."""
        async with self._link.use_client() as client:
            value = await client.get(self._prefix + key)
        return int(value) if value is not None and value.isdigit() else None

    async def store(self, key: str, until_ms: int, lifetime_ms: int) -> None:
        """Store until when a credential is accepted. The key expires after `lifetime_ms`, by the clock of Redis."""
        async with self._link.use_client() as client:
            await client.set(self._prefix + key, until_ms, px=lifetime_ms)

    async def remove(self, key: str) -> None:
        """Make a credential unknown again."""
        async with self._link.use_client() as client:
            await client.delete(self._prefix + key)
