"""Rules for the arrays of task groups."""

from collections.abc import Iterable

from wharf.contract.model.jobs.arrays import (
    MAX_ALL_ITEM_BYTES,
    MAX_ARRAY_ELEMENTS,
    MAX_ARRAY_GROUPS,
    MAX_ARRAY_ITEMS,
    MAX_ITEM_BYTES,
    GroupArray,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType
from wharf.contract.model.jobs.validation.findings import ValidationReport


def check_array(group: TaskGroup, path: str, report: ValidationReport, *, job_type: str) -> None:
    """Add each problem of the array of a group to the report. `path` is the path of the group.

    A step without an array has one of one element.
    """
    array = group.array
    if array is None:
        return
    owner = "Array, nor with a step of a run" if array == GroupArray(size=1) else "Array"
    array_path = f"{path}.Array"
    if job_type != JobType.BATCH:
        report.add_error(array_path, f"Array can only be used with batch jobs, not with {job_type} jobs")
    if group.count != 1:
        report.add_error(
            f"{path}.Count",
            f"Count must be 1 for a group with Array; got {group.count}",
            "remove Count: each element of the array is one allocation",
        )
    if group.scaling is not None:
        report.add_error(f"{path}.Scaling", f"Scaling cannot be used with {owner}: its size is fixed")
    if group.disconnect is not None:
        report.add_error(
            f"{path}.Disconnect",
            f"Disconnect cannot be used with {owner}: an element begins again as soon as its node is lost",
        )
    _check_elements(array, array_path, report)
    if not 0 <= array.max_running <= MAX_ARRAY_ELEMENTS:
        report.add_error(
            f"{array_path}.MaxRunning",
            f"MaxRunning must be between 0 and {MAX_ARRAY_ELEMENTS}; got {array.max_running}",
            "use 0 for as many elements as fit into the cluster",
        )


def _check_elements(array: GroupArray, path: str, report: ValidationReport) -> None:
    """Add each problem of the size and the items of an array to the report."""
    if not array.items:
        if not 1 <= array.size <= MAX_ARRAY_ELEMENTS:
            report.add_error(
                f"{path}.Size",
                f"Size must be between 1 and {MAX_ARRAY_ELEMENTS}; got {array.size}",
                "set Size, or give Items",
            )
        return
    if array.size:
        report.add_error(f"{path}.Size", "Size and Items cannot be used together", "remove Size")
    if len(array.items) > MAX_ARRAY_ITEMS:
        report.add_error(
            f"{path}.Items",
            f"Items has {len(array.items)} items; the limit is {MAX_ARRAY_ITEMS}",
            "use Size, and let the task find its input by WHARF_ARRAY_INDEX",
        )
    for position, item in enumerate(array.items):
        size = len(item.encode("utf-8", "surrogatepass"))
        if size > MAX_ITEM_BYTES:
            report.add_error(
                f"{path}.Items[{position}]",
                f"The item is {size} bytes long; an item has at most {MAX_ITEM_BYTES} bytes",
            )
            return  # One is enough: thousands may have the same problem.
        if "\x00" in item:
            report.add_error(f"{path}.Items[{position}]", "The item contains a null character")
            return


def check_arrays_of_job(job: Job, report: ValidationReport) -> None:
    """Add an error to the report if the arrays of a job are too large together, or do not fit its other fields."""
    arrays = [group.array for group in job.groups if group.array is not None]
    if not arrays:
        return
    large_count = sum(array.element_count > 1 for array in arrays)
    if large_count > MAX_ARRAY_GROUPS:
        report.add_error(
            "TaskGroups",
            f"{large_count} groups have an Array; a job has at most {MAX_ARRAY_GROUPS}",
            "use one array with more elements",
        )
    if job.all_at_once:
        reason = (
            "steps: each begins when its needs allow" if job.has_steps else "Array: elements begin one after the other"
        )
        report.add_error("AllAtOnce", f"AllAtOnce cannot be used with {reason}")
    _check_total_elements(job, report)
    item_bytes = _count_bytes(item for array in arrays for item in array.items or ())
    if item_bytes > MAX_ALL_ITEM_BYTES:
        report.add_error(
            "TaskGroups",
            f"The items of all arrays are {item_bytes} bytes long together; the limit is {MAX_ALL_ITEM_BYTES}",
            "use Size, and let the task find its input by WHARF_ARRAY_INDEX",
        )


def _check_total_elements(job: Job, report: ValidationReport) -> None:
    """Add an error at the largest array to the report if the arrays of a job have too many elements together.

    Steps of one element do not count: the limit of steps is also theirs. An array that is too large has an error of its own.
    """
    counts = {
        position: group.array.element_count
        for position, group in enumerate(job.groups)
        if group.array is not None and group.array.element_count > 1
    }
    total = sum(counts.values())
    if total > MAX_ARRAY_ELEMENTS >= max(counts.values()):
        report.add_error(
            f"TaskGroups[{max(counts, key=counts.__getitem__)}].Array",
            f"All arrays have {total} elements together; a job has at most {MAX_ARRAY_ELEMENTS}",
            "use fewer elements, or submit several jobs",
        )


def _count_bytes(texts: Iterable[str]) -> int:
    """Return how many UTF-8 bytes texts have together."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
