"""Properties of job files: any damaged file is a job or has errors with places in it, within a limit of CPU time.

`make fuzz` tries many more files: `make fuzz JOB_FILES=1000000`.
"""

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.job_files.hcl.examples import EXAMPLES
from tests.job_files.hcl.job_texts import PORTS, parse_file, to_json_form, wrap_block
from wharf.contract.model.decoding import DecodingError, DecodingProblem, convert_object
from wharf.contract.model.jobs.job import Job
from wharf.job_files.hcl import ParsedJob, parse_hcl_job
from wharf.job_files.hcl.block_types import ArgumentKind
from wharf.job_files.hcl.blocks import iterate_blocks
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS, DocumentErrors
from wharf.languages.hcl.variables import VariableInputs

MAX_CPU_S: Final = 1.0
MAX_ATTEMPTS: Final = 3
MAX_EXAMPLES: Final = int(os.environ.get("FUZZ_JOB_FILES", "0")) or settings().max_examples * 6
FILES: Final = [path.read_text() for path in sorted((Path(__file__).parent / "files").glob("*.hcl"))]
BLOCKS: Final = [wrap_block(example.path, example.text) for example in EXAMPLES]
JSON_FILES: Final = [to_json_form(text) for text in BLOCKS]
NAMES: Final = sorted(
    {name for _, block in iterate_blocks() for name in (block.name, *(a.name for a in block.arguments))}
)
PIECES: Final = (
    "", "\n", " ", "{", "}", "{}", "[", "]", "(", ")", '"', '"x"', "${", "%{", "$${", "=", " = ", ",", ":", "null", "true", "0", "-1",
    "1.5", "1e30", "9223372036854775808", "[null]", "{ a = null }", '"5"', '"30s"', '"1d"', "attr.x", "var.x", "local.x", "nope()",
    "file(\"x\")", "<<EOF\n", "<<-EOF\n", "EOF\n", "#", "/*", "\\", "'", "é", "😀", "\x00", "\r\n", '"//":',
    'dynamic "group" {\n for_each = ["a", "b"]\n labels = [group.value]\n content {\n', "for_each = 1\n", "a = 1\n", "b {\n}\n",
    "[for x in range(1000) : [for y in range(1000) : x]]", "vault {}\n", 'secret "s" {}\n', 'scaling "x" {}\n', "port x {}\n",
)  # fmt: skip

CHANGES: Final = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 60),
        st.sampled_from(PIECES) | st.sampled_from(NAMES) | st.text(max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def try_parse(text: str) -> ParsedJob | DocumentErrors:
    """Return the job of a file, or its errors."""
    try:
        return parse_hcl_job(text, "job.hcl", VariableInputs(), PORTS)
    except DocumentErrors as errors:
        return errors


def list_problems(job: ParsedJob) -> list[DecodingProblem]:
    """Return the problems that a server finds while it decodes the job."""
    try:
        convert_object(Job, job.document)
    except DecodingError as error:
        return list(error.problems)
    return []


def measure_cpu_s(text: str) -> float:
    """Return the CPU time of parsing a file."""
    started_s = time.process_time()
    try_parse(text)
    return time.process_time() - started_s


def check_file(text: str) -> None:
    """Parse a file. It is a job that JSON can hold, or it has errors with places in the text."""
    # A collection of the garbage of many examples may take a second, so a slow file has further attempts.
    assert any(measure_cpu_s(text) < MAX_CPU_S for _ in range(MAX_ATTEMPTS))
    result = try_parse(text)
    if isinstance(result, DocumentErrors):
        assert 0 < len(result.diagnostics) <= MAX_DIAGNOSTICS
        for diagnostic in result.diagnostics:
            place = diagnostic.place
            assert 0 <= place.start <= place.end <= len(place.source.text)
            assert diagnostic.message
        assert re.match(r"job\.hcl:\d+:\d+: ", result.text)
        return
    json.dumps(result.document, allow_nan=False)
    for path, place in result.places.items():
        assert result.find_place(path) == place
    for problem in list_problems(result):
        assert result.render_problem(problem.path, problem.path, problem.message).startswith("job.hcl:")


def apply_changes(text: str, changes: list[tuple[float, int, str]]) -> str:
    """Return the text with parts replaced, each at a fraction of its length."""
    for fraction, count, inserted in changes:
        position = int(fraction * len(text))
        text = text[:position] + inserted + text[position + count :]
    return text


@settings(max_examples=MAX_EXAMPLES)
@given(st.sampled_from((*FILES, *BLOCKS, *JSON_FILES)), CHANGES)
def test_a_damaged_file_is_a_job_or_has_errors(text: str, changes: list[tuple[float, int, str]]) -> None:
    check_file(apply_changes(text, changes))


@settings(max_examples=MAX_EXAMPLES)
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=4),
)
def test_a_file_with_moved_and_doubled_lines_is_a_job_or_has_errors(text: str, moves: list[tuple[int, int]]) -> None:
    lines = text.split("\n")
    for source, target in moves:
        lines.insert(target % len(lines), lines[source % len(lines)])

    check_file("\n".join(lines))


VALUES: Final = st.sampled_from(
    ("null", "true", "1", "-1", "1.5", '"x"', '"5"', '"30s"', '"true"', "[]", '["a", 1]', "[null]", "[[]]", "{}", "{ a = 1 }",
     "attr.x", '"${meta.y}"', "1e300", "200", '""')
)  # fmt: skip


@st.composite
def build_files(draw: st.DrawFn) -> str:
    """Build a file of blocks of the table with any values."""

    def build_body(block: Any, depth: int) -> str:
        lines = [
            f"{argument.name} = {draw(VALUES)}"
            for argument in block.arguments
            if argument.is_required or draw(st.integers(0, 3)) == 0
        ]
        if depth:
            for inner in block.blocks:
                for _ in range(draw(st.sampled_from((0, 0, 0, 0, 0, 1, 2)))):
                    label = ' "cpu"' if inner.label else ""
                    lines.append(f"{inner.name}{label} {{\n{build_body(inner, depth - 1)}\n}}")
        return "\n".join(lines)

    job = next(block for _, block in iterate_blocks())
    return f'job "j" {{\n{build_body(job, draw(st.integers(1, 3)))}\n}}\n'


@given(build_files())
def test_any_values_of_the_table_are_a_job_or_have_errors(text: str) -> None:
    check_file(text)


@given(build_files())
def test_the_json_form_is_the_same_job(text: str) -> None:
    native = try_parse(text)

    if isinstance(native, ParsedJob):
        assert parse_file(to_json_form(text)).document == native.document


def test_every_kind_of_value_is_in_the_table() -> None:
    assert {argument.kind for _, block in iterate_blocks() for argument in block.arguments} == set(ArgumentKind)
