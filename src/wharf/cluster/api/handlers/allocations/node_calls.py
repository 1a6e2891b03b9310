"""Requests that the node of an allocation executes: checks before the call, and the way to the node.

The server checks the request, the allocation and the caller's rights. The node does everything else.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from wharf.cluster.api.relay.members import relay_to_node_holder
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionResult, EncodedBody, StreamedBody, require_record
from wharf.cluster.server.node_channels.port import NodeCall, NoNodePath
from wharf.cluster.server.server import Server
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import ALLOCATIONS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import invalid_request

EMPTY_PARAMETERS: Final[Mapping[str, str | bool | int]] = MappingProxyType({})
AllocationCheck = Callable[[Allocation, Job | None], None]
"""Raises a `Refusal` if the request is not possible for the allocation. The job is the version that was placed."""


class NodeCaller:
    """Sends requests to nodes, over a connection of this process or through the server process that holds the
    connection.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    async def call_node(
        self,
        request: Request,
        node_id: str,
        *,
        allocation_id: str = "",
        changed_parameters: Mapping[str, str | bool | int] = EMPTY_PARAMETERS,
    ) -> ActionResult:
        """Return the node's reply to the request. Raises `Refusal` if the node cannot be reached.

        `changed_parameters` replace parameters of the request.
        """
        try:
            channel = self._server.node_channels.channel_to(node_id)
        except NoNodePath:
            return await relay_to_node_holder(self._server, request, node_id, changed_parameters)
        reply = await channel.call(build_node_call(request, allocation_id, changed_parameters))
        if reply.parts is not None:
            return ActionResult(StreamedBody(reply.parts, reply.content_type))
        return ActionResult(EncodedBody(reply.body, reply.content_type))

    async def call_allocation_node(self, request: Request, check: AllocationCheck | None = None) -> ActionResult:
        """Return the reply of the node that runs the allocation of the path.

        Raises `Refusal` as `check` and the node do.
        """
        allocation = await self.require_allocation(request, check)
        return await self.call_node(request, allocation.node_id, allocation_id=allocation.id)

    async def require_allocation(self, request: Request, check: AllocationCheck | None = None) -> Allocation:
        """Return the allocation of the path. Raises `Refusal` if it is unknown, the caller lacks access or `check`
        fails.

        `check` is called with the allocation and the job version that it runs; `None` if that is no longer stored.
        """
        allocation_id = request.get_path_value("alloc_id")
        allocation = await require_record(
            self._server, ALLOCATIONS, allocation_id, not_found_text=f'Unknown allocation "{allocation_id}"'
        )
        request.require_permission(namespace=allocation.namespace)
        if check is not None:
            check(allocation, find_allocation_job(self._server.replica, allocation))
        return allocation


def build_node_call(
    request: Request, allocation_id: str, changed_parameters: Mapping[str, str | bool | int] = EMPTY_PARAMETERS
) -> NodeCall:
    """Return the request as a message to the node.

    Its verb is the endpoint's name without `client.`, such as `restart`. `changed_parameters` replace parameters of the
    request.
    """
    verb = request.endpoint.name.removeprefix("client.")
    parameters = {name: value for name, value in request.parameters.items() if not isinstance(value, tuple)}
    return NodeCall(verb, allocation_id, {**parameters, **changed_parameters}, request.body)


def check_task(allocation: Allocation, job: Job | None, task: str) -> None:
    """Raise a `Refusal` if the allocation's group has no such task. An empty name means all tasks."""
    if task and job is not None and find_task_driver(allocation, job, task) is None:
        raise invalid_request(f'unknown task name "{task}"')


def find_task_driver(allocation: Allocation, job: Job | None, task: str) -> str | None:
    """Return the driver of the task, or `None` if the allocation's group has no such task."""
    group = job.find_group(allocation.task_group) if job is not None else None
    drivers: Mapping[str, Any] = {each.name: each.driver for each in (group.tasks if group else None) or ()}
    return drivers.get(task)
