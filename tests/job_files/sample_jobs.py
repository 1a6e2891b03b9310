"""Jobs that contain a given block: with an example of it, or with every block of a job."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import Findings, validate_job
from wharf.contract.model.times import parse_duration_ns
from wharf.job_files.reference.defaults import SAMPLE_SETTINGS
from wharf.job_files.reference.document import build_schema_document
from wharf.job_files.reference.examples import EXAMPLES
from wharf.job_files.schema import iterate_fields

SCHEMA = build_schema_document()
DURATION_TYPE = "duration"
BATCH_BLOCKS = {
    "Periodic", "Parameterized", "GroupArray", "Need", "Gate", "Lock", "Outputs", "StepRetry", "Flow",
}  # fmt: skip
INHERITED = (("Update",), ("Migrate",), ("Reschedule",))
MAIN_TASK = {"Name": "main", "Driver": "mock"}
"""A group needs a main task beside one with a lifecycle."""
BASE = {
    "ID": "shop",
    "TaskGroups": [
        {
            "Name": "g",
            "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
            "Volumes": {"data": {"Type": "host", "Source": "data"}},
            "Tasks": [{"Name": "t", "Driver": "mock"}],
        }
    ],
}


def build_job_with_example(block_name: str) -> dict[str, Any]:
    """Return a job that contains the example of a block, at its place nearest to the job."""
    if block_name == "Job":
        return copy.deepcopy(dict(EXAMPLES["Job"]))
    job = copy.deepcopy(BASE)
    if block_name in BATCH_BLOCKS:
        job["Type"] = "batch"
    if block_name == "Lifecycle":
        job["TaskGroups"][0]["Tasks"].append(MAIN_TASK)  # type: ignore[index]
    driver = next((name for name, options in SCHEMA["x-drivers"].items() if options == block_name), "")
    if driver:
        task: dict[str, Any] = {"Name": "t", "Driver": driver, "Config": dict(EXAMPLES[block_name])}
        job["TaskGroups"][0]["Tasks"] = [task]  # type: ignore[index]
        return job
    path = next(field.path for field in iterate_fields() if field.block_name == block_name)
    if block_name == "WorkloadIdentity":
        path = ("TaskGroups", "Tasks", "Identities")
    _embed(job, path, "Job", block_name)
    return job


def _embed(outer: dict[str, Any], path: tuple[str, ...], outer_name: str, block_name: str) -> None:
    """Put the example of a block into an object at a path, with examples of the blocks between them."""
    name, *rest = path
    entry = SCHEMA["$defs"][outer_name]["properties"][name]
    is_last = not rest
    if (is_last and entry["x-block"] in EXAMPLES) or name not in outer:
        example = copy.deepcopy(dict(EXAMPLES.get(entry["x-block"], {})))
        kind = entry["x-type"]
        outer[name] = (
            [example] if kind == "list of blocks" else {"data": example} if kind == "map of blocks" else example
        )
    if not is_last:
        inner = outer[name]
        inner = inner[0] if isinstance(inner, list) else next(iter(inner.values())) if name == "Volumes" else inner
        _embed(inner, tuple(rest), entry["x-block"], block_name)


def to_api_json(value: Any, block_name: str = "Job") -> Any:
    """Return a job with the durations of its file as nanoseconds."""
    properties = SCHEMA["$defs"][block_name]["properties"]
    converted: dict[str, Any] = {}
    for name, item in value.items():
        entry = properties[name]
        if entry["x-type"] == DURATION_TYPE and isinstance(item, str):
            converted[name] = parse_duration_ns(item)
        elif "x-block" not in entry or item is None:
            converted[name] = item
        elif isinstance(item, list):
            converted[name] = [to_api_json(each, entry["x-block"]) for each in item]
        elif entry["x-type"] == "map of blocks":
            converted[name] = {key: to_api_json(each, entry["x-block"]) for key, each in item.items()}
        else:
            converted[name] = to_api_json(item, entry["x-block"])
    return converted


def canonicalize(document: Mapping[str, Any]) -> Job:
    """Return the canonical form of a submitted job."""
    return canonicalize_job(convert_object(Job, document).value, SAMPLE_SETTINGS)


def find_problems(document: Mapping[str, Any]) -> Findings:
    """Return the problems of a submitted job, which must not have unknown fields."""
    assert convert_object(Job, document).unknown_paths == ()
    return validate_job(canonicalize(document), SAMPLE_SETTINGS)


class BlockPlace(NamedTuple):
    """A job with the example of a block at one of its places, and the path of the block in error messages."""

    job: dict[str, Any]
    block: dict[str, Any]
    path: str


def iterate_block_places(block_name: str) -> Iterator[BlockPlace]:
    """Yield a job for each place of a block, with durations as nanoseconds. All else in these jobs is valid.

    Blocks of a job that its groups inherit are left out, and what Wharf does not support.
    """
    if block_name == "Job":
        job = to_api_json(build_job_with_example("Job"))
        yield BlockPlace(job, job, "")
        return
    for field in iterate_fields():
        if field.block_name != block_name or field.path in INHERITED or "ScalingPolicies" in field.path:
            continue
        job = copy.deepcopy(BASE)
        if block_name in BATCH_BLOCKS:
            job["Type"] = "batch"
        _embed(job, field.path, "Job", block_name)
        job = to_api_json(job)
        yield _find_block(job, field.path)


def _find_block(job: dict[str, Any], path: tuple[str, ...]) -> BlockPlace:
    """Return the place of the first block at a path."""
    block, text = job, ""
    for name in path:
        block, text = block[name], f"{text}.{name}".lstrip(".")
        if isinstance(block, list):
            block, text = block[0], f"{text}[0]"
        elif name == "Volumes":
            block, text = block["data"], f"{text}.data"
    return BlockPlace(job, block, text)
