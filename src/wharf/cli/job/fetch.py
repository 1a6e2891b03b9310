"""`wharf job fetch`: brings files and folders of a job's allocations from their nodes."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from wharf.cli.common.allocation_selection import (
    JOB_TYPES_WITH_REPEATED_NAMES,
    AllocationIndexes,
    get_index,
    get_natural_order,
    index_option,
    select_newest,
)
from wharf.cli.common.errors import CliError
from wharf.cli.common.options import job_argument
from wharf.cli.common.server_commands import STORE_OUTAGE_LIMIT_S, ServerCommand, Session
from wharf.cli.common.terminal import begin_line_again
from wharf.cli.job.downloads import Downloader, FetchedAllocation, is_plain_name

if TYPE_CHECKING:
    from wharf.contract.model.allocations.allocation import AllocationStub

PROGRESS_INTERVAL_S: Final = 0.2
PROGRESS_WIDTH: Final = 70
"""The width of the line with the progress; it fits in a terminal of 80 columns."""
MAX_LISTED_REASONS: Final = 5
"""Limit of the reasons that an error lists."""
MAX_NAMED_ALLOCATIONS: Final = 3
"""Limit of the allocations that are named for a reason."""
UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


@click.command(cls=ServerCommand)
@job_argument
@click.argument("path")
@index_option
@click.option("--group", default="", help="Only this group.")
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=".", help="The local folder.  [.]"
)
@click.option(
    "--failed", is_flag=True, help="Only allocations that failed or were lost, also those that were replaced."
)
@click.option(
    "--flat", is_flag=True, help="Into one folder: result.csv of the group train with index 7 is train-7-result.csv."
)
@click.option("--overwrite", is_flag=True, help="Replace local files that differ.")
def fetch(
    session: Session,
    job_id: str,
    path: str,
    indexes: AllocationIndexes | None,
    group: str,
    folder: Path,
    failed: bool,
    flat: bool,
    overwrite: bool,
) -> None:
    """Bring files of a job's allocations from their nodes.

    PATH is a file or folder of each allocation, such as `alloc/data/out` or `TASK/local/result.csv`, as `wharf alloc fs`
    shows it. With several allocations, the files of each one go to a folder of their own, such as `train-7`. Files that an
    earlier run has brought are not downloaded again.

    wharf job fetch train alloc/data --index 0-9 --to results
    """
    from wharf.cli.common.lookup import find_job

    found = find_job(session, job_id)
    allocations = [
        allocation
        for allocation in session.client.jobs.allocations(found.id, namespace=found.namespace).value
        if (not group or allocation.task_group == group)
        and (indexes is None or get_index(allocation) in indexes)
        and (not failed or allocation.client_status in ("failed", "lost"))
    ]
    chosen = sorted(select_newest(allocations), key=get_natural_order)
    if not chosen:
        raise CliError(f"no allocation of job {found.id} matches; `wharf job allocs {found.id}` lists its allocations")
    # The folder itself may be a link; below it, links are refused.
    results, remedy = asyncio.run(
        _fetch(session, chosen, path, folder, folder.resolve(), is_flat=flat, is_overwriting=overwrite)
    )
    session.print_result(results, lambda: _render_results(results, folder))
    if failures := _describe_failures(results):
        raise CliError("\n".join(filter(None, (failures, remedy))))


async def _fetch(
    session: Session,
    allocations: "Sequence[AllocationStub]",
    path: str,
    folder: Path,
    root: Path,
    *,
    is_flat: bool,
    is_overwriting: bool,
) -> tuple[list[FetchedAllocation], str]:
    """Download `path` of each allocation, and return the results in the order of the allocations, and what exists
    instead of a file that does not exist.

    `folder` is the local folder as the user has named it, `root` is its path without links.
    """
    from wharf.contract.client import RetryPolicy, connect_async

    names = choose_folder_names(allocations)
    folders = dict.fromkeys(names, "") if is_flat else names
    results = [
        FetchedAllocation(each.id, each.name, each.node_name, str(folder / folders[each.id])) for each in allocations
    ]
    # The user waits: a node or a server that does not reply is reported soon.
    retry_policy = RetryPolicy(max_attempts=3, max_pause_s=1.0, max_store_outage_s=STORE_OUTAGE_LIMIT_S)
    async with connect_async(session.settings, world=session.world, retry_policy=retry_policy) as client:
        progress = ProgressLine(session, len(allocations))
        downloader = Downloader(
            session.world,
            client,
            is_overwriting=is_overwriting,
            on_progress=lambda: progress.show(downloader.done_count, downloader.bytes),
        )
        for allocation, result in reversed(list(zip(allocations, results, strict=True))):
            prefix = names[allocation.id] if is_flat else ""
            downloader.add(allocation, path, root / folders[allocation.id], result, prefix=prefix)
        try:
            await downloader.run()
        finally:
            progress.clear()
    return results, downloader.remedy


def choose_folder_names(allocations: "Sequence[AllocationStub]") -> dict[str, str]:
    """Return the name of the local folder of each allocation, by its id; empty if there is only one allocation.

    A name is group and index, such as `train-7`. Allocations of system jobs have the same index on each node, so their
    names contain the id too. A group whose name is no name of a folder has folders that are named by ids.
    """
    if len(allocations) == 1:
        return {allocations[0].id: ""}
    names = {}
    for each in allocations:
        suffix = f"-{each.id[:8]}" if each.job_type in JOB_TYPES_WITH_REPEATED_NAMES else ""
        name = f"{each.task_group}-{get_index(each)}{suffix}"
        names[each.id] = name if is_plain_name(name) else each.id
    return names


class ProgressLine:
    """The line on a terminal that shows how far the download is. Without a terminal, nothing is shown."""

    def __init__(self, session: Session, total: int) -> None:
        self._session = session
        self._total = total
        self._is_visible = sys.stderr.isatty() and not session.is_machine_readable
        self._next_s = 0.0

    def show(self, done_count: int, received_bytes: int) -> None:
        """Show the progress, at most a few times in a second."""
        now_s = self._session.world.monotonic_s()
        if self._is_visible and now_s >= self._next_s:
            self._next_s = now_s + PROGRESS_INTERVAL_S
            text = f"{done_count} of {self._total} allocations, {format_bytes(received_bytes)}"
            click.echo(f"{begin_line_again()}{text[:PROGRESS_WIDTH].ljust(PROGRESS_WIDTH)}", err=True, nl=False)

    def clear(self) -> None:
        """Remove the line."""
        if self._is_visible and self._next_s:
            click.echo(f"{begin_line_again()}{' ' * PROGRESS_WIDTH}{begin_line_again()}", err=True, nl=False)


def format_bytes(count: int) -> str:
    """Return a size with three digits: `999 bytes`, `1.23 MB`."""
    value, position = float(count), 0
    while value >= 999.5 and position < len(UNITS) - 1:
        value, position = value / 1000, position + 1
    return f"{count} {UNITS[0]}" if not position else f"{value:.3g} {UNITS[position]}"


def _render_results(results: Sequence[FetchedAllocation], folder: Path) -> str:
    """Return a sentence with what is in the local folders now."""
    files = sum(result.files for result in results)
    if not files:
        return ""
    unchanged = sum(result.unchanged_files for result in results)
    left_out = sum(result.left_out for result in results)
    count = sum(1 for result in results if result.files)
    notes = [
        f"{unchanged:,} of them were here already" if unchanged else "",
        f"left out {left_out:,} links, special files and secrets" if left_out else "",
    ]
    allocations = f"{count} allocation{'' if count == 1 else 's'}"
    size = format_bytes(sum(result.bytes for result in results))
    text = f"fetched {files:,} file{'' if files == 1 else 's'} ({size}) of {allocations} into {folder}{os.sep}"
    return "; ".join([text, *filter(None, notes)])


def _describe_failures(results: Sequence[FetchedAllocation]) -> str:
    """Return the failures by their reasons, the most frequent first; empty if there are none."""
    counts = Counter(text for result in results for text in result.failures)
    lines = []
    for text, count in counts.most_common(MAX_LISTED_REASONS):
        names = [result.name for result in results if text in result.failures]
        named = ", ".join(names[:MAX_NAMED_ALLOCATIONS])
        more = f" and {len(names) - MAX_NAMED_ALLOCATIONS} more" if len(names) > MAX_NAMED_ALLOCATIONS else ""
        lines.append(f"{named}{more}: {text}" + (f" ({count} times)" if count > len(names) else ""))
    if len(counts) > MAX_LISTED_REASONS:
        lines.append(f"… and {len(counts) - MAX_LISTED_REASONS} more reasons")
    return "\n".join(lines)
