"""Client methods for variables and their locks."""

from collections.abc import Mapping
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, QueryValue, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.wire import variables


class VariableMethods(MethodGroup[M]):
    """The methods of `client.variables`, for encrypted key-value pairs under a path and their locks.

    `cas`: write only if the variable has this ModifyIndex; 0: only if it does not exist. Otherwise the call raises
    `Conflict`.
    """

    @list_method("variable.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[variables.VariableView]:
        """List the variables that the caller may list, without their items."""
        return ListSpec(options)

    @read_method("variable.read")
    def read(self, path: str, **options: Unpack[ReadOptions]) -> ReadSpec[variables.VariableView]:
        """Read the variable at this path, with its items."""
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
        """Write a variable. `lock_id` is the ID of its lock, if the caller holds it.

        `cas`: refuse unless the variable has this ModifyIndex; 0: refuse if it exists.
        """
        lock = variables.LockRequest(id=lock_id) if lock_id else None
        return CallSpec(options, path, body=_build_request(path, items, lock), cas=_format_index(cas))

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
        """Acquire the lock of a variable, and write its items if they are given. The reply contains the ID of the lock.

        With the ID of a held lock, only the items are written.
        """
        lock = variables.LockRequest(id=lock_id, ttl=ttl, lock_delay=lock_delay)
        return CallSpec(
            options, path, body=_build_request(path, items, lock), extra_query=_build_lock_query("lock-acquire")
        )

    @call_method("variable.put")
    def renew_lock(self, path: str, lock_id: str, **options: Unpack[WriteOptions]) -> CallSpec[variables.VariableView]:
        """Renew the lock of a variable. `lock_id` is the ID of the lock that the caller holds."""
        body = _build_request(path, None, variables.LockRequest(id=lock_id))
        return CallSpec(options, path, body=body, extra_query=_build_lock_query("lock-renew"))

    @call_method("variable.put")
    def release_lock(
        self, path: str, lock_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[variables.VariableView]:
        """Release the lock of a variable. `lock_id` is the ID of the lock that the caller holds."""
        body = _build_request(path, None, variables.LockRequest(id=lock_id))
        return CallSpec(options, path, body=body, extra_query=_build_lock_query("lock-release"))

    @call_method("variable.delete")
    def delete(self, path: str, *, cas: int | None = None, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the variable at this path.

        `cas`: refuse unless the variable has this ModifyIndex; 0: refuse if it exists.
        """
        return CallSpec(options, path, cas=_format_index(cas))


def _build_request(
    path: str, items: Mapping[str, str] | None, lock: variables.LockRequest | None
) -> variables.VariableRequest:
    """Return the body of a request to write a variable or to change its lock."""
    return variables.VariableRequest(path=path, items=dict(items) if items is not None else None, lock=lock)


def _build_lock_query(name: str) -> dict[str, QueryValue]:
    """Return the query parameter that selects an operation on a lock, such as `lock-renew`."""
    return {name: True}


def _format_index(cas: int | None) -> str | None:
    """Return the index as text; None stays None, so that it is not sent."""
    return None if cas is None else str(cas)
