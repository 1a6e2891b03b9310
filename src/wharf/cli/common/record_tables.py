"""."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wharf.cli.common.server_commands import Session

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub
    from wharf.contract.model.deployments import Deployment
    from wharf.contract.wire.jobs.messages import JobStub
    from wharf.contract.wire.nodes.messages import NodeListStub


def render_jobs(session: Session, jobs: "Sequence[JobStub]", *, is_filtered: bool = False) -> str:
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not jobs and is_filtered:
        return render_no_rows("jobs", is_filtered=True)
    if not jobs and session.namespace not in ("default", "*"):
        return f"There are no jobs in namespace {session.namespace}; `wharf namespace list` lists the namespaces."
    if not jobs:
        return "There are no jobs yet; `wharf job run FILE` submits one."
    titles = ["ID", "Type", "Priority", "Status", "Running", "Submitted"]
    rows: list[list[object]] = []
    for job in jobs:
        summary = job.job_summary.summary if job.job_summary else {}
        running = sum(group.running for group in summary.values())
        wanted = sum(group.queued + group.starting + group.running for group in summary.values())
        status = "dead (stopped)" if job.stop else job.status
        kind = f"{job.type}/periodic" if job.periodic else f"{job.type}/template" if job.parameterized_job else job.type
        rows.append([job.id, kind, job.priority, status, f"{running}/{wanted}", session.format_time(job.submit_time)])
    if session.is_all_namespaces:
        titles.insert(1, "Namespace")
        for job, row in zip(jobs, rows, strict=True):
            row.insert(1, job.namespace)
    return render_table(
        titles,
        rows,
        optional_columns=("Priority", "Submitted"),
        shortenable_columns=() if session.is_verbose else ("ID",),
    )


def render_allocations(session: Session, records: "Sequence[AllocationStub]") -> str:
    from wharf.cli.common.rendering import render_table

    if not records:
        return "There are no allocations."
    newest = sorted(records, key=lambda one: (-one.create_index, one.name))
    titles = ["ID", "Name", "Node", "Version", "Desired", "Status", "Health", "Created", "Modified"]
    rows = [
        [
            session.shorten_id(one.id), one.name, one.node_name or session.shorten_id(one.node_id), one.job_version, one.desired_status,
            one.client_status, format_health(one), session.format_time(one.create_time), session.format_time(one.modify_time),
        ]
        for one in newest
    ]  # fmt: skip
    names = () if session.is_verbose else ("Name", "Node")
    return render_table(titles, rows, optional_columns=("Created", "Version", "Desired"), shortenable_columns=names)


def render_deployments(session: Session, records: "Sequence[Deployment]", *, is_filtered: bool = False) -> str:
    from wharf.cli.common.rendering import render_no_rows, render_table

    if not records:
        return render_no_rows("deployments", is_filtered=is_filtered)
    titles = ("ID", "Job", "Version", "Status", "Healthy", "Begun", "Description")
    rows = [
        (
            session.shorten_id(one.id), one.job_id, one.job_version, one.status, _healthy(one), session.format_time(one.create_time),
            one.status_description,
        )
        for one in sorted(records, key=lambda one: -one.create_index)
    ]  # fmt: skip
    return render_table(titles, rows, shortenable_columns=() if session.is_verbose else ("Job",))


def _healthy(one: "Deployment") -> str:
    groups = (one.task_groups or {}).values()
    return f"{sum(group.healthy_allocs for group in groups)}/{sum(group.desired_total for group in groups)}"


def render_deployment_groups(session: Session, deployment: "Deployment") -> str:
    from wharf.cli.common.rendering import render_table

    groups = sorted((deployment.task_groups or {}).items())
    has_canaries = any(group.desired_canaries for _, group in groups)
    titles = ["Group", "Wanted", "Placed", "Healthy", "Unhealthy", "Progress due"]
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
    from wharf.cli.common.rendering import natural_sort_key, render_no_rows, render_table

    if not nodes:
        return render_no_rows("nodes", is_filtered=is_filtered)
    titles = ("ID", "Name", "Pool", "Datacenter", "Class", "Drain", "Eligibility", "Status")
    rows = [
        (
            session.shorten_id(one.id), one.name, one.node_pool, one.datacenter, one.node_class or "-",
            "draining" if one.drain else "-", one.scheduling_eligibility, one.status,
        )
        for one in sorted(nodes, key=lambda one: natural_sort_key(one.name))
    ]  # fmt: skip
    return render_table(
        titles,
        rows,
        optional_columns=("Class", "Datacenter"),
        shortenable_columns=() if session.is_verbose else ("Name",),
    )


def format_health(allocation: "AllocationStub") -> str:
    status = allocation.deployment_status
    if status is None:
        return "-"
    word = {None: "-", True: "healthy", False: "unhealthy"}[status.healthy]
    return f"{word} (canary)" if status.canary else word
