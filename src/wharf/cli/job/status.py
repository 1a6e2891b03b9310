"""`wharf job status`: lists jobs, or shows one; once, or again and again."""

from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.record_tables import GATED_STATE, render_allocations, render_jobs
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import ServerCommand, Session
from wharf.cli.completion import complete_jobs
from wharf.contract.wire.jobs.states import JobState, describe_job_state, matches_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from wharf.cli.job.progress import JobProgress
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.jobs.groups import TaskGroup
    from wharf.contract.model.jobs.job import Job, Periodic
    from wharf.contract.model.jobs.run_views import RunView
    from wharf.contract.wire.jobs.messages import JobStub

MAX_CHILDREN_SHOWN: Final = 5
"""Children of a periodic or parameterized job that its status lists without `--children`; keeps the output short."""
MAX_ALLOCATIONS_SHOWN: Final = 50
"""Allocations that the status of a job lists without `--all-allocs`; keeps the parts above on the screen."""
MAX_READS: Final = 4
"""How often the status of a job is read again because the job changed while the command read it. A job of many short tasks
changes all the time: then its status and its records can differ by the changes of the last read."""
WATCH_INTERVAL_S: Final = 2.0
"""How often `--watch` reads again. Limits the load of commands that run for hours."""
NAMELESS_ACCESSORS: Final = frozenset({"", "acls-disabled", "anonymous"})
"""Accessor ids of callers that have no token."""


@click.command(cls=ServerCommand)
@click.argument("job_id", metavar="[JOB]", required=False, shell_complete=complete_jobs)
@click.option("--filter", "expression", default="", help='Only jobs that match, such as `Status == "running"`.')
@click.option("--status", "state", type=click.Choice(list(map(str, JobState))), help="Only jobs in this state.")
@click.option("--mine", is_flag=True, help="Only jobs that were submitted with this token.")
@click.option("--limit", type=click.IntRange(1), help="Only the jobs that were submitted last.")
@click.option("--children", is_flag=True, help="Also children of periodic and parameterized jobs, with their meta.")
@click.option("--watch", is_flag=True, help="Show changes until Ctrl-C.")
@click.option("--all-allocs", is_flag=True, help="Also allocations that were replaced or stopped.")
def status(
    session: Session,
    job_id: str | None,
    expression: str,
    state: str | None,
    mine: bool,
    limit: int | None,
    children: bool,
    watch: bool,
    all_allocs: bool,
) -> None:
    """List jobs, or show one.

    The list counts children of periodic and parameterized jobs in the row of their parent; --children lists them.

    wharf job status --mine --status failed
    """
    if job_id is not None:
        for option, is_given in (("--filter", expression), ("--status", state), ("--mine", mine)):
            if is_given:
                raise CliError(f"{option} selects jobs of the list: leave out {option}, or the job {job_id}")
    if watch and not session.is_terminal:
        raise CliError("--watch needs a terminal; without one, repeat the command, or use `wharf job run --follow`")
    if job_id is not None:
        if watch:
            _watch(session, lambda: _render_current_job(session, job_id, all_allocs, children, limit))
            return
        show_job(session, job_id, is_all_allocations=all_allocs, has_children=children, limit=limit)
        return
    if mine:
        expression = _add_submitter(session, expression)

    def fetch() -> "list[JobStub]":
        return _list_jobs(session, expression, state or "", limit, has_children=children)

    is_filtered = bool(expression or state)
    if watch:
        _watch(session, lambda: render_jobs(session, fetch(), is_filtered=is_filtered, shows_meta=children))
        return
    jobs = fetch()
    session.print_result(jobs, lambda: render_jobs(session, jobs, is_filtered=is_filtered, shows_meta=children))


def _add_submitter(session: Session, expression: str) -> str:
    """Return the filter with the condition that the token of this command submitted the job."""
    from wharf.contract.client.errors import RequestRefused

    try:
        accessor_id = session.client.acl.tokens.read_own().value.accessor_id
    except RequestRefused as error:
        raise CliError(f"--mine needs a token, which the server knows: {error.text}") from error
    if accessor_id in NAMELESS_ACCESSORS:
        raise CliError("--mine needs a token: without one, jobs have no submitter")
    condition = f'NomadTokenID == "{accessor_id}"'
    return f"({expression}) and {condition}" if expression else condition


def _list_jobs(
    session: Session, expression: str, state: str, limit: int | None, *, has_children: bool
) -> "list[JobStub]":
    """Return the jobs of the list. Without `has_children`, people see no children; programs get them in any case."""
    folds_children = not has_children and not session.is_machine_readable
    if folds_children:
        expression = f'({expression}) and ParentID == ""' if expression else 'ParentID == ""'
    jobs = session.client.jobs.list(
        filter=expression, meta=has_children, progress=not session.is_machine_readable
    ).value
    found = [job for job in jobs if not state or matches_state(job, state)]
    if limit is None:
        return found
    newest = sorted(found, key=lambda job: -job.submitted_ns)[:limit]
    if len(found) > limit:
        print_notice(f"the newest {limit} of {len(found)} jobs")
    return newest


def _watch(session: Session, render: "Callable[[], str]") -> None:
    """Show the text that `render` returns in place, and again after each interval, until Ctrl-C."""
    from wharf.cli.common.live_text import LiveText
    from wharf.cli.common.outages import Outage

    outage = Outage(session, "the jobs keep running")
    with LiveText() as live:
        try:
            while True:
                live.update(outage.call(render))
                session.pause(WATCH_INTERVAL_S)
        except KeyboardInterrupt:
            return


# -- rendering of `wharf job status JOB`


def show_job(
    session: Session, job_id: str, *, is_all_allocations: bool, has_children: bool = False, limit: int | None = None
) -> None:
    """Print the status of one job. `has_children`: with all its children, or the newest `limit` of them."""
    from wharf.cli.common.lookup import find_job

    if session.is_machine_readable:
        found = find_job(session, job_id)
        session.print_result([session.client.jobs.read(found.id, namespace=found.namespace).value], str)
        return
    session.print_text(_render_current_job(session, job_id, is_all_allocations, has_children, limit))


def _render_current_job(
    session: Session, job_id: str, is_all_allocations: bool, has_children: bool, limit: int | None
) -> str:
    """Return the status of one job, read now. Raises CliError if the job is deleted meanwhile."""
    from wharf.cli.common.lookup import find_job
    from wharf.cli.job.progress import fetch_progress, read_job, report_deleted_job

    stub = find_job(session, job_id)
    for _ in range(MAX_READS):
        version = read_job(session, stub.id, stub.namespace).version
        progress = fetch_progress(session, stub.id, stub.namespace, version)
        children = _list_children(session, progress.job)
        run = progress.run
        if run is None and progress.job.is_run:
            with report_deleted_job(stub.id):
                run = session.client.flows.read_run(stub.id, namespace=stub.namespace).value
        first, stub = stub, _read_stub(session, progress.job)
        if stub == first and progress.job.version == version:
            break
    if progress.job.stop:
        stub = _read_stub(session, progress.job, has_progress=True)
    max_children = limit if has_children else MAX_CHILDREN_SHOWN
    return _render_job(
        session,
        stub,
        progress,
        children,
        _explain_shortage(session, progress),
        run=run,
        is_all_allocations=is_all_allocations,
        max_children=len(children) if max_children is None else max_children,
    )


def _read_stub(session: Session, job: "Job", *, has_progress: bool = False) -> "JobStub":
    """Return the list item of a job: its status and its counts of the same time. Raises `JobDeleted`.

    Of a stopped job, only an item with progress has the time of its submission.
    """
    from wharf.cli.job.progress import JobDeleted

    # Of the jobs whose id begins with this id, the list has the shortest id first.
    found = session.client.jobs.list(prefix=job.id, per_page=1, namespace=job.namespace, progress=has_progress).value
    if not found or (found[0].id, found[0].create_index) != (job.id, job.create_index):
        raise JobDeleted(job.id)
    return found[0]


def _explain_shortage(session: Session, progress: "JobProgress") -> str:
    """Return why a running service job has fewer allocations than it requests; empty if it has all of them.

    Groups that wait for capacity are shown with their reasons in any case, and need no further text.
    """
    from wharf.contract.client import Unreachable
    from wharf.contract.model.refusal import Refusal

    job = progress.job
    if job.type != "service" or job.stop or progress.unplaced or not progress.is_evaluated:
        return ""
    live = [allocation for allocation in progress.allocations if not allocation.client_status.is_terminal]
    short = {
        group.name: f"{group.name} has {count} of {group.count} allocations"
        for group in job.groups
        if (count := sum(allocation.task_group == group.name for allocation in live)) < group.count
    }
    if not short:
        return ""
    counts = ", ".join(short.values())
    try:
        return f"{counts}: {session.client.jobs.explain(job.id, namespace=job.namespace).value.text}"
    except (Refusal, Unreachable):
        return counts


def _list_children(session: Session, job: "Job") -> "list[JobStub]":
    """Return the children of a periodic or parameterized job, newest first.

    A child's id begins with `PARENT/periodic-` or `PARENT/dispatch-`.
    """
    if not job.is_periodic and not job.is_parameterized:
        return []
    launch_kind = "periodic" if job.is_periodic else "dispatch"
    prefix = f"{job.id}/{launch_kind}-"
    children = session.client.jobs.list(prefix=prefix, meta=True, progress=True, namespace=job.namespace).value
    return sorted(children, key=lambda child: -child.submitted_ns)


def _render_schedule(session: Session, job: "Job", periodic: "Periodic") -> str:
    """Return the cron expressions of a periodic job and its next launch, or why there is none."""
    from wharf.cli.common.times import format_relative_time, format_utc_time
    from wharf.contract.model.jobs.periodic import MAX_SCHEDULES, find_next_launch, list_cron_specs
    from wharf.contract.model.times import to_datetime

    specs = list_cron_specs(periodic)
    text = f"{', '.join(specs[:MAX_SCHEDULES])}  {periodic.time_zone}"
    if len(specs) > MAX_SCHEDULES:
        text += f"\nonly these {MAX_SCHEDULES} of {len(specs)} cron expressions are used; split the job"
    if job.stop or not periodic.enabled:
        return f"{text}\nno launches: the job is {'stopped' if job.stop else 'disabled'}"
    next_time = find_next_launch(periodic, to_datetime(session.now_ns()))
    if next_time is None:
        return f"{text}\nno more launches: all its times are in the past"
    return f"{text}\nnext  {format_utc_time(next_time)}  {format_relative_time(next_time, session.now_ns())}"


def _render_steps(session: Session, run: "RunView", progress: "JobProgress") -> str:
    """Return the states of the steps of a run, the elements that failed or run, and the questions of open gates."""
    from wharf.cli.flow.run_view import list_questions, render_steps
    from wharf.cli.job.arrays import list_element_lines

    arrays = [each for each in progress.arrays if each.size > 1]
    hint = f"`wharf flow status {run.job_id}` shows more, such as the critical path"
    return "\n".join(
        [
            render_steps(session, run),
            "",
            *list_element_lines(arrays, has_names=True),
            *list_questions(session, run),
            hint,
        ]
    )


def _describe_state(stub: "JobStub", run: "RunView | None") -> str:
    """Return the state of a job for users, in the words of the list of jobs."""
    from wharf.contract.model.jobs.run_views import waits_for_approval

    if run is not None and not run.status.has_ended and waits_for_approval({each.status for each in run.steps}):
        return GATED_STATE
    return describe_job_state(stub)


def _render_job(
    session: Session,
    stub: "JobStub",
    progress: "JobProgress",
    children: "list[JobStub]",
    shortage: str,
    *,
    run: "RunView | None",
    is_all_allocations: bool,
    max_children: int,
) -> str:
    """Return the status of a job: main fields, then a section each for children, groups, deployment and allocations."""
    from wharf.cli.common.failures import describe_unplaced, render_failures, render_unplaced_groups
    from wharf.cli.common.record_tables import render_deployment_groups
    from wharf.cli.common.rendering import colour_state, render_pairs, render_section, render_table

    job = progress.job
    parts = [
        render_pairs(
            [
                ("ID", job.id),
                ("Name", job.name if job.name != job.id else ""),
                ("Status", _describe_state(stub, run)),
                ("Type", job.type),
                ("Version", job.version),
                ("Priority", job.priority),
                ("Namespace", job.namespace),
                ("Node pool", job.node_pool),
                ("Datacenters", ", ".join(job.datacenters or ())),
                ("Submitted", session.format_time(stub.submitted_ns)),
                ("Description", job.status_description),
            ]
        )
    ]
    summary = stub.job_summary.summary if stub.job_summary else {}
    if job.is_periodic and job.periodic is not None:
        parts.append(render_section("Periodic", _render_schedule(session, job, job.periodic)))
    counted_children = stub.job_summary.children if stub.job_summary else None
    is_parent = job.is_periodic or job.is_parameterized
    if counted_children is not None and is_parent:
        failed = sum(describe_job_state(child) is JobState.FAILED for child in children)
        rows = [(counted_children.pending, counted_children.running, counted_children.dead, failed)]
        titles = ("Pending", "Running", "Ended", "Failed")
        parts.append(render_section("Children", render_table(titles, rows)))
    if children:
        shown = children[:max_children]
        table = render_jobs(session, shown, shows_meta=any(child.meta for child in shown))
        parts.append(render_section("Newest children", table))
    if summary and not is_parent:
        counts_by_group = {group.name: _format_requested_count(job, group) for group in job.groups}
        # Allocations of earlier attempts count in the summary, but not as elements.
        array_names = {each.group for each in progress.arrays}
        group_titles = ("Group", "Requested", "Queued", "Starting", "Running", "Complete", "Failed", "Lost", "Unknown")
        counted = [
            (
                name, counts_by_group.get(name, "0"), counts.queued, counts.starting, counts.running, counts.complete, counts.failed, counts.lost,
                counts.unknown,
            )
            for name, counts in sorted(summary.items())
            if name not in array_names
        ]  # fmt: skip
        if counted:
            table = render_table(group_titles, counted, optional_columns=("Unknown", "Lost", "Queued"))
            parts.append(render_section("Groups", table))
    if run is not None:
        parts.append(render_section("Steps", _render_steps(session, run, progress)))
    elif progress.arrays and not is_parent:
        from wharf.cli.job.arrays import render_arrays

        parts.append(render_section("Arrays", render_arrays(progress.arrays)))
    if any(each.elements for each in progress.outputs):
        from wharf.cli.job.arrays import render_outputs

        parts.append(render_section("Outputs", render_outputs(progress.outputs)))
    if progress.unplaced:
        parts.append(
            render_section(
                describe_unplaced(progress.unplaced),
                "\n".join(render_unplaced_groups(progress.unplaced, progress.explanations, progress.arrays)),
            )
        )
    if shortage:
        parts.append(render_section("Fewer allocations than requested", shortage))
    if failures := render_failures(session, progress.failures):
        parts.append(render_section("Failed", failures))
    if progress.deployment is not None:
        deployment = progress.deployment
        parts.append(
            render_section(
                "Latest deployment",
                f"{session.shorten_id(deployment.id)}  {colour_state(deployment.status)}  "
                f"{deployment.status_description}\n{render_deployment_groups(session, deployment)}",
            )
        )
    records = [
        allocation for allocation in progress.allocations if is_all_allocations or not _is_superseded(allocation)
    ]
    if records:
        max_rows = None if is_all_allocations else MAX_ALLOCATIONS_SHOWN
        command = f"wharf job allocs {job.id}"
        table = render_allocations(session, records, max_rows=max_rows, list_command=command)
        parts.append(render_section("Allocations", table))
    return "\n".join(parts)


def _format_requested_count(job: "Job", group: "TaskGroup") -> str:
    """Return how many allocations of the group should run; `-` if this depends on the number of nodes."""
    if job.type in ("system", "sysbatch"):
        return "-"
    return "0" if job.stop else str(group.total_count)


def _is_superseded(allocation: "AllocationStub") -> bool:
    """Return whether an allocation was replaced, or stopped as desired, so that the status need not list it."""
    return bool(allocation.next_allocation) or (
        allocation.desired_status != "run" and allocation.client_status == "complete"
    )
