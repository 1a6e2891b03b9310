"""The text outputs of steps: the record in which servers store them, their limits, and the names by which later steps find them.

The programs of a step write them to a file, whose format is in `wharf.node.tasks.outputs`.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.model.jobs.array_attempts import FAILED, SUCCEEDED, ElementStates
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.steps import MAX_OUTPUT_BYTES
from wharf.contract.model.record import Record

OUTPUTS_FILE: Final = ".wharf_outputs"
"""The name of the file in the folder `alloc/` to which the tasks of a step write its texts."""
MAX_OUTPUT_ELEMENTS: Final = 1_000
"""Elements of an array with text outputs. Its elements share `MAX_OUTPUT_BYTES`, so each has 65 bytes at least."""
MAX_SENT_OUTPUT_BYTES: Final = 256 * 1024
"""UTF-8 bytes of the texts of earlier steps that a node receives with one allocation. Linux limits the variables of a program
to about 2 MB."""
MAX_PROBLEM_CHARS: Final = 500
"""Characters of the reason why texts were not stored; limits the size of a record."""
MIN_PROBLEM_BYTES: Final = 120
"""UTF-8 bytes of the reason that are stored in any case: 120,000 for an array of 1,000 elements."""
REFERENCE_PREFIX: Final = "steps."
"""The beginning of a reference to a text of an earlier step, such as `${steps.build.version}`."""
_REFERENCE: Final = re.compile(r"(\$?)\$\{\s*steps\.([^{}]*)\}")
_ENDED_CODES: Final = frozenset({SUCCEEDED, FAILED})
_INVALID_NAME_CHARACTERS: Final = re.compile("[^A-Za-z0-9_]")

StepTexts = Mapping[str, Mapping[str, str]]
"""The texts of steps, by the name of the step and the name of the text."""


class ReportedOutputs(Record):
    """The texts of an allocation that has ended, as its node read them from their file."""

    texts: dict[str, str] = {}  # By name. A declared text that the program did not write is missing.
    problem: str = ""  # Why texts of the program are missing.


class ElementOutputs(Record):
    """The outputs of one element of a step."""

    index: int
    texts: dict[str, str] = {}  # By name. A declared text that the program did not write is missing.
    problem: str = ""  # Why texts of the program are missing.


class StepOutputs(Record):
    """The texts that the elements of a step left in one attempt.

    Those of an element are added in the write with its result. All together have at most `MAX_OUTPUT_BYTES`, because each end
    of an element writes the whole record.
    """

    namespace: str
    job_id: str
    attempt: int
    group: str
    elements: tuple[ElementOutputs, ...] = ()  # In the order of their ends. One without texts and problems is missing.
    create_index: int = 0
    modify_index: int = 0


class StepOutputsView(Record):
    """The outputs of the elements of a step that have ended, as the API shows them."""

    group: str
    elements: tuple[
        ElementOutputs, ...
    ] = ()  # The lowest index first. Elements without texts and problems are missing.


class JobOutputs(Record):
    """The outputs of the steps of a job."""

    steps: tuple[StepOutputsView, ...] = ()  # In the order of the job. Steps that declare none are missing.


FindOutputs = Callable[[int, str], StepOutputs | None]
"""Returns the stored outputs of an attempt and a step."""


def select_outputs(states: ElementStates, find_outputs: FindOutputs) -> dict[int, ElementOutputs]:
    """Return the outputs of the elements of a step that have ended, by index, each from the attempt that decides its state."""
    found: dict[int, ElementOutputs] = {}
    codes = states.states
    for position, attempt in enumerate(states.attempts):
        stored = find_outputs(attempt.attempt, states.group)
        for outputs in stored.elements if stored is not None else ():
            index = outputs.index
            if index < states.size and states.owners[index] == position and codes[index : index + 1] in _ENDED_CODES:
                found[index] = outputs
    return dict(sorted(found.items()))


def list_output_names(group: TaskGroup | None) -> tuple[str, ...]:
    """Return the names of the texts that a step declares."""
    return (group.outputs.text or ()) if group is not None and group.outputs is not None else ()


def get_output_limit(element_count: int) -> int:
    """Return how many UTF-8 bytes the texts of one element may have, for a step with this number of elements."""
    return MAX_OUTPUT_BYTES // max(1, element_count)


def get_problem_limit(element_count: int) -> int:
    """Return how many UTF-8 bytes the problem of one element may have, for a step with this number of elements.

    Each end of an element writes the problems of all elements. An event of the task has the whole text.
    """
    return max(MIN_PROBLEM_BYTES, min(MAX_PROBLEM_CHARS, MAX_OUTPUT_BYTES // max(1, element_count)))


def cut_problem(problem: str, max_bytes: int) -> str:
    """Return the beginning of a problem, with an ellipsis if it is longer."""
    if len(problem.encode()) <= max_bytes:
        return problem
    return problem.encode()[: max_bytes - len("…".encode())].decode(errors="ignore") + "…"


def count_text_bytes(texts: Mapping[str, str]) -> int:
    """Return the UTF-8 bytes of names and texts together."""
    return sum(len(name.encode()) + len(text.encode()) for name, text in texts.items())


def limit_outputs(outputs: ReportedOutputs, names: Iterable[str], max_bytes: int) -> ReportedOutputs:
    """Return the outputs without undeclared texts, and without any text if they are too large together."""
    declared = frozenset(names)
    texts = {name: text for name, text in outputs.texts.items() if name in declared}
    problem = outputs.problem
    if (size := count_text_bytes(texts)) > max_bytes:
        texts = {}
        problem = (
            f"the outputs have {size:,} bytes together, and the limit is {max_bytes:,}: none is stored. Write long results "
            "to a file below alloc/, and keep it with Outputs.Keep"
        )
    return ReportedOutputs(texts=texts, problem=problem[:MAX_PROBLEM_CHARS])


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(ReportedOutputs)


def pack_outputs(outputs: ReportedOutputs) -> bytes:
    """Return the outputs as bytes, as an allocation has them until the result of its element is decided."""
    return _encoder.encode(outputs)


def unpack_outputs(packed: bytes) -> ReportedOutputs:
    """Return the outputs of `pack_outputs`; empty ones for bytes that are damaged."""
    try:
        return _decoder.decode(packed)
    except msgspec.MsgspecError:
        return ReportedOutputs(problem="the stored outputs are damaged")


def build_variable_name(group: str, name: str) -> str:
    """Return the name of the environment variable with a text of an earlier step, without its prefix `WHARF_`."""
    return _INVALID_NAME_CHARACTERS.sub("_", f"STEP_{group}_{name}").upper()


def list_needed_steps(job: Job, group: TaskGroup) -> list[str]:
    """Return the steps that a step needs directly or through others, the nearest first.

    A final step without needs waits for all steps that are not final.
    """
    return list(iterate_needed_steps(job, group))


def iterate_needed_steps(job: Job, group: TaskGroup) -> Iterator[str]:
    """Yield the steps that a step needs, as `list_needed_steps` does. The nearest ones take no time for the others."""
    if group.final and not group.depends:
        yield from (each.name for each in job.groups if not each.final)
        return
    found = dict.fromkeys(need.on for need in group.depends or ())
    waiting = deque(found)
    while waiting:
        name = waiting.popleft()
        yield name
        needed = job.find_group(name)
        for need in (needed.depends or ()) if needed is not None else ():
            if need.on not in found:
                found[need.on] = None
                waiting.append(need.on)


class NeededSteps:
    """The steps that each step of a job needs directly or through others. Their computation takes milliseconds for 500 steps.

    A job whose steps wait for each other in a circle may have them too, because it is validated.
    """

    def __init__(self, job: Job) -> None:
        self._bits = {group.name: 1 << position for position, group in enumerate(job.groups)}
        self._needed: dict[str, int] = {}
        """The bits of the steps that a step needs."""
        direct = {group.name: self._list_direct(job, group) for group in job.groups}
        order = _sort_by_needs(direct)
        is_complete = False
        while not is_complete:  # One pass is enough, and one more finds that out, unless steps wait in a circle.
            is_complete = True
            for name in order:
                bits = 0
                for each in direct[name]:
                    bits |= self._bits[each] | self._needed.get(each, 0)
                if bits != self._needed.get(name, 0):
                    self._needed[name] = bits
                    is_complete = False

    def _list_direct(self, job: Job, group: TaskGroup) -> list[str]:
        if group.final and not group.depends:
            return [each.name for each in job.groups if not each.final]
        return [need.on for need in group.depends or () if need.on in self._bits]

    def has(self, step: str, needed: str) -> bool:
        """Return whether a step needs another one."""
        return bool(self._needed.get(step, 0) & self._bits.get(needed, 0))


def _sort_by_needs(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return steps so that each one comes after those that it needs, unless they wait for each other in a circle."""
    order: list[str] = []
    visited: set[str] = set()
    for first in needs:
        path = [] if first in visited else [(first, iter(needs[first]))]
        visited.add(first)
        while path:
            name, following = path[-1]
            unvisited = next((each for each in following if each not in visited), None)
            if unvisited is None:
                order.append(name)
                path.pop()
            else:
                visited.add(unvisited)
                path.append((unvisited, iter(needs[unvisited])))
    return order


def list_references(text: str) -> list[str]:
    """Return the references to texts of steps in a text, each once, such as `build.version` for `${steps.build.version}`."""
    if "steps." not in text:
        return []
    found = dict.fromkeys(_REFERENCE.findall(text))
    return [reference.strip() for is_escaped, reference in found if not is_escaped]
