"""The identity tokens of one task: signed by servers, given to the task as variables and files, and renewed before
they expire.

Servers decide what a token permits. The node writes a token to the disk only if the job requests a file. Across
restarts the agent remembers only when each token was signed and when it expires.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from wharf.contract.client import Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.identities import DEFAULT_IDENTITY_NAME, WorkloadIdentity
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes.messages import SignedIdentity
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.tasks.context import TaskContext, TaskSetupError, map_task_folders
from wharf.node.tasks.preparation import TaskControl
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

VARIABLE_PREFIXES: Final = ("WHARF_", "NOMAD_")
API_SOCKET_FILE: Final = "api.sock"
"""Name of the API socket in the secrets folder."""
VALIDITY_FILE: Final = ".identities"
"""In the task's private folder: when each token was signed and when it expires."""
MAX_VALIDITY_BYTES: Final = 1 << 20
"""Limit of that file; protects the memory of the node from a task that replaced it."""
FILE_MODE: Final = 0o644
"""Mode of token files; the task may run as any user."""
RENEWAL_FRACTION: Final = 0.5
"""A token is renewed after this part of its lifetime; the rest is left for an outage of the servers."""
MIN_RETRY_DELAY_S: Final = 1.0
MAX_RETRY_DELAY_S: Final = 30.0
"""The delay between attempts to sign doubles up to this limit."""
WAITING_NOTICE_DELAY_S: Final = 3.0
"""Seconds without success after which the task's history shows that the task is waiting."""
MIN_REFUSED_TOKEN_AGE_NS: Final = 60_000_000_000
"""A refused token that is older is replaced: its signing key may have been deleted."""
PERMANENT_CODES: Final = frozenset({RefusalCode.INVALID, RefusalCode.FORBIDDEN})
"""Refusals that another attempt would meet again."""
_INVALID_NAME_CHARACTERS: Final = re.compile("[^A-Za-z0-9_]")


class TokenSigner(Protocol):
    """Signs the identity tokens of tasks."""

    async def sign_identities(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        """Return the signed tokens of the named identities of a task. Raises `Refusal` and `Unreachable`."""
        ...


class TokenValidity(msgspec.Struct, frozen=True):
    """The times at which a token was signed and expires, in nanoseconds; it never expires if `expires` is 0."""

    issued: int
    expires: int  # 0: never

    @property
    def renew_at_ns(self) -> int | None:
        """The time at which the token must be renewed; `None` if it never expires."""
        if not self.expires:
            return None
        return self.issued + int((self.expires - self.issued) * RENEWAL_FRACTION)


def list_declared_identities(task: Task) -> tuple[WorkloadIdentity, ...]:
    """Return all identities of the task, the default one first."""
    return (task.identity or WorkloadIdentity(), *(task.identities or ()))


def list_exposed_identities(task: Task) -> tuple[WorkloadIdentity, ...]:
    """Return the identities that the task itself can see, as a variable or a file."""
    return tuple(identity for identity in list_declared_identities(task) if identity.env or identity.file)


class TaskIdentities:
    """The identity tokens of one task.

    Requests for the task's templates use the default token, and so have the task's rights.
    """

    def __init__(self, world: World, signer: TokenSigner, context: TaskContext) -> None:
        self._world = world
        self._signer = signer
        self._context = context
        self._exposed = list_exposed_identities(context.task)
        self._signed: dict[str, SignedIdentity] = {}
        self._validity: dict[str, TokenValidity] = {}
        self._signing = asyncio.Lock()

    # -- what the task can see

    def build_environment(self) -> dict[str, str]:
        """Return the variables with the task's tokens and the path of its API socket.

        Empty if no token is passed as a variable.
        """
        variables: dict[str, str] = {}
        for identity in self._exposed:
            signed = self._signed.get(identity.name)
            if identity.env and signed is not None:
                variables |= {
                    f"{prefix}{make_variable_name(identity.name)}": signed.jwt for prefix in VARIABLE_PREFIXES
                }
        if variables:
            secrets = map_task_folders(self._context.folders, self._context.view).secrets
            variables |= {f"{prefix}UNIX_ADDR": f"unix://{secrets}/{API_SOCKET_FILE}" for prefix in VARIABLE_PREFIXES}
        return variables

    async def prepare_task(self, record_event: Callable[..., None]) -> None:
        """Have all missing or expiring tokens signed, and write the token files. Raises `TaskSetupError`.

        Waits while no server can sign them.
        """
        missing = [
            identity
            for identity in self._exposed
            if self._is_due(identity.name, self._world.now_ns()) or identity.name not in self._signed
        ]
        if missing:
            for signed in await self._sign_with_retries([identity.name for identity in missing], record_event):
                self._store_signed(signed)
        for identity in self._exposed:
            self._write_token_file(identity)
        self._store_validity()

    # -- while the task runs

    async def keep_renewed(self, task_control: TaskControl) -> None:
        """Renew the tokens before they expire, and restart or signal the task as the job requires.

        Runs until canceled, or until no token expires. Tokens that an earlier agent process gave the task are used
        until they are due. Raises `TaskSetupError`.
        """
        unsigned = [identity.name for identity in self._exposed if identity.name not in self._signed]
        if unsigned:
            stored = self._load_validity()
            for signed in await self._sign_with_retries(unsigned, lambda *_, **__: None):
                self._signed[signed.name] = signed
                # The task has an older token than this one. It gets a new one when its own is due.
                self._validity[signed.name] = stored.get(signed.name, TokenValidity(0, 1 if signed.expires else 0))
        while (due := self._find_next_renewal()) is not None:
            # The sleep uses the monotonic clock, and is capped in case the wall clock was set back.
            due_ns, interval_ns = due
            await asyncio.sleep(max(0.0, min(due_ns - self._world.now_ns(), interval_ns) / 1e9))
            await self._renew(task_control, max(due_ns, self._world.now_ns()))

    async def _renew(self, task_control: TaskControl, until_ns: int) -> None:
        """Renew the tokens that are due until `until_ns`, write their files, and restart or signal the task if the job requires it.

        Raises `TaskSetupError`.
        """
        due_identities = [identity for identity in self._exposed if self._is_due(identity.name, until_ns)]
        for signed in await self._sign_with_retries(
            [identity.name for identity in due_identities], task_control.record_event
        ):
            self._store_signed(signed)
        for identity in due_identities:
            self._write_token_file(identity)
        self._store_validity()
        for identity in due_identities:
            reason = f"identity {identity.name} was renewed"
            if identity.change_mode == "restart":
                task_control.restart_task(reason)
                return  # A restart makes signals unnecessary.
            if identity.change_mode == "signal":
                task_control.signal_task(identity.change_signal, reason)

    def _find_next_renewal(self) -> tuple[int, int] | None:
        """Return when the next token must be renewed, and how long after its signature; `None` if none expires."""
        renewals = [(validity.renew_at_ns, validity.issued) for validity in self._validity.values()]
        return min(((due_ns, due_ns - issued) for due_ns, issued in renewals if due_ns is not None), default=None)

    def _is_due(self, name: str, until_ns: int) -> bool:
        """Return whether the token of the named identity must be renewed until `until_ns`."""
        validity = self._validity.get(name)
        return validity is not None and validity.renew_at_ns is not None and validity.renew_at_ns <= until_ns

    # -- requests in the task's name (implements `TokenSource`)

    async def get_token(self) -> str:
        """Return the token of the default identity, which is signed on first use.

        Raises `Refusal` and `Unreachable`.
        """
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        if signed is None:
            async with self._signing:
                signed = self._signed.get(DEFAULT_IDENTITY_NAME)
                if signed is None:
                    (signed,) = await self._sign([DEFAULT_IDENTITY_NAME])
                    self._signed[DEFAULT_IDENTITY_NAME] = signed
        return signed.jwt

    def on_rejected(self, token: str) -> None:
        """Delete the rejected default token if it is so old that its signing key may have been deleted.

        A token that the task itself can see is only replaced when it is renewed.
        """
        signed = self._signed.get(DEFAULT_IDENTITY_NAME)
        is_exposed = any(identity.name == DEFAULT_IDENTITY_NAME for identity in self._exposed)
        if signed is None or signed.jwt != token or is_exposed:
            return  # A token that the task can see is only replaced by a renewal.
        if self._world.now_ns() - signed.issued > MIN_REFUSED_TOKEN_AGE_NS:
            del self._signed[DEFAULT_IDENTITY_NAME]

    # -- signing

    async def _sign(self, names: Sequence[str]) -> Sequence[SignedIdentity]:
        """Return new tokens of the named identities, with their times in the clock of this node.

        Raises `Refusal` and `Unreachable`.
        """
        signed = await self._signer.sign_identities(self._context.allocation_id, self._context.task.name, names)
        return [identity.with_local_times(self._world.now_ns()) for identity in signed]

    async def _sign_with_retries(
        self, names: Sequence[str], record_event: Callable[..., None]
    ) -> Sequence[SignedIdentity]:
        """Return new tokens of the named identities; repeat with growing delays until a server signs them.

        A longer wait is added to the task's history. Raises `TaskSetupError` if servers refuse permanently.
        """
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        waited_s, has_recorded = 0.0, False
        while True:
            try:
                return await self._sign(names)
            except Unreachable as error:
                reason, retry_delay_s = str(error), backoff.next_delay_s()
            except Refusal as refusal:
                reason, retry_delay_s = refusal.text, backoff.next_delay_s(get_requested_delay_s(refusal))
                if refusal.code in PERMANENT_CODES:
                    raise _build_setup_error(reason) from refusal
            log.info("failed to get identities signed task=%s reason=%s", self._context.task.name, reason)
            if waited_s >= WAITING_NOTICE_DELAY_S and not has_recorded:
                has_recorded = True
                record_event(TaskEventType.HOOK_MESSAGE, f"waiting for its identity to be signed: {reason}")
            await asyncio.sleep(retry_delay_s)
            waited_s += retry_delay_s

    def _store_signed(self, signed: SignedIdentity) -> None:
        """Store a token and its validity in memory; it replaces the identity's earlier token."""
        self._signed[signed.name] = signed
        self._validity[signed.name] = TokenValidity(signed.issued, signed.expires)

    # -- files

    def _write_token_file(self, identity: WorkloadIdentity) -> None:
        """Write the token to the file that the job requests, if any. Raises `TaskSetupError`."""
        if not identity.file:
            return
        destination = self._context.resolve_path(
            identity.filepath or f"secrets/{make_file_name(identity.name)}", f"the file of identity {identity.name}"
        )
        try:
            ConfinedFolder(destination.root).replace_file(
                destination.path, self._signed[identity.name].jwt.encode(), FILE_MODE
            )
        except (ConfinedPathError, OSError) as error:
            raise _build_setup_error(f"cannot write the file of identity {identity.name}: {error}") from error

    def _store_validity(self) -> None:
        """Write the validity of all tokens to a file. A failure is only logged.

        If the file is missing, a restarted agent renews the tokens at once.
        """
        if any(validity.expires for validity in self._validity.values()):
            try:
                ConfinedFolder(self._context.folders.task / "private").replace_file(
                    VALIDITY_FILE, msgspec.json.encode(self._validity), 0o600
                )
            except (ConfinedPathError, OSError) as error:
                log.warning("failed to store the expiry of identities error=%s", error)

    def _load_validity(self) -> dict[str, TokenValidity]:
        """Return the validity of each token by identity name, as stored in the file; empty if it cannot be read."""
        try:
            data = ConfinedFolder(self._context.folders.task).read_file(f"private/{VALIDITY_FILE}", MAX_VALIDITY_BYTES)
            return msgspec.json.decode(data, type=dict[str, TokenValidity])
        except (ConfinedPathError, OSError, msgspec.MsgspecError):
            return {}


def make_variable_name(identity_name: str) -> str:
    """Return the name of the variable for the token of the named identity, without prefix.

    Only characters that every shell passes on are used.
    """
    return (
        "TOKEN"
        if identity_name == DEFAULT_IDENTITY_NAME
        else f"TOKEN_{_INVALID_NAME_CHARACTERS.sub('_', identity_name)}"
    )


def make_file_name(identity_name: str) -> str:
    """Return the name of the file for the token of the named identity."""
    return "nomad_token" if identity_name == DEFAULT_IDENTITY_NAME else f"nomad_{identity_name}.jwt"


def _build_setup_error(reason: str) -> TaskSetupError:
    """Return the error for a task whose identities cannot be provided for this reason."""
    return TaskSetupError(f"identity: {reason}")
