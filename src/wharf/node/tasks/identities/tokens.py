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

from wharf.contract.client import Unreachable
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.identities import DEFAULT_IDENTITY_NAME, WorkloadIdentity
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes.messages import SignedIdentity
from wharf.node.artifacts import ArtifactError
from wharf.node.artifacts.confined_folder import ConfinedFolder
from wharf.node.tasks.context import TaskContext, TaskSetupError, map_task_folders
from wharf.node.tasks.preparation import TaskControl
from wharf.world import World

log = logging.getLogger(__name__)

VARIABLE_PREFIXES: Final = ("WHARF_", "NOMAD_")
API_SOCKET_FILE: Final = "api.sock"
VALIDITY_FILE: Final = ".identities"
"""In the agent's own folder of the task."""
FILE_MODE: Final = 0o644
RENEWAL_FRACTION: Final = 0.5
"""Of its life: as long again remains for an outage of the servers."""
MIN_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 30.0
WAITING_NOTICE_DELAY_S: Final = 3.0
MIN_REFUSED_TOKEN_AGE_NS: Final = 60_000_000_000
"""A token that was refused is signed anew, if it is older than this: its key may be gone."""
PERMANENT_CODES: Final = frozenset({RefusalCode.INVALID, RefusalCode.FORBIDDEN})
_NOT_IN_NAMES: Final = re.compile("[^A-Za-z0-9_]")


class IdentitySigner(Protocol):
    async def sign_identities(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        """Raises Refusal and Unreachable."""
        ...


class TokenValidity(msgspec.Struct, frozen=True):
    """When the identity that the task has was signed, and when it ends; 0: never."""

    issued: int
    expires: int

    @property
    def renew_at_ns(self) -> int | None:
        if not self.expires:
            return None
        return self.issued + int((self.expires - self.issued) * RENEWAL_FRACTION)


def list_declared_identities(task: Task) -> tuple[WorkloadIdentity, ...]:
    return (task.identity or WorkloadIdentity(), *(task.identities or ()))


def list_exposed_identities(task: Task) -> tuple[WorkloadIdentity, ...]:
    """Those that the task itself is to see."""
    return tuple(each for each in list_declared_identities(task) if each.env or each.file)


class TaskIdentities:
    """Of one task. A `Bearer`: what is asked for its templates is asked in its name. `close` it when it is over."""

    def __init__(self, world: World, signer: IdentitySigner, work: TaskContext) -> None:
        self._world = world
        self._signer = signer
        self._work = work
        self._exposed = list_exposed_identities(work.task)
        self._signed: dict[str, SignedIdentity] = {}
        self._held: dict[str, TokenValidity] = {}
        self._signing = asyncio.Lock()

    # -- what the task sees

    def build_environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for identity in self._exposed:
            signed = self._signed.get(identity.name)
            if identity.env and signed is not None:
                found |= {f"{prefix}{make_variable_name(identity.name)}": signed.jwt for prefix in VARIABLE_PREFIXES}
        if found:
            secrets = map_task_folders(self._work.folders, self._work.view).secrets
            found |= {f"{prefix}UNIX_ADDR": f"unix://{secrets}/{API_SOCKET_FILE}" for prefix in VARIABLE_PREFIXES}
        return found

    async def prepare_task(self, say: Callable[..., None]) -> None:
        """Until the task has all that it is to see. Raises TaskSetupError."""
        missing = [each for each in self._exposed if self._is_due(each.name) or each.name not in self._signed]
        if missing:
            for signed in await self._sign_until_there([each.name for each in missing], say):
                self._take(signed)
        for identity in self._exposed:
            self._write(identity)
        self._remember()

    # -- while it runs

    async def keep_renewed(self, task_control: TaskControl) -> None:
        """Until cancelled. Tokens that the task has since before this agent began are good until they end."""
        unsigned = [each.name for each in self._exposed if each.name not in self._signed]
        if unsigned:
            held = self._remembered()
            for signed in await self._sign_until_there(unsigned, lambda *_, **__: None):
                self._signed[signed.name] = signed
                # What the task has is older than what we hold now; the new one is told when the old one is due.
                self._held[signed.name] = held.get(signed.name, TokenValidity(0, 1 if signed.expires else 0))
        while (due_ns := self._next_due_ns()) is not None:
            await asyncio.sleep(max(0.0, (due_ns - self._world.now_ns()) / 1e9))
            await self._renew(task_control)

    async def _renew(self, tells: TaskControl) -> None:
        due = [each for each in self._exposed if self._is_due(each.name)]
        for signed in await self._sign_until_there([each.name for each in due], tells.record_event):
            self._take(signed)
        for identity in due:
            self._write(identity)
        self._remember()
        for identity in due:
            reason = f"identity {identity.name} was renewed"
            if identity.change_mode == "restart":
                tells.restart_task(reason)
                return  # It stands for all else.
            if identity.change_mode == "signal":
                tells.signal_task(identity.change_signal, reason)

    def _next_due_ns(self) -> int | None:
        dues = [held.renew_at_ns for held in self._held.values()]
        return min((due for due in dues if due is not None), default=None)

    def _is_due(self, name: str) -> bool:
        held = self._held.get(name)
        return held is not None and held.renew_at_ns is not None and held.renew_at_ns <= self._world.now_ns()

    # -- in the task's name (the port `Bearer`)

    async def get_token(self) -> str:
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        if signed is None:
            async with self._signing:
                signed = self._signed.get(DEFAULT_IDENTITY_NAME)
                if signed is None:
                    (signed,) = await self._sign([DEFAULT_IDENTITY_NAME])
                    self._signed[DEFAULT_IDENTITY_NAME] = signed
        return signed.jwt

    def on_rejected(self, token: str) -> None:
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        is_exposed = any(each.name == DEFAULT_IDENTITY_NAME for each in self._exposed)
        if signed is None or signed.jwt != token or is_exposed:
            return  # What the task itself has is not exchanged behind its back.
        if self._world.now_ns() - signed.issued > MIN_REFUSED_TOKEN_AGE_NS:
            del self._signed[DEFAULT_IDENTITY_NAME]

    # -- signing

    async def _sign(self, names: Sequence[str]) -> Sequence[SignedIdentity]:
        signed = await self._signer.sign_identities(self._work.allocation_id, self._work.task.name, names)
        return [each.with_local_times(self._world.now_ns()) for each in signed]

    async def _sign_until_there(self, names: Sequence[str], say: Callable[..., None]) -> Sequence[SignedIdentity]:
        """Raises TaskSetupError where servers will never sign them."""
        again_s, waited_s, has_said = MIN_RETRY_DELAY_S, 0.0, False
        while True:
            try:
                return await self._sign(names)
            except Unreachable as error:
                why = str(error)
            except Refusal as refusal:
                why = refusal.text
                if refusal.code in PERMANENT_CODES:
                    raise _not_had(why) from refusal
            log.info("identities of a task cannot be had now: %s", why, extra={"task": self._work.task.name})
            if waited_s >= WAITING_NOTICE_DELAY_S and not has_said:
                has_said = True
                say(TaskEventType.HOOK_MESSAGE, f"waits for its identity to be signed: {why}")
            await asyncio.sleep(again_s)
            waited_s += again_s
            again_s = min(again_s * 2, MAX_RETRY_DELAY_S)

    def _take(self, signed: SignedIdentity) -> None:
        self._signed[signed.name] = signed
        self._held[signed.name] = TokenValidity(signed.issued, signed.expires)

    # -- files

    def _write(self, identity: WorkloadIdentity) -> None:
        """Raises TaskSetupError."""
        if not identity.file:
            return
        spot = self._work.resolve_path(identity.filepath or f"secrets/{make_file_name(identity.name)}")
        try:
            ConfinedFolder(spot.root).replace_file(spot.path, self._signed[identity.name].jwt.encode(), FILE_MODE)
        except (ArtifactError, OSError) as error:
            raise _not_had(f"the file of its identity {identity.name} cannot be written: {error}") from error

    def _remember(self) -> None:
        """Where it cannot be written down, an agent that comes back renews at once."""
        if any(held.expires for held in self._held.values()):
            try:
                ConfinedFolder(self._work.folders.task / "private").replace_file(
                    VALIDITY_FILE, msgspec.json.encode(self._held), 0o600
                )
            except (ArtifactError, OSError) as error:
                log.warning("when identities end cannot be written down: %s", error)

    def _remembered(self) -> dict[str, TokenValidity]:
        try:
            return msgspec.json.decode(
                (self._work.folders.task / "private" / VALIDITY_FILE).read_bytes(), type=dict[str, TokenValidity]
            )
        except (OSError, msgspec.MsgspecError):
            return {}


def make_variable_name(name: str) -> str:
    """Only what every shell hands on: what it does not would be seen in the list of processes."""
    return "TOKEN" if name == DEFAULT_IDENTITY_NAME else f"TOKEN_{_NOT_IN_NAMES.sub('_', name)}"


def make_file_name(name: str) -> str:
    return "nomad_token" if name == DEFAULT_IDENTITY_NAME else f"nomad_{name}.jwt"


def _not_had(why: str) -> TaskSetupError:
    return TaskSetupError(f"identity: {why}", TaskEventType.SETUP_FAILURE, "setup_error")
