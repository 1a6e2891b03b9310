"""Keeps the identities and the API socket of every task on this node, and provides clients that act in a task's name.

Every call may be repeated: preparing, renewing and releasing the same task twice has no further effect.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from wharf.contract.client import AsyncClient
from wharf.contract.client.relay.dialers import Dialer
from wharf.contract.model.allocations.task_states import TaskEventType
from wharf.contract.model.jobs.groups import Task
from wharf.contract.wire.nodes.messages import IdentitiesRequest, SignedIdentity
from wharf.node.credentials import NodeCredentials
from wharf.node.open_files import FairSlots
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.identities.api_socket import ApiSocket
from wharf.node.tasks.identities.tokens import TaskIdentities, list_exposed_identities
from wharf.node.tasks.preparation import TaskControl
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)


class ServerSigner:
    """Requests signatures of identity tokens from servers, authenticated by the node's secret."""

    def __init__(self, client: AsyncClient, identity: NodeCredentials) -> None:
        self._client = client
        self._identity = identity

    async def sign_identities(self, alloc_id: str, task: str, names: Sequence[str]) -> Sequence[SignedIdentity]:
        """Have a server sign the named identities of the task, and return them. Raises `Refusal` and `Unreachable`."""
        request = IdentitiesRequest(alloc_id=alloc_id, task=task, names=tuple(names))
        reply = await self._client.node_agents.sign_identities(self._identity.id, self._identity.secret_id, request)
        return reply.identities


class _IdentifiedTask:
    """The identities and the API socket of one task, and the asyncio task that renews the identities."""

    def __init__(self, identities: TaskIdentities, api: ApiSocket) -> None:
        self.identities = identities
        self.api = api
        self.renewal: asyncio.Task[None] | None = None


class TaskIdentityManager:
    """The identities and API sockets of all tasks of the node."""

    def __init__(
        self,
        world: World,
        client: AsyncClient,
        identity: NodeCredentials,
        server_endpoints: Sequence[Dialer],
        *,
        connection_slots: FairSlots,
    ) -> None:
        """`connection_slots` limits the connections of all tasks to the API, by namespace."""
        self._connection_slots = connection_slots
        self._world = world
        self._client = client
        self._signer = ServerSigner(client, identity)
        self._server_endpoints = server_endpoints
        self._identified_tasks: dict[tuple[str, str], _IdentifiedTask] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def build_environment(self, allocation_id: str, task: str) -> dict[str, str]:
        """Return the variables with the task's tokens and the path of its API socket; empty if it has none."""
        identified_task = self._identified_tasks.get((allocation_id, task))
        return identified_task.identities.build_environment() if identified_task is not None else {}

    def build_task_client(self, context: TaskContext) -> AsyncClient:
        """Return a client whose requests have the token of the task, and so the task's rights."""
        return self._client.with_token_source(self._get_or_create(context).identities)

    async def prepare_task(self, context: TaskContext, task_control: TaskControl) -> None:
        """Have servers sign the identities that the task can see, and open its API socket. Raises `TaskSetupError`.

        Does nothing if the task can see no identity.
        """
        if not list_exposed_identities(context.task):
            return
        identified_task = self._get_or_create(context)
        await identified_task.identities.prepare_task(task_control.record_event)
        try:
            await identified_task.api.open(context.folders.secrets)
        except OSError as error:
            reason = f"cannot create the API socket: {error.strerror}"
            raise TaskSetupError(reason) from error

    def keep_renewed(
        self, build_context: Callable[[], TaskContext], allocation_id: str, task: Task, task_control: TaskControl
    ) -> None:
        """Begin to renew the identities of a running task, which an earlier agent process may have started.

        Does nothing if the task can see no identity, or if they are already renewed.
        """
        if not list_exposed_identities(task):
            return
        identified_task = self._identified_tasks.get((allocation_id, task.name))
        if identified_task is not None and identified_task.renewal is not None:
            return
        context = build_context()
        identified_task = self._get_or_create(context)
        identified_task.renewal = start_supervised(
            self._world,
            self._renew(identified_task, context, task_control),
            name=f"identities of {task.name}",
            on_failure=lambda error: task_control.record_event(
                TaskEventType.HOOK_FAILED,
                f"the task's identities are no longer renewed: unexpected error of the node: {type(error).__name__}; its "
                "log has the details",
            ),
        )

    async def _renew(self, identified_task: _IdentifiedTask, context: TaskContext, task_control: TaskControl) -> None:
        """Open the API socket and renew the identities until canceled.

        Failures are logged; a failed renewal is also added to the task's history.
        """
        try:
            await identified_task.api.open(context.folders.secrets)
        except OSError as error:
            log.warning("failed to create the API socket of a task task=%s error=%s", context.task.name, error)
        try:
            await identified_task.identities.keep_renewed(task_control)
        except TaskSetupError as error:
            log.warning("failed to renew identities task=%s error=%s", context.task.name, error)
            task_control.record_event(TaskEventType.HOOK_FAILED, f"failed to renew identities: {error}")

    def release(self, allocation_id: str, task: str) -> None:
        """Stop renewing the identities of a task, and begin to close its API socket."""
        identified_task = self._identified_tasks.pop((allocation_id, task), None)
        if identified_task is None:
            return
        if identified_task.renewal is not None:
            identified_task.renewal.cancel()
        closing = start_supervised(self._world, identified_task.api.close(), name=f"end of the socket of {task}")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Release the identities and sockets of all tasks, and wait until the sockets are closed."""
        for allocation_id, task in list(self._identified_tasks):
            self.release(allocation_id, task)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _get_or_create(self, context: TaskContext) -> _IdentifiedTask:
        """Return the identities and the API socket of the task; they are created on first use."""
        key = (context.allocation_id, context.task.name)
        if key not in self._identified_tasks:
            identities = TaskIdentities(self._world, self._signer, context)
            self._identified_tasks[key] = _IdentifiedTask(
                identities,
                ApiSocket(
                    self._world,
                    self._server_endpoints,
                    self._client.servers,
                    slots=self._connection_slots,
                    namespace=context.namespace,
                ),
            )
        return self._identified_tasks[key]
