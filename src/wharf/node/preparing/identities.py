"""The identities of this node's tasks: signed by servers, put where their tasks look for them, and renewed before they end.

What an identity may do is decided by servers alone. A token is never kept on disk by us but where its job wants it as a
file; what is remembered over an end of the agent is when each was signed, and until when it holds.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from wharf.client import Unreachable
from wharf.model.identity import DEFAULT_IDENTITY_NAME, WorkloadIdentity
from wharf.model.refusal import Code, Refusal
from wharf.model.task import Task
from wharf.model.task_state import TaskEventType
from wharf.node.artifacts import ArtifactError
from wharf.node.artifacts.inside import Inside
from wharf.node.preparing.tending import Tells
from wharf.node.preparing.work import NotReady, TaskWork, seen_folders
from wharf.wire.identity_shapes import SignedIdentity
from wharf.world import World

log = logging.getLogger(__name__)

PREFIXES: Final = ("WHARF_", "NOMAD_")
API_SOCKET: Final = "api.sock"
TIMES: Final = ".identities"
"""In the agent's own folder of the task."""
FILE_MODE: Final = 0o644
RENEW_AT_SHARE: Final = 0.5
"""Of its life: as long again remains for an outage of the servers."""
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 30.0
TELL_WAITING_S: Final = 3.0
DOUBT_AFTER_NS: Final = 60_000_000_000
"""A token that was refused is signed anew, if it is older than this: its key may be gone."""
FOR_GOOD: Final = frozenset({Code.INVALID, Code.FORBIDDEN})
_NOT_IN_NAMES: Final = re.compile("[^A-Za-z0-9_]")


class Signer(Protocol):
    async def sign(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        """Raises Refusal and Unreachable."""
        ...


class Held(msgspec.Struct, frozen=True):
    """When the identity that the task has was signed, and when it ends; 0: never."""

    issued: int
    expires: int

    @property
    def renew_at_ns(self) -> int | None:
        if not self.expires:
            return None
        return self.issued + int((self.expires - self.issued) * RENEW_AT_SHARE)


def declared_by(task: Task) -> tuple[WorkloadIdentity, ...]:
    return (task.identity or WorkloadIdentity(), *(task.identities or ()))


def exposed_by(task: Task) -> tuple[WorkloadIdentity, ...]:
    """Those that the task itself is to see."""
    return tuple(each for each in declared_by(task) if each.env or each.file)


class TaskIdentities:
    """Of one task. A `Bearer`: what is asked for its templates is asked in its name. `close` it when it is over."""

    def __init__(self, world: World, signer: Signer, work: TaskWork) -> None:
        self._world = world
        self._signer = signer
        self._work = work
        self._exposed = exposed_by(work.task)
        self._signed: dict[str, SignedIdentity] = {}
        self._held: dict[str, Held] = {}
        self._signing = asyncio.Lock()

    # -- what the task sees

    def environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for identity in self._exposed:
            signed = self._signed.get(identity.name)
            if identity.env and signed is not None:
                found |= {f"{prefix}{variable_of(identity.name)}": signed.jwt for prefix in PREFIXES}
        if found:
            secrets = seen_folders(self._work.folders, self._work.view).secrets
            found |= {f"{prefix}UNIX_ADDR": f"unix://{secrets}/{API_SOCKET}" for prefix in PREFIXES}
        return found

    async def prepare(self, say: Callable[..., None]) -> None:
        """Until the task has all that it is to see. Raises NotReady."""
        missing = [each for each in self._exposed if self._is_due(each.name) or each.name not in self._signed]
        if missing:
            for signed in await self._sign_until_there([each.name for each in missing], say):
                self._take(signed)
        for identity in self._exposed:
            self._write(identity)
        self._remember()

    # -- while it runs

    async def keep(self, tells: Tells) -> None:
        """Until cancelled. Tokens that the task has since before this agent began are good until they end."""
        unsigned = [each.name for each in self._exposed if each.name not in self._signed]
        if unsigned:
            held = self._remembered()
            for signed in await self._sign_until_there(unsigned, lambda *_, **__: None):
                self._signed[signed.name] = signed
                # What the task has is older than what we hold now; the new one is told when the old one is due.
                self._held[signed.name] = held.get(signed.name, Held(0, 1 if signed.expires else 0))
        while (due_ns := self._next_due_ns()) is not None:
            await asyncio.sleep(max(0.0, (due_ns - self._world.now_ns()) / 1e9))
            await self._renew(tells)

    async def _renew(self, tells: Tells) -> None:
        due = [each for each in self._exposed if self._is_due(each.name)]
        for signed in await self._sign_until_there([each.name for each in due], tells.say):
            self._take(signed)
        for identity in due:
            self._write(identity)
        self._remember()
        for identity in due:
            reason = f"identity {identity.name} was renewed"
            if identity.change_mode == "restart":
                tells.restart(reason)
                return  # It stands for all else.
            if identity.change_mode == "signal":
                tells.signal(identity.change_signal, reason)

    def _next_due_ns(self) -> int | None:
        dues = [held.renew_at_ns for held in self._held.values()]
        return min((due for due in dues if due is not None), default=None)

    def _is_due(self, name: str) -> bool:
        held = self._held.get(name)
        return held is not None and held.renew_at_ns is not None and held.renew_at_ns <= self._world.now_ns()

    # -- in the task's name (the port `Bearer`)

    async def token(self) -> str:
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        if signed is None:
            async with self._signing:
                signed = self._signed.get(DEFAULT_IDENTITY_NAME)
                if signed is None:
                    (signed,) = await self._sign([DEFAULT_IDENTITY_NAME])
                    self._signed[DEFAULT_IDENTITY_NAME] = signed
        return signed.jwt

    def refused(self, token: str) -> None:
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        is_exposed = any(each.name == DEFAULT_IDENTITY_NAME for each in self._exposed)
        if signed is None or signed.jwt != token or is_exposed:
            return  # What the task itself has is not exchanged behind its back.
        if self._world.now_ns() - signed.issued > DOUBT_AFTER_NS:
            del self._signed[DEFAULT_IDENTITY_NAME]

    # -- signing

    async def _sign(self, names: Sequence[str]) -> Sequence[SignedIdentity]:
        signed = await self._signer.sign(self._work.allocation_id, self._work.task.name, names)
        return [each.heard_at(self._world.now_ns()) for each in signed]

    async def _sign_until_there(self, names: Sequence[str], say: Callable[..., None]) -> Sequence[SignedIdentity]:
        """Raises NotReady where servers will never sign them."""
        again_s, waited_s, has_said = AGAIN_S, 0.0, False
        while True:
            try:
                return await self._sign(names)
            except Unreachable as error:
                why = str(error)
            except Refusal as refusal:
                why = refusal.text
                if refusal.code in FOR_GOOD:
                    raise _not_had(why) from refusal
            log.info("identities of a task cannot be had now: %s", why, extra={"task": self._work.task.name})
            if waited_s >= TELL_WAITING_S and not has_said:
                has_said = True
                say(TaskEventType.HOOK_MESSAGE, f"waits for its identity to be signed: {why}")
            await asyncio.sleep(again_s)
            waited_s += again_s
            again_s = min(again_s * 2, AGAIN_MAX_S)

    def _take(self, signed: SignedIdentity) -> None:
        self._signed[signed.name] = signed
        self._held[signed.name] = Held(signed.issued, signed.expires)

    # -- files

    def _write(self, identity: WorkloadIdentity) -> None:
        """Raises NotReady."""
        if not identity.file:
            return
        spot = self._work.spot(identity.filepath or f"secrets/{file_of(identity.name)}")
        try:
            Inside(spot.root).replace(spot.path, self._signed[identity.name].jwt.encode(), FILE_MODE)
        except (ArtifactError, OSError) as error:
            raise _not_had(f"the file of its identity {identity.name} cannot be written: {error}") from error

    def _remember(self) -> None:
        """Where it cannot be written down, an agent that comes back renews at once."""
        if any(held.expires for held in self._held.values()):
            try:
                Inside(self._work.folders.task / "private").replace(TIMES, msgspec.json.encode(self._held), 0o600)
            except (ArtifactError, OSError) as error:
                log.warning("when identities end cannot be written down: %s", error)

    def _remembered(self) -> dict[str, Held]:
        try:
            return msgspec.json.decode((self._work.folders.task / "private" / TIMES).read_bytes(), type=dict[str, Held])
        except (OSError, msgspec.MsgspecError):
            return {}


def variable_of(name: str) -> str:
    """Only what every shell hands on: what it does not would be seen in the list of processes."""
    return "TOKEN" if name == DEFAULT_IDENTITY_NAME else f"TOKEN_{_NOT_IN_NAMES.sub('_', name)}"


def file_of(name: str) -> str:
    return "nomad_token" if name == DEFAULT_IDENTITY_NAME else f"nomad_{name}.jwt"


def _not_had(why: str) -> NotReady:
    return NotReady(f"identity: {why}", TaskEventType.SETUP_FAILURE, "setup_error")
