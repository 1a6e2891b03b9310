"""Endpoints of variables and their locks. Items are decrypted only for callers that may read them."""

from typing import Final

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import parse_duration_field
from wharf.cluster.api.results import ActionHandler, ActionResult, MissingRecord, ReadHandler
from wharf.cluster.operations import variables
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.keyring import make_variable_context
from wharf.cluster.operations.variables import VariableConflict, VariableKey, VariableWriteResult
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.variables import RENEW_LOCK, RenewLockRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import VARIABLES
from wharf.cluster.state.watches import watch_key
from wharf.contract.model.acl.permissions import LIST_VARIABLES, READ_VARIABLE
from wharf.contract.model.log import KEY_SEPARATOR
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.secrets import SealedData
from wharf.contract.model.times import format_duration
from wharf.contract.model.variables import DEFAULT_LOCK_DELAY_NS, DEFAULT_LOCK_TTL_NS, Variable, VariableLock
from wharf.contract.wire import variables as variables_wire

VARIABLE_NOT_FOUND_TEXT: Final = "variable not found"
LOCK_OPERATIONS: Final = ("lock-acquire", "lock-renew", "lock-release")
CONFLICT_STATUS: Final = 409
NO_CONTENT_STATUS: Final = 204
MAX_VERSION_DIGITS: Final = 20
"""Limits the work of parsing the number in `cas`."""


class VariableReads:
    """Reads variables."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def list_variables(self, replica: Replica, request: Request, options: QueryOptions) -> Listing[Variable]:
        """List the variables that the caller may list, without their items."""
        return list_by_namespace(
            replica,
            VARIABLES,
            options,
            build_view=lambda variable: build_variable_view(request, variable),
            is_visible=lambda variable: request.has_permission(
                LIST_VARIABLES, namespace=variable.namespace, path=variable.path
            ),
        )

    def read_variable(self, replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
        """Return the variable of the path with its decrypted items, or a missing record."""
        namespace, path = request.namespace, request.get_path_value("path")
        watched = [watch_key(VARIABLES, namespace, path)]
        variable = replica.get(VARIABLES, namespace, path) if KEY_SEPARATOR not in path else None
        if variable is None:
            return ReadResult(MissingRecord(VARIABLE_NOT_FOUND_TEXT), replica.get_last_change(VARIABLES), watched)
        view = build_view_with_items(self._server, replica, request, variable)
        return ReadResult(view, variable.modify_index, watched)


class VariableActions:
    """Writes variables and their locks."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def put_variable(self, request: Request) -> ActionResult:
        """Write the variable of the path, or execute the lock operation that the query names. Raises `Refusal`."""
        body = request.decode_body(variables_wire.VariableRequest)
        namespace = request.query.get("namespace") or body.namespace or request.namespace
        key = VariableKey(namespace, request.get_path_value("path"))
        request.require_permission(namespace=key.namespace, path=key.path)
        expected_version = parse_expected_version(request)
        operations = [name for name in LOCK_OPERATIONS if name in request.query]
        if len(operations) > 1:
            raise invalid_request(
                f"conflicting parameters: {' and '.join(operations)}; use one lock operation in a request"
            )
        if operations and expected_version is not None:
            raise invalid_request(
                f"conflicting parameters: {operations[0]} and cas; a lock operation has its own check"
            )
        match operations:
            case ["lock-acquire"]:
                return await self._acquire(request, key, body)
            case ["lock-renew"]:
                return await self._renew(request, key, body)
            case ["lock-release"]:
                return await self._release(request, key, body)
            case _:
                return await self._put(request, key, body, expected_version)

    async def _put(
        self, request: Request, key: VariableKey, body: variables_wire.VariableRequest, expected_version: int | None
    ) -> ActionResult:
        """Write the items of the variable.

        `expected_version`: the ModifyIndex that it must have; `None` accepts any. Returns a 409 on a conflict.
        """
        lock = body.lock
        if lock is not None and (lock.ttl or lock.lock_delay):
            raise invalid_request("TTL and LockDelay are set when a lock is acquired: use lock-acquire")
        variables.check_variable_write(key, body.items)
        await self._ensure_key()
        items, lock_id = body.items or {}, lock.id if lock is not None else ""
        result = await self._server.writer.execute(
            lambda snapshot, context: variables.put_variable(
                snapshot,
                key,
                self._seal(snapshot, key, items),
                context,
                expected_index=expected_version,
                lock_id=lock_id,
            )
        )
        return self._build_result(request, key, result, is_own_content=True)

    async def delete_variable(self, request: Request) -> ActionResult:
        """Delete the variable. With `cas`, only if its ModifyIndex equals that number; otherwise return a 409."""
        key = VariableKey(request.namespace, request.get_path_value("path"))
        expected_version = parse_expected_version(request)
        if any(name in request.query for name in LOCK_OPERATIONS):
            raise invalid_request("lock operations need PUT: release a lock with PUT and lock-release")
        result = await self._server.writer.execute(
            lambda snapshot, _context: variables.delete_variable(snapshot, key, expected_index=expected_version)
        )
        if result.conflict is not None:
            return self._build_result(request, key, result)
        return ActionResult(None, result.index, status=NO_CONTENT_STATUS)

    # -- locks -------------------------------------------------------------------------------------------------------

    async def _acquire(self, request: Request, key: VariableKey, body: variables_wire.VariableRequest) -> ActionResult:
        """Acquire the lock of the variable, and write the items of the body if it has any.

        The variable is created if it does not exist. Returns a 409 if the lock is held.
        """
        requested = body.lock or variables_wire.LockRequest()
        lock = VariableLock(
            id=requested.id,
            ttl=parse_duration_field(requested.ttl, field="Lock.TTL") or DEFAULT_LOCK_TTL_NS,
            lock_delay=parse_duration_field(requested.lock_delay, field="Lock.LockDelay") or DEFAULT_LOCK_DELAY_NS,
        )
        if body.items:
            variables.check_variable_write(key, body.items)
        await self._ensure_key()

        def decide(snapshot: Replica, context: DecisionContext) -> Decision[VariableWriteResult]:
            exists = snapshot.get(VARIABLES, key.namespace, key.path) is not None
            sealed = None if exists and not body.items else self._seal(snapshot, key, body.items or {})
            return variables.acquire_lock(snapshot, key, lock, context, sealed=sealed)

        result = await self._server.writer.execute(decide)
        # Without items in the body, the reply would show items that another caller wrote.
        return self._build_result(request, key, result, is_holder=True, is_own_content=bool(body.items))

    async def _renew(self, request: Request, key: VariableKey, body: variables_wire.VariableRequest) -> ActionResult:
        """Restart the TTL of the lock in the leader's memory. Nothing is written to the log. Return the variable."""
        lock_id = body.lock.id if body.lock is not None else ""
        if not lock_id:
            raise invalid_request("missing Lock.ID: it names the lock to renew")
        lease = await self._server.leader.call(RENEW_LOCK, RenewLockRequest(key, lock_id))
        assert lease.variable is not None, "a renewed lock has a variable"
        return ActionResult(build_variable_view(request, lease.variable, is_holder=True), lease.index)

    async def _release(self, request: Request, key: VariableKey, body: variables_wire.VariableRequest) -> ActionResult:
        """Release the lock of the variable and return the variable; returns a 409 on a conflict."""
        if body.items:
            raise invalid_request("lock-release accepts no items")
        lock_id = body.lock.id if body.lock is not None else ""
        result = await self._server.writer.execute(
            lambda snapshot, context: variables.release_lock(snapshot, key, lock_id, context)
        )
        if result.conflict is not None or result.variable is None:
            return self._build_result(request, key, result)
        return ActionResult(build_variable_view(request, result.variable), result.index)

    # -- replies -----------------------------------------------------------------------------------------------------

    async def _ensure_key(self) -> None:
        """Create the first key of the keyring, if it has none to encrypt items with."""
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def _seal(self, snapshot: Replica, key: VariableKey, items: dict[str, str]) -> SealedData:
        """Return the items encrypted with the active key. They can be decrypted only as items of this variable."""
        plain = msgspec.json.encode(items)
        return self._server.access.keyring.seal(snapshot, plain, context=make_variable_context(key.namespace, key.path))

    def _build_result(
        self,
        request: Request,
        key: VariableKey,
        result: VariableWriteResult,
        *,
        is_holder: bool = False,
        is_own_content: bool = False,
    ) -> ActionResult:
        """Return the written variable or, after a conflict, a 409 with the stored variable.

        Both show items only to callers that may read the variable, or that sent these items in this request
        (`is_own_content`). If another caller holds the lock, the 409 shows only the path.
        """
        variable = result.variable
        if result.conflict is VariableConflict.LOCKED:
            # Callers that do not hold the lock learn only that it is held; the index shows nothing either.
            return ActionResult(
                variables_wire.VariableView(namespace=key.namespace, path=key.path),
                result.index,
                status=CONFLICT_STATUS,
            )
        if result.conflict is not None:
            if variable is None:
                empty_view = variables_wire.VariableView(namespace=key.namespace, path=key.path)
                return ActionResult(empty_view, result.index, status=CONFLICT_STATUS)
            body = self._build_permitted_view(request, variable, is_holder=False, is_own_content=False)
            return ActionResult(body, variable.modify_index, status=CONFLICT_STATUS)
        assert variable is not None, "a write without a conflict returns its variable"
        is_holder = is_holder or variable.lock is not None
        body = self._build_permitted_view(request, variable, is_holder=is_holder, is_own_content=is_own_content)
        return ActionResult(body, result.index)

    def _build_permitted_view(
        self, request: Request, variable: Variable, *, is_holder: bool, is_own_content: bool
    ) -> variables_wire.VariableView:
        """Return the variable, with its items only if the caller may read them or sent them in this request."""
        if is_own_content or request.has_permission(READ_VARIABLE, namespace=variable.namespace, path=variable.path):
            return build_view_with_items(self._server, self._server.replica, request, variable, is_holder=is_holder)
        return build_variable_view(request, variable, is_holder=is_holder)


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = VariableReads(server)
    return {"variable.list": reads.list_variables, "variable.read": reads.read_variable}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = VariableActions(server)
    return {"variable.put": actions.put_variable, "variable.delete": actions.delete_variable}


def parse_expected_version(request: Request) -> int | None:
    """Return the ModifyIndex that the variable must have (`cas`), or `None` without `cas`. Raises `Refusal`."""
    text = request.query.get("cas")
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_VERSION_DIGITS):
        raise invalid_request(f'can not parse cas: "{text}" is not an index')
    return int(text)


def build_variable_view(
    request: Request, variable: Variable, *, is_holder: bool = False
) -> variables_wire.VariableView:
    """Return the variable without its items. `is_holder`: whether the caller holds its lock and may see the lock id."""
    return variables_wire.VariableView(
        namespace=variable.namespace,
        path=variable.path,
        lock=_build_lock_view(request, variable.lock, is_holder=is_holder),
        create_index=variable.create_index,
        modify_index=variable.modify_index,
        create_time=variable.create_time,
        modify_time=variable.modify_time,
    )


def build_view_with_items(
    server: Server, replica: Replica, request: Request, variable: Variable, *, is_holder: bool = False
) -> variables_wire.VariableView:
    """Return the variable with its decrypted items.

    `is_holder`: whether the caller holds its lock and may see the lock id.
    """
    sealed = SealedData(variable.data, variable.key_id)
    plain = server.access.keyring.open(
        replica, sealed, context=make_variable_context(variable.namespace, variable.path)
    )
    items = msgspec.json.decode(plain, type=dict[str, str])
    return msgspec.structs.replace(build_variable_view(request, variable, is_holder=is_holder), items=items)


def _build_lock_view(
    request: Request, lock: VariableLock | None, *, is_holder: bool
) -> variables_wire.LockView | msgspec.UnsetType:
    """Return the lock as the caller may see it; unset if there is none.

    The lock id allows writing as the holder, so only the holder and management tokens see it.
    """
    if lock is None:
        return msgspec.UNSET
    can_see_id = is_holder or request.caller.rights.is_management
    return variables_wire.LockView(
        id=lock.id if can_see_id else msgspec.UNSET,
        ttl=format_duration(lock.ttl),
        lock_delay=format_duration(lock.lock_delay),
    )
