"""`wharf job logs`: prints the logs of all tasks of a job, each line with its allocation and task."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from wharf.cli.alloc.logs import check_pattern
from wharf.cli.common.allocation_selection import (
    AllocationIndexes,
    get_index,
    get_natural_order,
    index_option,
    select_newest,
)
from wharf.cli.common.errors import CliError
from wharf.cli.common.options import raw_option
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import STORE_OUTAGE_LIMIT_S, QuietServerCommand, Session
from wharf.cli.common.waiting_notices import NodeNotices
from wharf.cli.completion import complete_jobs
from wharf.cli.job.task_logs import STREAMS, LineSettings, PrefixColumns, TaskLogs, describe_missing_log
from wharf.world.tasks import cancel_tasks

if TYPE_CHECKING:
    from wharf.contract.client import AsyncClient
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.wire.jobs.messages import JobStub

MAX_READ_AHEAD: Final = 8
"""Tasks whose logs are read while earlier logs are printed. A node reads logs for all users, and each log takes memory here."""
MAX_FOLLOWED_LOGS: Final = 200
"""Logs that are followed at the same time. A node lets one namespace follow 256; with few open files allowed, fewer."""
POLL_WAIT_S: Final = 5.0
"""How long one blocking query for new allocations waits while logs are followed."""
RETAINED_LOGS_TEXT: Final = (
    "{who} no longer {has} these files, or {does} not reply; showing the last lines kept by the servers"
)


@click.command(cls=QuietServerCommand)
@click.argument("job_id", metavar="JOB", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, also of allocations that start later.")
@click.option("--group", default="", help="Only this group.")
@click.option("--task", default="", help="Only this task.")
@click.option("--stderr", is_flag=True, help="Only standard error.")
@click.option("--stdout", is_flag=True, help="Only standard output.")
@click.option("--grep", "pattern", default="", help="Only lines that match this regular expression.")
@click.option("--since", default="", help="Only logs that were written to within this duration, such as `10m`.")
@index_option
@click.option(
    "--failed", is_flag=True, help="Only allocations that failed or were lost, also those that were replaced."
)
@click.option("-n", "lines", type=click.IntRange(0), default=None, help="Begin with the last N lines of each log.")
@click.option("--all-allocs", is_flag=True, help="Also allocations that were replaced.")
@raw_option
def logs(
    session: Session,
    job_id: str,
    follow: bool,
    group: str,
    task: str,
    stderr: bool,
    stdout: bool,
    pattern: str,
    since: str,
    indexes: AllocationIndexes | None,
    failed: bool,
    lines: int | None,
    all_allocs: bool,
    raw: bool,
) -> None:
    """Print the logs of all tasks of a job.

    Each line begins with its allocation and task. `!` marks lines of standard error.

    wharf job logs train --failed -n 5
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    if (found.periodic or found.parameterized_job) and not found.parent_id and not follow:
        raise CliError(
            f"{found.id} runs no tasks itself; print the logs of a child, such as `wharf job logs {found.id}/…`; "
            f"`wharf job status {found.id}` lists the children"
        )
    _require_group_and_task(session, found, group, task)
    selection = TaskSelection(group, task, indexes, is_failed_only=failed, is_all_allocations=all_allocs)
    line_settings = LineSettings(
        streams=tuple(name for name, is_chosen in zip(STREAMS, (stdout, stderr), strict=True) if is_chosen) or STREAMS,
        lines=lines,
        pattern=re.compile(check_pattern(pattern)) if pattern else None,
        since_ns=session.now_ns() - _parse_since_ns(since) if since else 0,
        is_raw=raw,
    )
    asyncio.run(_print_logs(session, found.id, found.namespace, selection, line_settings, is_following=follow))


def _require_group_and_task(session: Session, job: "JobStub", group: str, task: str) -> None:
    """Raise CliError if neither the job nor one of its allocations has a group or task of this name."""
    if not (group or task):
        return
    specification = session.client.jobs.read(job.id, namespace=job.namespace).value
    tasks_by_group = {each.name: {one.name for one in each.tasks or ()} for each in specification.groups}
    # Groups and tasks of earlier versions may still have logs.
    for allocation in session.client.jobs.allocations(job.id, namespace=job.namespace).value:
        tasks_by_group.setdefault(allocation.task_group, set()).update(allocation.task_states or ())
    if group and group not in tasks_by_group:
        raise CliError(f"job {job.id} has no group {group}; its groups are {', '.join(sorted(tasks_by_group))}")
    owner = f"group {group} of job {job.id}" if group else f"job {job.id}"
    tasks = {name for each, names in tasks_by_group.items() if group in ("", each) for name in names}
    if task and task not in tasks:
        raise CliError(f"{owner} has no task {task}; its tasks are {', '.join(sorted(tasks))}")


def _parse_since_ns(text: str) -> int:
    """Return the duration that `--since` names, in nanoseconds. Raises CliError."""
    from wharf.contract.model.times import DurationError, parse_duration_ns

    try:
        return parse_duration_ns(text)
    except DurationError as error:
        raise CliError(f"--since {text}: {error}") from None


class TaskSelection:
    """The selection of tasks whose logs are printed. Empty texts and `None` stand for all."""

    def __init__(
        self,
        group: str,
        task: str,
        indexes: AllocationIndexes | None,
        *,
        is_failed_only: bool,
        is_all_allocations: bool,
    ) -> None:
        self._group = group
        self._task = task
        self._indexes = indexes
        self._is_failed_only = is_failed_only
        self._is_all_allocations = is_all_allocations

    def select_tasks(self, allocations: "list[AllocationStub]") -> "list[tuple[AllocationStub, str]]":
        """Return the selected tasks as (allocation, task name), by group and index."""
        chosen = [allocation for allocation in allocations if self._includes(allocation)]
        if not self._is_all_allocations:
            chosen = select_newest(chosen)
        return [
            (allocation, task)
            for allocation in sorted(chosen, key=get_natural_order)
            for task in sorted(allocation.task_states or {})
            if not self._task or task == self._task
        ]

    @property
    def selects_all(self) -> bool:
        """Whether every task of the job is selected."""
        return not (self._group or self._task or self._is_failed_only) and self._indexes is None

    @property
    def indexes(self) -> AllocationIndexes | None:
        """The selected indexes; None if all are selected."""
        return self._indexes

    @property
    def group(self) -> str:
        """The selected group; empty for all."""
        return self._group

    def _includes(self, allocation: "AllocationStub") -> bool:
        if self._is_failed_only and allocation.client_status not in ("failed", "lost"):
            return False
        if self._indexes is not None and get_index(allocation) not in self._indexes:
            return False
        return not self._group or allocation.task_group == self._group


async def _print_logs(
    session: Session,
    job_id: str,
    namespace: str,
    selection: TaskSelection,
    line_settings: LineSettings,
    *,
    is_following: bool,
) -> None:
    """Print the logs of a job: one log after the other, and with `is_following` also what is written until the job is dead.

    Raises CliError if the servers do not reply for too long.
    """
    from wharf.cli.common.outages import Outage
    from wharf.contract.client import RetryPolicy, connect_async

    outage = Outage(session, f"`wharf job status {job_id}` shows the state of the job")
    # The first call fails early, because a user waits for it; `outage` repeats the later ones.
    retry_policy = RetryPolicy(
        max_attempts=3, max_pause_s=1.0, retries_first_open=False, max_store_outage_s=STORE_OUTAGE_LIMIT_S
    )
    async with connect_async(session.settings, world=session.world, retry_policy=retry_policy) as client:
        notices = NodeNotices()
        client.set_stream_observer(notices.watch_stream)
        columns = PrefixColumns(session)
        follower = JobLogFollower(session, line_settings.streams)
        known: set[tuple[str, str]] = set()
        index = 0
        try:
            while True:
                query = partial(
                    client.jobs.allocations,
                    job_id,
                    namespace=namespace,
                    index=index,
                    wait_s=POLL_WAIT_S if index else None,
                )
                response = await (outage.call_async(query) if index else query())
                if is_following and not index and not response.value:
                    print_notice(f"no logs yet: {await _explain_job(client, job_id, namespace)}")
                index = response.index
                new_logs = []
                for allocation, task in selection.select_tasks(response.value):
                    notices.allocations[allocation.id] = allocation.name, allocation.node_name
                    if (allocation.id, task) not in known:
                        known.add((allocation.id, task))
                        columns.add(allocation, task)
                        new_logs.append(TaskLogs(session, client, allocation, task, line_settings, columns))
                growing = {each for each in new_logs if is_following and not each.allocation.client_status.is_terminal}
                failure = await _print_ended(session, [each for each in new_logs if each not in growing])
                if not is_following:
                    if failure:
                        raise CliError(failure)
                    if not new_logs:
                        print_notice(await _explain_missing_logs(client, job_id, namespace, selection))
                    elif line_settings.streams == STREAMS and not line_settings.since_ns:
                        _name_silent_tasks(session, new_logs)
                    return
                if failure:
                    print_notice(f"wharf: {failure}")
                follower.start(each for each in new_logs if each in growing)
                if follower.has_ended():
                    job = (await outage.call_async(partial(client.jobs.read, job_id, namespace=namespace))).value
                    if job.status == "dead":
                        return
        finally:
            await follower.stop()


async def _print_ended(session: Session, logs: list[TaskLogs]) -> str:
    """Print logs one after the other, while the next ones are read. Warn once about logs that nodes no longer have.

    Return which logs nodes did not send; empty if none is missing.
    """
    from wharf.contract.client.errors import ServerUnavailable

    failures: list[str] = []
    waiting = deque(logs)
    reading: deque[tuple[TaskLogs, asyncio.Task[None]]] = deque()
    try:
        while waiting or reading:
            while waiting and len(reading) < MAX_READ_AHEAD:
                next_logs = waiting.popleft()
                name = f"logs of {next_logs.allocation.name}"
                reading.append((next_logs, session.world.start_task(next_logs.read_ahead(), name=name)))
            current, read = reading.popleft()
            try:
                await read
                await current.print_all()
            except ServerUnavailable as error:
                failures.append(describe_missing_log(current.allocation, error.text))
    finally:
        await _drop_tasks(read for _, read in reading)
    _warn_of_retained_logs([each.allocation for each in logs if each.is_retained])
    more = f"; the logs of {len(failures) - 1} more tasks are missing" if len(failures) > 1 else ""
    return f"{failures[0]}{more}" if failures else ""


async def _drop_tasks(tasks: "Iterable[asyncio.Task[None]]") -> None:
    """Cancel tasks. Their errors are dropped, because the command ends with another one."""
    tasks = list(tasks)
    await cancel_tasks(*tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # Otherwise asyncio would print it.


def _warn_of_retained_logs(allocations: "list[AllocationStub]") -> None:
    """Print a warning if lines are from the servers, because nodes have deleted the files or do not reply."""
    ids = {allocation.id for allocation in allocations}
    if not ids:
        return
    if len(ids) == 1:
        text = RETAINED_LOGS_TEXT.format(who=f"the node of {allocations[0].name}", has="has", does="does")
    else:
        text = RETAINED_LOGS_TEXT.format(who=f"the nodes of {len(ids)} allocations", has="have", does="do")
    print_notice(f"wharf: {text}")


def _name_silent_tasks(session: Session, logs: list[TaskLogs]) -> None:
    """Print why allocations failed whose tasks printed nothing, or that no task printed anything."""
    from wharf.contract.model.allocations.failure_reasons import describe_task_failure

    silent = [each.allocation for each in logs if not each.has_output]
    failed = [each for each in silent if each.client_status == "failed"]
    if not failed:
        if len(silent) == len(logs):
            print_notice("note: no task printed anything; `wharf job fetch` brings files that tasks wrote")
        return
    name = f"{failed[0].name} ({session.shorten_id(failed[0].id)})"
    reason = describe_task_failure(failed[0].task_states) or failed[0].client_description
    more = f"; {len(failed) - 1} more printed nothing" if len(failed) > 1 else ""
    print_notice(f"note: {name} failed and printed nothing: {reason}{more}")


class JobLogFollower:
    """Follows the logs of tasks that have not ended, all together, but at most `MAX_FOLLOWED_LOGS` at the same time."""

    def __init__(self, session: Session, streams: tuple[str, ...]) -> None:
        self._session = session
        self._streams = streams
        self._permits = asyncio.Semaphore(MAX_FOLLOWED_LOGS)
        self._readers: list[asyncio.Task[None]] = []
        self._has_warned = False

    def start(self, logs: Iterable[TaskLogs]) -> None:
        """Begin to follow logs, and raise the error of a log that could not be followed."""
        for each in logs:
            for stream in self._streams:
                reader = self._follow(partial(each.follow, stream))
                name = f"{stream} of {each.allocation.name}"
                self._readers.append(self._session.world.start_task(reader, name=name))
        if len(self._readers) > MAX_FOLLOWED_LOGS and not self._has_warned:
            self._has_warned = True
            print_notice(
                f"wharf: following {MAX_FOLLOWED_LOGS} of {len(self._readers)} logs; the others follow when some of these "
                "end. Select some with --index, --group, --task, --stdout or --stderr"
            )
        for ended in [reader for reader in self._readers if reader.done()]:
            self._readers.remove(ended)
            ended.result()

    async def _follow(self, follow: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self._permits:
            await follow()

    def has_ended(self) -> bool:
        """Return whether all logs have ended that were followed."""
        return all(reader.done() for reader in self._readers)

    async def stop(self) -> None:
        await _drop_tasks(self._readers)


async def _explain_missing_logs(client: "AsyncClient", job_id: str, namespace: str, selection: TaskSelection) -> str:
    """Return why no task of the selection has logs. Raises CliError if a selected element does not exist."""
    from wharf.cli.job.arrays import describe_elements_without_logs

    job = (await client.jobs.read(job_id, namespace=namespace)).value
    if selection.indexes is not None and any(group.array is not None for group in job.groups):
        arrays = (await client.jobs.arrays(job_id, namespace=namespace)).value.arrays
        chosen = [each for each in arrays if selection.group in ("", each.group)]
        return describe_elements_without_logs(chosen, selection.indexes)
    if selection.selects_all:
        return f"no logs: {await _explain_job(client, job_id, namespace)}"
    return "no logs: no allocation of the job is selected"


async def _explain_job(client: "AsyncClient", job_id: str, namespace: str) -> str:
    """Return the sentence of `wharf job explain`; a plain one if the server does not explain."""
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    try:
        return (await client.jobs.explain(job_id, namespace=namespace)).value.text
    except (Refusal, Unreachable):
        return f"job {job_id} has no allocations"
