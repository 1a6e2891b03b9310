"""The text outputs of the simulated steps, and the conditions that read them.

Both follow the text about batch work and not the product's code: what a program writes depends on its allocation only, and a
condition compares one text with a constant.
"""

import re
from collections.abc import Mapping
from typing import Final

from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ARRAY_RESULTS, ATTEMPTS_OF_JOB, STEP_OUTPUTS
from wharf.contract.model.jobs.array_attempts import CHUNK_ELEMENTS, ArrayAttempt
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job

PICK: Final = "pick"
ORIGIN: Final = "origin"
TEXT_NAMES: Final = (PICK, ORIGIN)
PICKS: Final = ("odd", "even")
_CONDITION: Final = re.compile(
    r'(?:steps\["(?P<step>[^"]+)"\]\.(?P<name>\w+)|meta\.(?P<meta>\w+)) (?P<sign>==|!=) "(?P<text>[^"]*)"'
)


def write_texts(allocation_id: str) -> dict[str, str]:
    """Return the texts that the program of an allocation writes. No two allocations write the same."""
    return {PICK: PICKS[int(allocation_id[-1], 16) % 2], ORIGIN: allocation_id}


def declares_texts(group: TaskGroup | None) -> bool:
    return group is not None and group.outputs is not None and bool(group.outputs.text)


def read_code(replica: Replica, attempt: ArrayAttempt, group: str, index: int) -> str:
    """Return the stored result of an element in one attempt: `-` if the attempt does not run it, `.` if it has not ended."""
    chunk, position = divmod(index, CHUNK_ELEMENTS)
    results = replica.get(ARRAY_RESULTS, attempt.namespace, attempt.job_id, attempt.attempt, group, chunk)
    if results is None:
        return "." if attempt.groups[group].is_full else "-"
    return chr(results.results[position])


def list_attempts(replica: Replica, job: Job) -> list[ArrayAttempt]:
    """Return the attempts of a job, oldest first."""
    found = replica.list_by_index(ATTEMPTS_OF_JOB, job.namespace, job.id)
    return sorted((each for each in found if each.job_create_index == job.create_index), key=lambda each: each.attempt)


def find_texts(replica: Replica, job: Job, step: str, index: int) -> Mapping[str, str]:
    """Return the stored texts of an element of a step; empty if it has not ended in the attempt that decides it."""
    decisive, code = None, ""
    for attempt in list_attempts(replica, job):
        if step in attempt.groups and (found := read_code(replica, attempt, step, index)) != "-":
            decisive, code = attempt, found
    if decisive is None or code not in ("s", "f"):
        return {}
    stored = replica.get(STEP_OUTPUTS, job.namespace, job.id, decisive.attempt, step)
    elements = stored.elements if stored is not None else ()
    return next((each.texts for each in elements if each.index == index), {})


def is_condition_true(replica: Replica, job: Job, condition: str) -> bool:
    """Return whether a condition of a simulated step is true. A text that was not written is empty."""
    found = _CONDITION.fullmatch(condition)
    assert found is not None, f"a simulated step has the condition {condition}"
    if found["meta"]:
        value = (job.meta or {}).get(found["meta"], "")
    else:
        value = find_texts(replica, job, found["step"], 0).get(found["name"], "")
    return (value == found["text"]) is (found["sign"] == "==")
