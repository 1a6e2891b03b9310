"""Job actions: commands that a job declares by name. A request for one becomes an exec request for its command."""

from collections.abc import Iterator

import msgspec

from wharf.cluster.api.index_lists import find_newest_in_slices
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.server.server import Server
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.groups import Task, TaskAction
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import invalid_request, not_found
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME


class JobActionResolver:
    """Finds the allocation, the task and the command of a job action, which is a command that a job declares by name."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def build_exec_request(self, request: Request) -> Request:
        """Return the exec request (a command in a running task) that runs the requested job action.

        Raises `Refusal` if the action or a running allocation with it is not found.
        """
        name = request.get_text("action")
        if not name:
            raise invalid_request("must provide action name")
        allocation = await self._find_allocation(request, name)
        task, action = self._find_action(allocation, name, request.get_text("task"))
        command = msgspec.json.encode([action.command, *(action.args or ())]).decode()
        parameters = {"task": task.name, "command": command, "tty": request.get_flag("tty")}
        query = {name: "true" if value is True else str(value) for name, value in parameters.items() if value}
        return msgspec.structs.replace(
            request,
            endpoint=ENDPOINT_BY_NAME["client.exec"],
            path_values={"alloc_id": allocation.id},
            parameters=parameters,
            query=query,
        )

    async def reject_plain_request(self, request: Request) -> ActionResult:
        """Refuse a request for a job action that is not a websocket.

        Errors of the request itself are reported first.
        """
        await self.build_exec_request(request)
        raise invalid_request("commands run over a websocket: send the request with an upgrade")

    async def _find_allocation(self, request: Request, action_name: str) -> Allocation:
        """Return the requested allocation, else the newest running one whose tasks declare the action.

        Raises `Refusal` if none.
        """
        replica, key = self._server.replica, (request.namespace, request.get_path_value("job_id"))
        if replica.get(JOBS, *key) is None:
            raise not_found(f'Unknown job "{key[1]}"')
        if allocation_id := request.get_text("allocID"):
            allocation = replica.get(ALLOCATIONS, allocation_id)
            if allocation is None or (allocation.namespace, allocation.job_id) != key:
                raise not_found(f'Unknown allocation "{allocation_id}" of job "{key[1]}"')
            return allocation
        group, task = request.get_text("group"), request.get_text("task")
        declares: dict[tuple[int, int, str], bool] = {}

        def has_action(allocation: Allocation) -> bool:
            """Return whether a task of the allocation declares the action. All allocations of one group of a version do."""
            version = (allocation.job_create_index, allocation.job_version, allocation.task_group)
            if version not in declares:
                declares[version] = any(
                    action.name == action_name and task in ("", owner.name)
                    for owner, action in _list_actions(self._get_job(allocation), allocation)
                )
            return declares[version]

        newest = await find_newest_in_slices(
            replica,
            ALLOCATIONS_OF_JOB,
            *key,
            is_selected=lambda each: (
                each.client_status is ClientStatus.RUNNING and group in ("", each.task_group) and has_action(each)
            ),
            work=self._server.make_list_work(request.caller.owner_key),
        )
        if newest is None:
            raise not_found(f'no running allocation of job "{key[1]}" has the action "{action_name}"')
        return newest

    def _find_action(self, allocation: Allocation, name: str, task: str) -> tuple[Task, TaskAction]:
        """Return the task and its action from the job version that the allocation runs.

        `task` is empty if any task may be meant. Raises `Refusal` if no task or several declare the action.
        """
        declared = list(_list_actions(self._get_job(allocation), allocation))
        found = [each for each in declared if each[1].name == name and task in ("", each[0].name)]
        if len(found) > 1:
            raise invalid_request(
                f'several tasks have the action "{name}": set `task` to one of {", ".join(each[0].name for each in found)}'
            )
        if not found:
            where = f'task "{task}"' if task else f'group "{allocation.task_group}"'
            names = ", ".join(f"{owner.name}/{action.name}" for owner, action in declared) or "none"
            raise not_found(f'{where} has no action "{name}"; declared actions: {names}')
        return found[0]

    def _get_job(self, allocation: Allocation) -> Job | None:
        """Return the job version that the allocation runs, or `None` if it is no longer stored."""
        return find_allocation_job(self._server.replica, allocation)


def _list_actions(job: Job | None, allocation: Allocation) -> Iterator[tuple[Task, TaskAction]]:
    """Yield each task of the allocation's group with each action that it declares."""
    group = job.find_group(allocation.task_group) if job is not None else None
    for task in (group.tasks if group is not None else None) or ():
        for action in task.actions or ():
            yield task, action


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"job.action": JobActionResolver(server).reject_plain_request}
