"""Tables of jobs, allocations, deployments and nodes, for every command that lists such records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wharf.cli.common.server_commands import Session
from wharf.contract.wire.jobs.states import (
    count_allocations,
    describe_children,
    describe_job_state,
    get_listed_name,
    is_parent,
)

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.wire.jobs.messages import JobStub
    from wharf.contract.wire.nodes.messages import NodeListStub

GATED_STATE: Final = "gated"
"""The state of a run that only waits for a person, as in `wharf flow list`."""
MAX_SHORT_JOBS_NAMED: Final = 3
"""How many jobs with too few allocations the text below a list of jobs names."""


def render_jobs(
    session: Session, jobs: "Sequence[JobStub]", *, is_filtered: bool = False, shows_meta: bool = False
) -> str:
    """Return a table of jobs. If there are none, the text says why (filter, namespace) and what to do."""
    from msgspec.structs import astuple

    from wharf.cli.common.rendering import render_no_rows, render_table
    from wharf.contract.model.jobs.run_views import ElementProgress

    if not jobs and is_filtered:
        return render_no_rows("jobs", is_filtered=True)
    if not jobs and session.namespace not in ("default", "*"):
        return f"No jobs in namespace {session.namespace}; `wharf namespace list` lists the namespaces."
    if not jobs:
        return "No jobs yet; `wharf job run FILE` submits one."
    has_parents = any(is_parent(job) for job in jobs)
    titles = ["ID", "Type", "Priority", "Status", "Running", "Complete", "Failed", "Lost"]
    titles += ["Children"] if has_parents else []
    titles += ["Meta"] if shows_meta else []
    titles += ["Submitted"]
    rows: list[list[object]] = []
    short_jobs: list[str] = []
    for job in jobs:
        counts = count_allocations(job)
        kind = f"{job.type}/periodic" if job.periodic else f"{job.type}/template" if job.parameterized_job else job.type
        progress = job.progress if isinstance(job.progress, ElementProgress) else ElementProgress()
        state = GATED_STATE if progress.is_gated else str(describe_job_state(job))
        elements = progress.elements
        if job.status == "running" and counts.queued + counts.starting + counts.running < counts.requested:
            short_jobs.append(job.id)
        # Of an array, elements as they are now: an element that ran again also has the allocations before. The servers
        # create the allocations of a large array in parts, so the summary does not count all elements that wait.
        running = _format_running(counts.running, counts.requested)
        numbers = (counts.complete, counts.failed, counts.lost)
        if any(astuple(elements)):
            running = _format_running(elements.running, elements.waiting + elements.starting + elements.running)
            numbers = (elements.succeeded, elements.failed, 0)
        row: list[object] = [job.id, kind, job.priority, state, running, *numbers]
        row += [describe_children(job) or "-"] if has_parents else []
        row += [_format_meta(job)] if shows_meta else []
        rows.append([*row, session.format_time(job.submitted_ns)])
    names = [get_listed_name(job.id, job.name) for job in jobs]
    if any(names):
        titles.insert(1, "Name")
        for name, row in zip(names, rows, strict=True):
            row.insert(1, name or "-")
    if session.is_all_namespaces:
        titles.insert(1, "Namespace")
        for job, row in zip(jobs, rows, strict=True):
            row.insert(1, job.namespace)
    table = render_table(
        titles,
        rows,
        optional_columns=("Priority", "Lost", "Submitted", "Type", "Complete"),
        shortenable_columns=() if session.is_verbose else ("ID", "Name", "Meta"),
    )
    return f"{table}\n{_describe_short_jobs(short_jobs)}" if short_jobs else table


def _format_running(running: int, requested: int) -> str:
    """Return `running/requested`; `-` if nothing is requested, such as of a job that has ended.

    Of an array, the requested elements are those that run, start or wait.
    """
    return f"{running}/{requested}" if running or requested else "-"


def _format_meta(job: "JobStub") -> str:
    """Return the meta values of a job on one line; `-` if it has none."""
    meta = job.meta if isinstance(job.meta, dict) else {}
    return " ".join(f"{key}={value}" for key, value in sorted(meta.items())) or "-"


def _describe_short_jobs(job_ids: Sequence[str]) -> str:
    """Return which jobs have fewer allocations than they request, and the command that says why."""
    names = ", ".join(job_ids[:MAX_SHORT_JOBS_NAMED])
    more = f" and {len(job_ids) - MAX_SHORT_JOBS_NAMED} more" if len(job_ids) > MAX_SHORT_JOBS_NAMED else ""
    return f"Fewer allocations than requested: {names}{more}; `wharf job explain JOB` says why."


def render_allocations(
    session: Session, records: "Sequence[AllocationStub]", *, max_rows: int | None = None, list_command: str = ""
) -> str:
    """Return a table of allocations, newest first.

    Of more than `max_rows`, failed and lost ones come first, and a last line names `list_command`, which lists all.
    """
    from wharf.cli.common.rendering import natural_sort_key, render_table

    if not records:
        return "No allocations."
    newest_first = sorted(records, key=lambda allocation: (-allocation.create_index, natural_sort_key(allocation.name)))
    omitted_count = max(0, len(newest_first) - max_rows) if max_rows is not None else 0
    if omitted_count:
        newest_first.sort(key=lambda allocation: allocation.client_status not in ("failed", "lost"))
        newest_first = newest_first[:max_rows]
    titles = ["ID", "Name", "Node", "Version", "Desired", "Status", "Health", "Created", "Modified"]
    rows = [
        [
            session.shorten_id(allocation.id), allocation.name,
            allocation.node_name or session.shorten_id(allocation.node_id), allocation.job_version,
            allocation.desired_status, allocation.client_status, format_health(allocation),
            session.format_time(allocation.create_time), session.format_time(allocation.modify_time),
        ]
        for allocation in newest_first
    ]  # fmt: skip
    shortenable = () if session.is_verbose else ("Name", "Node")
    table = render_table(
        titles, rows, optional_columns=("Created", "Version", "Desired"), shortenable_columns=shortenable
    )
    return f"{table}\n… and {omitted_count:,} more: `{list_command}` lists all" if omitted_count else table


def render_deployments(session: Session, records: "Sequence[Deployment]", *, is_filtered: bool = False) -> str:
    """Return a table of deployments, newest first."""
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not records:
        return render_no_rows("deployments", is_filtered=is_filtered)
    titles = ("ID", "Job", "Version", "Status", "Healthy", "Started", "Description")
    rows = [
        (
            session.shorten_id(deployment.id), deployment.job_id, deployment.job_version, deployment.status,
            _format_healthy_count(deployment), session.format_time(deployment.create_time),
            deployment.status_description,
        )
        for deployment in sorted(records, key=lambda deployment: -deployment.create_index)
    ]  # fmt: skip
    return render_table(
        titles,
        rows,
        optional_columns=("Version", "Started", "Description"),
        shortenable_columns=() if session.is_verbose else ("Job",),
    )


def _format_healthy_count(deployment: "Deployment") -> str:
    """Return `healthy/desired` over all groups of a deployment."""
    groups = (deployment.task_groups or {}).values()
    return f"{sum(group.healthy_allocs for group in groups)}/{sum(group.desired_total for group in groups)}"


def render_deployment_groups(session: Session, deployment: "Deployment") -> str:
    """Return a table of the groups of a deployment: counts, health and the progress deadline."""
    from wharf.cli.common.rendering import render_table

    groups = sorted((deployment.task_groups or {}).items())
    has_canaries = any(group.desired_canaries for _, group in groups)
    titles = ["Group", "Desired", "Placed", "Healthy", "Unhealthy", "Progress deadline"]
    rows: list[list[object]] = [
        [
            name, group.desired_total, group.placed_allocs, group.healthy_allocs, group.unhealthy_allocs,
            session.format_time(group.require_progress_by) if deployment.is_active else "-",
        ]
        for name, group in groups
    ]  # fmt: skip
    if has_canaries:
        titles[1:1] = ["Promoted", "Canaries"]
        for (_, group), row in zip(groups, rows, strict=True):
            row[1:1] = [
                "yes" if group.promoted else "no",
                f"{len(group.placed_canaries or ())}/{group.desired_canaries}",
            ]
    return render_table(titles, rows, optional_columns=("Progress deadline", "Placed"), shortenable_columns=("Group",))


def render_nodes(session: Session, nodes: "Sequence[NodeListStub]", *, is_filtered: bool = False) -> str:
    """Return a table of nodes, sorted by name."""
    from wharf.cli.common.rendering import natural_sort_key, render_no_rows, render_table

    if not nodes:
        return render_no_rows("nodes", is_filtered=is_filtered)
    titles = ("ID", "Name", "Pool", "Datacenter", "Class", "Drain", "Eligibility", "Status")
    rows = [
        (
            session.shorten_id(node.id), node.name, node.node_pool, node.datacenter, node.node_class or "-",
            "draining" if node.drain else "-", node.scheduling_eligibility, node.status,
        )
        for node in sorted(nodes, key=lambda node: natural_sort_key(node.name))
    ]  # fmt: skip
    return render_table(
        titles,
        rows,
        optional_columns=("Class", "Datacenter"),
        shortenable_columns=() if session.is_verbose else ("Name",),
    )


def format_health(allocation: "AllocationStub") -> str:
    """Return `healthy`, `unhealthy` or `-` (not known yet), and whether the allocation is a canary."""
    status = allocation.deployment_status
    if status is None:
        return "-"
    word = {None: "-", True: "healthy", False: "unhealthy"}[status.healthy]
    return f"{word} (canary)" if status.canary else word
