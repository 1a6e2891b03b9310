"""Commands that a job offers, by name: turned into the same command beside a task that anybody could ask for."""

from collections.abc import Iterator

import msgspec

from wharf.api.answers import Act, Done
from wharf.api.request import Request
from wharf.model.allocation import Allocation, ClientStatus
from wharf.model.job import Job
from wharf.model.refusal import invalid, unknown
from wharf.model.task import Action, Task
from wharf.server.server import Server
from wharf.state.tables import ALLOCATIONS, ALLOCATIONS_OF_JOB, JOB_VERSIONS, JOBS
from wharf.wire.endpoints import BY_NAME


class JobActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    def as_command(self, request: Request) -> Request:
        """The request for the command beside a task that is meant. Raises Refusal."""
        name = request.text("action")
        if not name:
            raise invalid("must provide action name")
        allocation = self._allocation_of(request, name)
        task, action = self._found(allocation, name, request.text("task"))
        command = msgspec.json.encode([action.command, *(action.args or ())]).decode()
        parameters = {"task": task.name, "command": command, "tty": request.flag("tty")}
        query = {name: "true" if value is True else str(value) for name, value in parameters.items() if value}
        return msgspec.structs.replace(
            request,
            endpoint=BY_NAME["client.exec"],
            path_values={"alloc_id": allocation.id},
            parameters=parameters,
            query=query,
        )

    async def without_socket(self, request: Request) -> Done:
        """Nothing runs; what is wrong with the question is told all the same."""
        self.as_command(request)
        raise invalid("commands run over a websocket: ask with an upgrade")

    def _allocation_of(self, request: Request, name: str) -> Allocation:
        """The one that is named, or else the newest that runs and has a task with this action."""
        replica, key = self._server.replica, (request.namespace, request.value("job_id"))
        if replica.get(JOBS, *key) is None:
            raise unknown(f'Unknown job "{key[1]}"')
        if allocation_id := request.text("allocID"):
            allocation = replica.get(ALLOCATIONS, allocation_id)
            if allocation is None or (allocation.namespace, allocation.job_id) != key:
                raise unknown(f'Unknown allocation "{allocation_id}" of job "{key[1]}"')
            return allocation
        group, task = request.text("group"), request.text("task")
        running = [
            each
            for each in replica.those(ALLOCATIONS_OF_JOB, *key)
            if each.client_status is ClientStatus.RUNNING
            and group in ("", each.task_group)
            and any(action.name == name and task in ("", of.name) for of, action in _actions(self._job(each), each))
        ]
        if not running:
            raise unknown(f'no allocation of "{key[1]}" runs that offers the action "{name}"')
        return max(running, key=lambda each: (each.create_index, each.id))

    def _found(self, allocation: Allocation, name: str, task: str) -> tuple[Task, Action]:
        """As the allocation's version of the job has it."""
        offered = list(_actions(self._job(allocation), allocation))
        found = [each for each in offered if each[1].name == name and task in ("", each[0].name)]
        if len(found) > 1:
            raise invalid(
                f'several tasks offer "{name}": give the `task`, one of {_names(each[0].name for each in found)}'
            )
        if not found:
            beside = f'the task "{task}"' if task else allocation.task_group
            what = _names(f"{of.name}/{action.name}" for of, action in offered) or "none"
            raise unknown(f'{beside} offers no action "{name}"; there are: {what}')
        return found[0]

    def _job(self, allocation: Allocation) -> Job | None:
        return self._server.replica.get(JOB_VERSIONS, allocation.namespace, allocation.job_id, allocation.job_version)


def _actions(job: Job | None, allocation: Allocation) -> Iterator[tuple[Task, Action]]:
    group = job.group(allocation.task_group) if job is not None else None
    for task in (group.tasks if group is not None else None) or ():
        for action in task.actions or ():
            yield task, action


def _names(names: Iterator[str]) -> str:
    return ", ".join(names)


def acts_of(server: Server) -> dict[str, Act]:
    return {"job.action": JobActions(server).without_socket}
