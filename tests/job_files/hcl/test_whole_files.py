"""Whole job files as users write them, each with the job that it becomes.

`python -m tests.job_files.hcl.test_whole_files` writes the jobs again. Read the difference before you commit it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.job_files.hcl.job_texts import parse_file
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job

FILES = sorted((Path(__file__).parent / "files").glob("*.hcl"))
SETTINGS = JobSettings(
    region="global",
    node_pool="default",
    default_priority=50,
    max_priority=100,
    max_count=0,
    memory_oversubscription=True,
    max_source_bytes=1_000_000,
    versions_kept=6,
)


def drop_absent(value: Any) -> Any:
    """Return a job without fields that are null or an empty text. The table of blocks has tests for them."""
    if isinstance(value, dict):
        kept = {name: drop_absent(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item != ""}
    if isinstance(value, list):
        return [drop_absent(item) for item in value]
    return value


def read_job(path: Path) -> Any:
    return drop_absent(parse_file(path.read_text()).document)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_becomes_its_job(path: Path) -> None:
    assert read_job(path) == json.loads(path.with_suffix(".json").read_text())


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_file_has_no_warnings_and_no_unknown_fields(path: Path) -> None:
    job = parse_file(path.read_text())
    decoded = convert_object(Job, job.document)

    assert (job.warnings, decoded.unknown_fields) == ([], ())
    assert canonicalize_job(decoded.value, SETTINGS).id == job.document["ID"]


if __name__ == "__main__":
    for file in FILES:
        file.with_suffix(".json").write_text(json.dumps(read_job(file), indent=2, ensure_ascii=False) + "\n")
