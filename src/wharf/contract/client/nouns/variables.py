"""."""

from collections.abc import Mapping
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, QueryValue, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.wire import variables


class VariableMethods(MethodGroup[M]):
    """`cas`: only over this ModifyIndex; 0: only where nothing is. Else it raises `Conflict`."""

    @list_method("variable.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[variables.VariableView]:
        return ListSpec(options)

    @read_method("variable.read")
    def read(self, path: str, **options: Unpack[ReadOptions]) -> ReadSpec[variables.VariableView]:
        return ReadSpec(options, path)

    @call_method("variable.put")
    def put(
        self,
        path: str,
        items: Mapping[str, str],
        *,
        cas: int | None = None,
        lock_id: str = "",
        **options: Unpack[WriteOptions],
    ) -> CallSpec[variables.VariableView]:
        """`lock_id`: of the lock that the caller holds."""
        lock = variables.LockRequest(id=lock_id) if lock_id else None
        return CallSpec(options, path, body=_about(path, items, lock), cas=_text(cas))

    @call_method("variable.put")
    def acquire_lock(
        self,
        path: str,
        items: Mapping[str, str] | None = None,
        *,
        ttl: str = "",
        lock_delay: str = "",
        lock_id: str = "",
        **options: Unpack[WriteOptions],
    ) -> CallSpec[variables.VariableView]:
        """The lock's id is in the answer. With the id of a lock that is held: change what it guards."""
        lock = variables.LockRequest(id=lock_id, ttl=ttl, lock_delay=lock_delay)
        return CallSpec(options, path, body=_about(path, items, lock), extra_query=_operation("lock-acquire"))

    @call_method("variable.put")
    def renew_lock(self, path: str, lock_id: str, **options: Unpack[WriteOptions]) -> CallSpec[variables.VariableView]:
        body = _about(path, None, variables.LockRequest(id=lock_id))
        return CallSpec(options, path, body=body, extra_query=_operation("lock-renew"))

    @call_method("variable.put")
    def release_lock(
        self, path: str, lock_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[variables.VariableView]:
        body = _about(path, None, variables.LockRequest(id=lock_id))
        return CallSpec(options, path, body=body, extra_query=_operation("lock-release"))

    @call_method("variable.delete")
    def delete(self, path: str, *, cas: int | None = None, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        return CallSpec(options, path, cas=_text(cas))


def _about(path: str, items: Mapping[str, str] | None, lock: variables.LockRequest | None) -> variables.VariableRequest:
    return variables.VariableRequest(path=path, items=dict(items) if items is not None else None, lock=lock)


def _operation(name: str) -> dict[str, QueryValue]:
    return {name: True}


def _text(cas: int | None) -> str | None:
    return None if cas is None else str(cas)
