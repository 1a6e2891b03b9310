"""Who this node's tasks are: keeps the identities of each, its socket to the API, and asks servers in its name.

Of every task it is told when it is to be prepared, that it runs, and that it is over; each may be said twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from wharf.client import AsyncClient
from wharf.client.doors import Door
from wharf.model.task import Task
from wharf.model.task_state import TaskEventType
from wharf.node.agent.servers import NodeIdentity
from wharf.node.preparing.api_socket import ApiSocket
from wharf.node.preparing.identities import TaskIdentities, exposed_by
from wharf.node.preparing.tending import Tells
from wharf.node.preparing.work import NotReady, TaskWork
from wharf.wire.identity_shapes import IdentitiesRequest, SignedIdentity
from wharf.world import World

log = logging.getLogger(__name__)

NOT_RENEWED: Final = "its identities are not renewed any more"


class ServersSign:
    """The port `Signer`: by the node's own secret."""

    def __init__(self, client: AsyncClient, identity: NodeIdentity) -> None:
        self._client = client
        self._identity = identity

    async def sign(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        wanted = IdentitiesRequest(alloc_id=alloc_id, task=task, names=tuple(names))
        reply = await self._client.node_agents.identities(self._identity.id, self._identity.secret_id, wanted)
        return reply.identities


class _Named:
    def __init__(self, identities: TaskIdentities, api: ApiSocket) -> None:
        self.identities = identities
        self.api = api
        self.keeping: asyncio.Task[None] | None = None


class Naming:
    def __init__(self, world: World, client: AsyncClient, identity: NodeIdentity, doors: Sequence[Door]) -> None:
        self._world = world
        self._client = client
        self._signer = ServersSign(client, identity)
        self._doors = doors
        self._named: dict[tuple[str, str], _Named] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def environment(self, allocation_id: str, task: str) -> dict[str, str]:
        named = self._named.get((allocation_id, task))
        return named.identities.environment() if named is not None else {}

    def client_of(self, work: TaskWork) -> AsyncClient:
        """Servers, asked in the name of the task: it gets to know what it may know itself."""
        return self._client.speaking_as(self._of(work).identities)

    async def prepare(self, work: TaskWork, tells: Tells) -> None:
        """Until all is there that the task is to see. Raises NotReady."""
        if not exposed_by(work.task):
            return
        named = self._of(work)
        await named.identities.prepare(tells.say)
        try:
            await named.api.open(work.folders.secrets)
        except OSError as error:
            why = f"the socket of the API cannot be made: {error.strerror}"
            raise NotReady(why, TaskEventType.SETUP_FAILURE, "setup_error") from error

    def keep(self, of: Callable[[], TaskWork], allocation_id: str, task: Task, tells: Tells) -> None:
        """It runs, perhaps since before this agent began."""
        if not exposed_by(task):
            return
        named = self._named.get((allocation_id, task.name))
        if named is not None and named.keeping is not None:
            return
        work = of()
        named = self._of(work)
        named.keeping = self._world.start(self._keep(named, work, tells), name=f"identities of {task.name}")

    async def _keep(self, named: _Named, work: TaskWork, tells: Tells) -> None:
        try:
            await named.api.open(work.folders.secrets)
        except OSError as error:
            log.warning("the socket of the API cannot be made again: %s", error, extra={"task": work.task.name})
        try:
            await named.identities.keep(tells)
        except NotReady as error:
            log.warning("%s: %s", NOT_RENEWED, error, extra={"task": work.task.name})
            tells.say(TaskEventType.HOOK_FAILED, f"{NOT_RENEWED}: {error}")

    def end(self, allocation_id: str, task: str) -> None:
        named = self._named.pop((allocation_id, task), None)
        if named is None:
            return
        if named.keeping is not None:
            named.keeping.cancel()
        ending = self._world.start(named.api.close(), name=f"end of the socket of {task}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for allocation_id, task in list(self._named):
            self.end(allocation_id, task)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _of(self, work: TaskWork) -> _Named:
        key = (work.allocation_id, work.task.name)
        if key not in self._named:
            identities = TaskIdentities(self._world, self._signer, work)
            self._named[key] = _Named(identities, ApiSocket(self._world, self._doors))
        return self._named[key]
