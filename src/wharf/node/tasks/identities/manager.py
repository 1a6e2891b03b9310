"""Who this node's tasks are: keeps the identities of each, its socket to the API, and asks servers in its name.

Of every task it is told when it is to be prepared, that it runs, and that it is over; each may be said twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from wharf.contract.client import AsyncClient
from wharf.contract.client.relay.dialers import Dialer
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.wire.nodes.messages import IdentitiesRequest, SignedIdentity
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.identities.api_socket import ApiSocket
from wharf.node.tasks.identities.tokens import TaskIdentities, list_exposed_identities
from wharf.node.tasks.preparation import TaskControl
from wharf.world import World

log = logging.getLogger(__name__)

NOT_RENEWED_MESSAGE: Final = "its identities are not renewed any more"


class ServerSigner:
    """The port `Signer`: by the node's own secret."""

    def __init__(self, client: AsyncClient, identity: NodeCredentials) -> None:
        self._client = client
        self._identity = identity

    async def sign_identities(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        wanted = IdentitiesRequest(alloc_id=alloc_id, task=task, names=tuple(names))
        reply = await self._client.node_agents.sign_identities(self._identity.id, self._identity.secret_id, wanted)
        return reply.identities


class _Named:
    def __init__(self, identities: TaskIdentities, api: ApiSocket) -> None:
        self.identities = identities
        self.api = api
        self.keeping: asyncio.Task[None] | None = None


class TaskIdentityManager:
    def __init__(
        self, world: World, client: AsyncClient, identity: NodeCredentials, server_endpoints: Sequence[Dialer]
    ) -> None:
        self._world = world
        self._client = client
        self._signer = ServerSigner(client, identity)
        self._doors = server_endpoints
        self._named: dict[tuple[str, str], _Named] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        named = self._named.get((allocation_id, task))
        return named.identities.build_environment() if named is not None else {}

    def build_task_client(self, work: TaskContext) -> AsyncClient:
        """Servers, asked in the name of the task: it gets to know what it may know itself."""
        return self._client.with_token_source(self._of(work).identities)

    async def prepare_task(self, work: TaskContext, tells: TaskControl) -> None:
        """Until all is there that the task is to see. Raises TaskSetupError."""
        if not list_exposed_identities(work.task):
            return
        named = self._of(work)
        await named.identities.prepare_task(tells.record_event)
        try:
            await named.api.open(work.folders.secrets)
        except OSError as error:
            why = f"the socket of the API cannot be made: {error.strerror}"
            raise TaskSetupError(why, TaskEventType.SETUP_FAILURE, "setup_error") from error

    def keep_renewed(
        self, build_context: Callable[[], TaskContext], allocation_id: str, task: Task, tells: TaskControl
    ) -> None:
        """It runs, perhaps since before this agent began."""
        if not list_exposed_identities(task):
            return
        named = self._named.get((allocation_id, task.name))
        if named is not None and named.keeping is not None:
            return
        work = build_context()
        named = self._of(work)
        named.keeping = self._world.start_task(self._keep(named, work, tells), name=f"identities of {task.name}")

    async def _keep(self, named: _Named, work: TaskContext, tells: TaskControl) -> None:
        try:
            await named.api.open(work.folders.secrets)
        except OSError as error:
            log.warning("the socket of the API cannot be made again: %s", error, extra={"task": work.task.name})
        try:
            await named.identities.keep_renewed(tells)
        except TaskSetupError as error:
            log.warning("%s: %s", NOT_RENEWED_MESSAGE, error, extra={"task": work.task.name})
            tells.record_event(TaskEventType.HOOK_FAILED, f"{NOT_RENEWED_MESSAGE}: {error}")

    def release(self, allocation_id: str, task: str) -> None:
        named = self._named.pop((allocation_id, task), None)
        if named is None:
            return
        if named.keeping is not None:
            named.keeping.cancel()
        ending = self._world.start_task(named.api.close(), name=f"end of the socket of {task}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for allocation_id, task in list(self._named):
            self.release(allocation_id, task)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _of(self, work: TaskContext) -> _Named:
        key = (work.allocation_id, work.task.name)
        if key not in self._named:
            identities = TaskIdentities(self._world, self._signer, work)
            self._named[key] = _Named(identities, ApiSocket(self._world, self._doors))
        return self._named[key]
