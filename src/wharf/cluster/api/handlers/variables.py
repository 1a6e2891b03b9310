"""Endpoints of variables and their locks. Items are opened for whoever may read them, and nowhere else."""

from typing import Final

import msgspec

from wharf.cluster.api.lists.listing import Listing, list_by_namespace
from wharf.cluster.api.requests.request import QueryOptions, Request
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
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import VARIABLES
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

READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class VariableReads:
    def __init__(self, server: Server) -> None:
        self._server = server

    def list_variables(self, replica: Replica, request: Request, options: QueryOptions) -> Listing[Variable]:
        """Of every namespace those that the caller may list: an unreadable namespace shows nothing."""
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
        namespace, path = request.namespace, request.get_path_value("path")
        watched = [watch.watch_key(VARIABLES, namespace, path)]
        variable = replica.get(VARIABLES, namespace, path) if KEY_SEPARATOR not in path else None
        if variable is None:
            return ReadResult(MissingRecord(VARIABLE_NOT_FOUND_TEXT), replica.get_last_change(VARIABLES), watched)
        shown = build_view_with_items(self._server, replica, request, variable)
        return ReadResult(shown, variable.modify_index, watched)


class VariableActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def put_variable(self, request: Request) -> ActionResult:
        asked = request.decode_body(variables_wire.VariableRequest)
        namespace = request.query.get("namespace") or asked.namespace or request.namespace
        key = VariableKey(namespace, request.get_path_value("path"))
        request.require_permission(namespace=key.namespace, path=key.path)
        expected = parse_expected_version(request)
        operations = [name for name in LOCK_OPERATIONS if name in request.query]
        if len(operations) > 1:
            raise invalid_request(f"only one lock operation at a time: {' and '.join(operations)} were given")
        if operations and expected is not None:
            raise invalid_request(f"{operations[0]} and cas do not go together: a lock is its own check")
        match operations:
            case ["lock-acquire"]:
                return await self._acquire(request, key, asked)
            case ["lock-renew"]:
                return await self._renew(request, key, asked)
            case ["lock-release"]:
                return await self._release(request, key, asked)
            case _:
                return await self._put(request, key, asked, expected)

    async def _put(
        self, request: Request, key: VariableKey, asked: variables_wire.VariableRequest, expected: int | None
    ) -> ActionResult:
        lock = asked.lock
        if lock is not None and (lock.ttl or lock.lock_delay):
            raise invalid_request("a lock's TTL and delay are told when it is taken: use lock-acquire")
        variables.check_variable_write(key, asked.items)
        await self._begin()
        items, lock_id = asked.items or {}, lock.id if lock is not None else ""
        written = await self._server.writer.execute(
            lambda snapshot, moment: variables.put_variable(
                snapshot, key, self._seal(snapshot, key, items), moment, expected_index=expected, lock_id=lock_id
            )
        )
        return self._answer(request, key, written)

    async def delete_variable(self, request: Request) -> ActionResult:
        key = VariableKey(request.namespace, request.get_path_value("path"))
        expected = parse_expected_version(request)
        if any(name in request.query for name in LOCK_OPERATIONS):
            raise invalid_request("a lock is given back with PUT and lock-release")
        written = await self._server.writer.execute(
            lambda snapshot, _moment: variables.delete_variable(snapshot, key, expected_index=expected)
        )
        if written.conflict is not None:
            return self._answer(request, key, written)
        return ActionResult(None, written.index, status=NO_CONTENT_STATUS)

    # -- locks -------------------------------------------------------------------------------------------------------

    async def _acquire(self, request: Request, key: VariableKey, asked: variables_wire.VariableRequest) -> ActionResult:
        given = asked.lock or variables_wire.LockRequest()
        lock = VariableLock(
            id=given.id,
            ttl=parse_duration_field(given.ttl, field="Lock.TTL") or DEFAULT_LOCK_TTL_NS,
            lock_delay=parse_duration_field(given.lock_delay, field="Lock.LockDelay") or DEFAULT_LOCK_DELAY_NS,
        )
        if asked.items:
            variables.check_variable_write(key, asked.items)
        await self._begin()

        def decide(snapshot: Replica, moment: DecisionContext) -> Decision[VariableWriteResult]:
            is_there = snapshot.get(VARIABLES, key.namespace, key.path) is not None
            sealed = None if is_there and not asked.items else self._seal(snapshot, key, asked.items or {})
            return variables.acquire_lock(snapshot, key, lock, moment, sealed=sealed)

        written = await self._server.writer.execute(decide)
        return self._answer(request, key, written, is_holder=True)

    async def _renew(self, request: Request, key: VariableKey, asked: variables_wire.VariableRequest) -> ActionResult:
        """Nothing is written: the leader hears that the holder is alive."""
        lock_id = asked.lock.id if asked.lock is not None else ""
        if not lock_id:
            raise invalid_request("a lock is renewed by its ID: Lock.ID is missing")
        held = await self._server.leader.call(RENEW_LOCK, RenewLockRequest(key, lock_id))
        assert held.variable is not None, "a lock that is held is of a variable"
        return ActionResult(build_variable_view(request, held.variable, is_holder=True), held.index)

    async def _release(self, request: Request, key: VariableKey, asked: variables_wire.VariableRequest) -> ActionResult:
        if asked.items:
            raise invalid_request("a lock is given back without items")
        lock_id = asked.lock.id if asked.lock is not None else ""
        written = await self._server.writer.execute(
            lambda snapshot, moment: variables.release_lock(snapshot, key, lock_id, moment)
        )
        if written.conflict is not None or written.variable is None:
            return self._answer(request, key, written)
        return ActionResult(build_variable_view(request, written.variable), written.index)

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._server.access.ensure_active_key(self._server.replica, self._server.leader)

    def _seal(self, snapshot: Replica, key: VariableKey, items: dict[str, str]) -> SealedData:
        plain = msgspec.json.encode(items)
        return self._server.access.keyring.seal(snapshot, plain, context=make_variable_context(key.namespace, key.path))

    def _answer(
        self, request: Request, key: VariableKey, written: VariableWriteResult, *, is_holder: bool = False
    ) -> ActionResult:
        """What was written; on a conflict what stands there, as far as the caller may see it."""
        variable = written.variable
        if written.conflict is VariableConflict.LOCKED:
            # Also the index tells nothing: whoever does not hold the lock learns only that.
            return ActionResult(
                variables_wire.VariableView(namespace=key.namespace, path=key.path),
                written.index,
                status=CONFLICT_STATUS,
            )
        if written.conflict is not None:
            if variable is None:
                missing = variables_wire.VariableView(namespace=key.namespace, path=key.path)
                return ActionResult(missing, written.index, status=CONFLICT_STATUS)
            may_read = request.has_permission(READ_VARIABLE, namespace=key.namespace, path=key.path)
            replica = self._server.replica
            body = (
                build_view_with_items(self._server, replica, request, variable)
                if may_read
                else build_variable_view(request, variable)
            )
            return ActionResult(body, variable.modify_index, status=CONFLICT_STATUS)
        assert variable is not None, "what was written is there"
        replica = self._server.replica
        body = build_view_with_items(
            self._server, replica, request, variable, is_holder=is_holder or variable.lock is not None
        )
        return ActionResult(body, written.index)


def build_read_handlers(server: Server) -> dict[str, ReadHandler]:
    reads = VariableReads(server)
    return {"variable.list": reads.list_variables, "variable.read": reads.read_variable}


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    writes = VariableActions(server)
    return {"variable.put": writes.put_variable, "variable.delete": writes.delete_variable}


def parse_expected_version(request: Request) -> int | None:
    """The version of a check-and-set; None where none is asked for."""
    given = request.query.get("cas")
    if given is None or given == "":
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= MAX_VERSION_DIGITS):
        raise invalid_request(f'can not parse cas: "{given}" is no index')
    return int(given)


def build_variable_view(
    request: Request, variable: Variable, *, is_holder: bool = False
) -> variables_wire.VariableView:
    return variables_wire.VariableView(
        namespace=variable.namespace,
        path=variable.path,
        lock=_lock_shown(request, variable.lock, is_holder=is_holder),
        create_index=variable.create_index,
        modify_index=variable.modify_index,
        create_time=variable.create_time,
        modify_time=variable.modify_time,
    )


def build_view_with_items(
    server: Server, replica: Replica, request: Request, variable: Variable, *, is_holder: bool = False
) -> variables_wire.VariableView:
    sealed = SealedData(variable.data, variable.key_id)
    plain = server.access.keyring.open(
        replica, sealed, context=make_variable_context(variable.namespace, variable.path)
    )
    items = msgspec.json.decode(plain, type=dict[str, str])
    return msgspec.structs.replace(build_variable_view(request, variable, is_holder=is_holder), items=items)


def _lock_shown(
    request: Request, lock: VariableLock | None, *, is_holder: bool
) -> variables_wire.LockView | msgspec.UnsetType:
    """Whoever knows the id of a lock may write as its holder: it is shown to the holder, and to management."""
    if lock is None:
        return msgspec.UNSET
    may_know = is_holder or request.caller.rights.is_management
    return variables_wire.LockView(
        id=lock.id if may_know else msgspec.UNSET,
        ttl=format_duration(lock.ttl),
        lock_delay=format_duration(lock.lock_delay),
    )
