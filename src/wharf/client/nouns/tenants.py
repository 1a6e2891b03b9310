"""What can be asked about those who share a cluster: namespaces, quotas, variables."""

from collections.abc import Mapping
from typing import Unpack

from wharf.client.calls import Call, Listing, ListOptions, Own, Read, ReadOptions, WriteOptions
from wharf.client.methods import M, Noun, calls, lists, reads
from wharf.model.namespace import Namespace
from wharf.model.quota import Quota, QuotaUsage
from wharf.wire import variables


class Namespaces(Noun[M]):
    @lists("namespace.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[Namespace]:
        return Listing(options)

    @reads("namespace.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> Read[Namespace]:
        return Read(options, name)

    @calls("namespace.store")
    def store(self, record: Namespace, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, body=record)

    @calls("namespace.update")
    def update(self, name: str, record: Namespace, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name, body=record)

    @calls("namespace.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name)


class Quotas(Noun[M]):
    @lists("quota.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[Quota]:
        return Listing(options)

    @reads("quota.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> Read[Quota]:
        return Read(options, name)

    @calls("quota.store")
    def store(self, quota: Quota, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, body=quota)

    @calls("quota.update")
    def update(self, name: str, quota: Quota, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name, body=quota)

    @calls("quota.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name)

    @lists("quota.usages")
    def usages(self, **options: Unpack[ListOptions]) -> Listing[QuotaUsage]:
        return Listing(options)

    @reads("quota.usage")
    def usage(self, name: str, **options: Unpack[ReadOptions]) -> Read[QuotaUsage]:
        return Read(options, name)


class Variables(Noun[M]):
    """`cas`: only over this ModifyIndex; 0: only where nothing is. Else it raises `Conflict`."""

    @lists("variable.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[variables.VariableShown]:
        return Listing(options)

    @reads("variable.read")
    def read(self, path: str, **options: Unpack[ReadOptions]) -> Read[variables.VariableShown]:
        return Read(options, path)

    @calls("variable.put")
    def put(
        self,
        path: str,
        items: Mapping[str, str],
        *,
        cas: int | None = None,
        lock_id: str = "",
        **options: Unpack[WriteOptions],
    ) -> Call[variables.VariableShown]:
        """`lock_id`: of the lock that the caller holds."""
        lock = variables.LockRequest(id=lock_id) if lock_id else None
        return Call(options, path, body=_about(path, items, lock), cas=_text(cas))

    @calls("variable.put")
    def acquire_lock(
        self,
        path: str,
        items: Mapping[str, str] | None = None,
        *,
        ttl: str = "",
        lock_delay: str = "",
        lock_id: str = "",
        **options: Unpack[WriteOptions],
    ) -> Call[variables.VariableShown]:
        """The lock's id is in the answer. With the id of a lock that is held: change what it guards."""
        lock = variables.LockRequest(id=lock_id, ttl=ttl, lock_delay=lock_delay)
        return Call(options, path, body=_about(path, items, lock), more=_operation("lock-acquire"))

    @calls("variable.put")
    def renew_lock(self, path: str, lock_id: str, **options: Unpack[WriteOptions]) -> Call[variables.VariableShown]:
        body = _about(path, None, variables.LockRequest(id=lock_id))
        return Call(options, path, body=body, more=_operation("lock-renew"))

    @calls("variable.put")
    def release_lock(self, path: str, lock_id: str, **options: Unpack[WriteOptions]) -> Call[variables.VariableShown]:
        body = _about(path, None, variables.LockRequest(id=lock_id))
        return Call(options, path, body=body, more=_operation("lock-release"))

    @calls("variable.delete")
    def delete(self, path: str, *, cas: int | None = None, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, path, cas=_text(cas))


def _about(path: str, items: Mapping[str, str] | None, lock: variables.LockRequest | None) -> variables.VariableRequest:
    return variables.VariableRequest(path=path, items=dict(items) if items is not None else None, lock=lock)


def _operation(name: str) -> dict[str, Own]:
    return {name: True}


def _text(cas: int | None) -> str | None:
    return None if cas is None else str(cas)
