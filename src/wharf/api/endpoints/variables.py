"""Endpoints of variables and their locks. Items are opened for whoever may read them, and nowhere else."""

from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Missing, Reading
from wharf.api.durations import read_duration_ns
from wharf.api.listing import Listing, by_namespace
from wharf.api.request import ReadOptions, Request
from wharf.model.changes import SEPARATOR
from wharf.model.durations import say_duration
from wharf.model.need import LIST_VARIABLES, READ_VARIABLE
from wharf.model.refusal import invalid
from wharf.model.secret import Sealed
from wharf.model.variable import DEFAULT_LOCK_DELAY, DEFAULT_LOCK_TTL, Variable, VariableLock
from wharf.operations import variables
from wharf.operations.decision import Decision, Moment
from wharf.operations.keyring import about_variable
from wharf.operations.variables import Conflicted, VariableKey, VariableWritten
from wharf.server.answering.variables import RENEW_LOCK, Renewal
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import VARIABLES
from wharf.wire import variables as shapes

NOT_FOUND: Final = "variable not found"
LOCK_OPERATIONS: Final = ("lock-acquire", "lock-renew", "lock-release")
CONFLICT: Final = 409
GONE: Final = 204
VERSION_DIGITS: Final = 20

READS: Final[dict[str, Reading]] = {}


class VariableReads:
    def __init__(self, server: Server) -> None:
        self._server = server

    def list_(self, replica: Replica, request: Request, options: ReadOptions) -> Listing[Variable]:
        """Of every namespace those that the caller may list: an unreadable namespace shows nothing."""
        return by_namespace(
            replica,
            VARIABLES,
            options,
            shown=lambda variable: metadata(request, variable),
            may_see=lambda variable: request.may(LIST_VARIABLES, namespace=variable.namespace, path=variable.path),
        )

    def read(self, replica: Replica, request: Request, _options: ReadOptions) -> Found:
        namespace, path = request.namespace, request.value("path")
        watched = [watch.one(VARIABLES, namespace, path)]
        variable = replica.get(VARIABLES, namespace, path) if SEPARATOR not in path else None
        if variable is None:
            return Found(Missing(NOT_FOUND), replica.last_change(VARIABLES), watched)
        shown = with_items(self._server, replica, request, variable)
        return Found(shown, variable.modify_index, watched)


class VariableWrites:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def put(self, request: Request) -> Done:
        asked = request.read_body(shapes.VariableRequest)
        namespace = request.query.get("namespace") or asked.namespace or request.namespace
        key = VariableKey(namespace, request.value("path"))
        request.require(namespace=key.namespace, path=key.path)
        expected = expected_version(request)
        operations = [name for name in LOCK_OPERATIONS if name in request.query]
        if len(operations) > 1:
            raise invalid(f"only one lock operation at a time: {' and '.join(operations)} were given")
        if operations and expected is not None:
            raise invalid(f"{operations[0]} and cas do not go together: a lock is its own check")
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
        self, request: Request, key: VariableKey, asked: shapes.VariableRequest, expected: int | None
    ) -> Done:
        lock = asked.lock
        if lock is not None and (lock.ttl or lock.lock_delay):
            raise invalid("a lock's TTL and delay are told when it is taken: use lock-acquire")
        variables.check_put(key, asked.items)
        await self._begin()
        items, lock_id = asked.items or {}, lock.id if lock is not None else ""
        written = await self._server.writer.write(
            lambda snapshot, moment: variables.put(
                snapshot, key, self._seal(snapshot, key, items), moment, expected=expected, lock_id=lock_id
            )
        )
        return self._answer(request, key, written)

    async def delete(self, request: Request) -> Done:
        key = VariableKey(request.namespace, request.value("path"))
        expected = expected_version(request)
        if any(name in request.query for name in LOCK_OPERATIONS):
            raise invalid("a lock is given back with PUT and lock-release")
        written = await self._server.writer.write(
            lambda snapshot, _moment: variables.delete(snapshot, key, expected=expected)
        )
        if written.conflict is not None:
            return self._answer(request, key, written)
        return Done(None, written.index, status=GONE)

    # -- locks -------------------------------------------------------------------------------------------------------

    async def _acquire(self, request: Request, key: VariableKey, asked: shapes.VariableRequest) -> Done:
        given = asked.lock or shapes.LockRequest()
        lock = VariableLock(
            id=given.id,
            ttl=read_duration_ns(given.ttl, field="Lock.TTL") or DEFAULT_LOCK_TTL,
            lock_delay=read_duration_ns(given.lock_delay, field="Lock.LockDelay") or DEFAULT_LOCK_DELAY,
        )
        if asked.items:
            variables.check_put(key, asked.items)
        await self._begin()

        def decide(snapshot: Replica, moment: Moment) -> Decision[VariableWritten]:
            is_there = snapshot.get(VARIABLES, key.namespace, key.path) is not None
            sealed = None if is_there and not asked.items else self._seal(snapshot, key, asked.items or {})
            return variables.acquire(snapshot, key, lock, moment, sealed=sealed)

        written = await self._server.writer.write(decide)
        return self._answer(request, key, written, is_holder=True)

    async def _renew(self, request: Request, key: VariableKey, asked: shapes.VariableRequest) -> Done:
        """Nothing is written: the leader hears that the holder is alive."""
        lock_id = asked.lock.id if asked.lock is not None else ""
        if not lock_id:
            raise invalid("a lock is renewed by its ID: Lock.ID is missing")
        held = await self._server.leader.ask(RENEW_LOCK, Renewal(key, lock_id))
        assert held.variable is not None, "a lock that is held is of a variable"
        return Done(metadata(request, held.variable, is_holder=True), held.index)

    async def _release(self, request: Request, key: VariableKey, asked: shapes.VariableRequest) -> Done:
        if asked.items:
            raise invalid("a lock is given back without items")
        lock_id = asked.lock.id if asked.lock is not None else ""
        written = await self._server.writer.write(
            lambda snapshot, moment: variables.release(snapshot, key, lock_id, moment)
        )
        if written.conflict is not None or written.variable is None:
            return self._answer(request, key, written)
        return Done(metadata(request, written.variable), written.index)

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._server.access.begin_ring(self._server.replica, self._server.leader)

    def _seal(self, snapshot: Replica, key: VariableKey, items: dict[str, str]) -> Sealed:
        plain = msgspec.json.encode(items)
        return self._server.access.keyring.seal(snapshot, plain, about=about_variable(key.namespace, key.path))

    def _answer(self, request: Request, key: VariableKey, written: VariableWritten, *, is_holder: bool = False) -> Done:
        """What was written; on a conflict what stands there, as far as the caller may see it."""
        variable = written.variable
        if written.conflict is Conflicted.LOCKED:
            # Also the index tells nothing: whoever does not hold the lock learns only that.
            return Done(shapes.VariableShown(namespace=key.namespace, path=key.path), written.index, status=CONFLICT)
        if written.conflict is not None:
            if variable is None:
                missing = shapes.VariableShown(namespace=key.namespace, path=key.path)
                return Done(missing, written.index, status=CONFLICT)
            may_read = request.may(READ_VARIABLE, namespace=key.namespace, path=key.path)
            replica = self._server.replica
            body = with_items(self._server, replica, request, variable) if may_read else metadata(request, variable)
            return Done(body, variable.modify_index, status=CONFLICT)
        assert variable is not None, "what was written is there"
        replica = self._server.replica
        body = with_items(self._server, replica, request, variable, is_holder=is_holder or variable.lock is not None)
        return Done(body, written.index)


def reads_of(server: Server) -> dict[str, Reading]:
    reads = VariableReads(server)
    return {"variable.list": reads.list_, "variable.read": reads.read}


def acts_of(server: Server) -> dict[str, Act]:
    writes = VariableWrites(server)
    return {"variable.put": writes.put, "variable.delete": writes.delete}


def expected_version(request: Request) -> int | None:
    """The version of a check-and-set; None where none is asked for."""
    given = request.query.get("cas")
    if given is None or given == "":
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= VERSION_DIGITS):
        raise invalid(f'can not parse cas: "{given}" is no index')
    return int(given)


def metadata(request: Request, variable: Variable, *, is_holder: bool = False) -> shapes.VariableShown:
    return shapes.VariableShown(
        namespace=variable.namespace,
        path=variable.path,
        lock=_lock_shown(request, variable.lock, is_holder=is_holder),
        create_index=variable.create_index,
        modify_index=variable.modify_index,
        create_time=variable.create_time,
        modify_time=variable.modify_time,
    )


def with_items(
    server: Server, replica: Replica, request: Request, variable: Variable, *, is_holder: bool = False
) -> shapes.VariableShown:
    sealed = Sealed(variable.data, variable.key_id)
    plain = server.access.keyring.open(replica, sealed, about=about_variable(variable.namespace, variable.path))
    items = msgspec.json.decode(plain, type=dict[str, str])
    return msgspec.structs.replace(metadata(request, variable, is_holder=is_holder), items=items)


def _lock_shown(
    request: Request, lock: VariableLock | None, *, is_holder: bool
) -> shapes.LockShown | msgspec.UnsetType:
    """Whoever knows the id of a lock may write as its holder: it is shown to the holder, and to management."""
    if lock is None:
        return msgspec.UNSET
    may_know = is_holder or request.caller.rights.is_management
    return shapes.LockShown(
        id=lock.id if may_know else msgspec.UNSET,
        ttl=say_duration(lock.ttl),
        lock_delay=say_duration(lock.lock_delay),
    )
