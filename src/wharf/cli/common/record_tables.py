"""Tables of jobs, allocations, deployments and nodes, for every command that lists such records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.wire.jobs.messages import JobStub
    from wharf.contract.wire.nodes.messages import NodeListStub

MAX_SHORT_JOBS_NAMED: Final = 3
"""How many jobs with too few allocations the text below a list of jobs names."""


def render_jobs(session: Session, jobs: "Sequence[JobStub]", *, is_filtered: bool = False) -> str:
    """Return a table of jobs. If there are none, the text says why (filter, namespace) and what to do."""
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not jobs and is_filtered:
        return render_no_rows("jobs", is_filtered=True)
    if not jobs and session.namespace not in ("default", "*"):
        return f"No jobs in namespace {session.namespace}; `wharf namespace list` lists the namespaces."
    if not jobs:
        return "No jobs yet; `wharf job run FILE` submits one."
    titles = ["ID", "Type", "Priority", "Status", "Running", "Submitted"]
    rows: list[list[object]] = []
    short_jobs: list[str] = []
    for job in jobs:
        summary = job.job_summary.summary if job.job_summary else {}
        running = sum(group.running for group in summary.values())
        live = sum(group.starting + group.running for group in summary.values())
        desired = sum(group.queued + group.starting + group.running for group in summary.values())
        is_parent = job.periodic or job.parameterized_job
        status = format_job_status(
            job.status, is_stopped=job.stop, has_no_live=bool(desired and not live and not is_parent)
        )
        kind = f"{job.type}/periodic" if job.periodic else f"{job.type}/template" if job.parameterized_job else job.type
        requested = _count_requested(job, desired)
        if job.status == "running" and desired < requested:
            short_jobs.append(job.id)
        rows.append(
            [job.id, kind, job.priority, status, f"{running}/{requested}", session.format_time(job.submit_time)]
        )
    if session.is_all_namespaces:
        titles.insert(1, "Namespace")
        for job, row in zip(jobs, rows, strict=True):
            row.insert(1, job.namespace)
    table = render_table(
        titles,
        rows,
        optional_columns=("Priority", "Submitted"),
        shortenable_columns=() if session.is_verbose else ("ID",),
    )
    return f"{table}\n{_describe_short_jobs(short_jobs)}" if short_jobs else table


def _count_requested(job: "JobStub", existing: int) -> int:
    """Return how many allocations of the job should run, if `existing` are queued, starting or running.

    Allocations of a batch job end, and the number of a system job depends on the nodes: all that exist are requested.
    """
    is_parent = job.periodic or job.parameterized_job
    if job.type != "service" or job.stop or is_parent or job.status == "dead":
        return existing
    return job.group_count_sum or existing  # Servers of an older version do not send the count.


def _describe_short_jobs(job_ids: Sequence[str]) -> str:
    """Return which jobs have fewer allocations than they request, and the command that says why."""
    names = ", ".join(job_ids[:MAX_SHORT_JOBS_NAMED])
    more = f" and {len(job_ids) - MAX_SHORT_JOBS_NAMED} more" if len(job_ids) > MAX_SHORT_JOBS_NAMED else ""
    return f"Fewer allocations than requested: {names}{more}; `wharf job explain JOB` says why."


def format_job_status(status: str, *, is_stopped: bool, has_no_live: bool) -> str:
    """Return the status of a job for users.

    Servers report `running`, as Nomad does, as soon as a job has a deployment. If nothing is placed yet (`has_no_live`),
    users see `pending`. The API and `--json` keep the servers' status.
    """
    if is_stopped:
        return "dead (stopped)"
    return "pending" if status == "running" and has_no_live else status


def render_allocations(session: Session, records: "Sequence[AllocationStub]") -> str:
    """Return a table of allocations, newest first."""
    from wharf.cli.common.rendering import render_table

    if not records:
        return "No allocations."
    newest_first = sorted(records, key=lambda allocation: (-allocation.create_index, allocation.name))
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
    return render_table(
        titles, rows, optional_columns=("Created", "Version", "Desired"), shortenable_columns=shortenable
    )


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
    return render_table(titles, rows, shortenable_columns=() if session.is_verbose else ("Job",))


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
    return render_table(titles, rows)


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
