"""Properties of job files: any damaged file is a job or has errors with places in it, within a limit of CPU time.

`make test` tries some files with Hypothesis, which finds a small one if a file fails. `make fuzz JOB_FILES=1000000` also tries files
that a random generator with a seed damages: Hypothesis takes twice the time of the parser, and its memory grows with each file.
"""

import json
import os
import re
import time
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attempts import is_cpu_limit_kept
from tests.job_files.hcl.examples import EXAMPLES
from tests.job_files.hcl.job_texts import PORTS, parse_file, to_json_form, wrap_block
from wharf.contract.model.decoding import DecodingError, DecodingProblem, convert_object
from wharf.contract.model.jobs.job import Job
from wharf.job_files.data_writer import simplify_job, write_document
from wharf.job_files.hcl.block_types import ArgumentKind
from wharf.job_files.hcl.blocks import iterate_blocks
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.parsing import parse_hcl_job
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.languages.hcl.diagnostics import MAX_DIAGNOSTICS, DocumentErrors
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat

MAX_CPU_S: Final = 1.0
MAX_ATTEMPTS: Final = 3
MAX_EXAMPLES: Final = settings().max_examples * 6
RANDOM_FILES: Final = int(os.environ.get("FUZZ_JOB_FILES", "600"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
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

MARKUP_PIECES: Final = (
    "", "\n", "  ", "- ", ": ", "{", "}", "[", "]", '"', "'", "#", "&a ", "*a", "<<: *a", "!x ", "!!int ", "|\n", ">\n", "---\n", "...\n",
    "%", "@", "\t", "null", "1e400", ".inf", "0x1F", "2020-01-01", "9" * 5_000, "[" * 200, "\\", "\\u12", "\\ud800", "${var.x}", "${",
    "variables:\n  x: 1\n", ",", "x-a: &a {b: c}\n", "? ", "{a: 1}", '{"a":1}', '"a": 1, "a": 2,',
)  # fmt: skip
CHARACTERS: Final = tuple(map(chr, (*range(128), *range(0x300, 0x310), 0x2028, 0x1F600, 0xFFFF)))
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
    started_s = time.process_time()
    result = try_parse(text)
    if time.process_time() - started_s >= MAX_CPU_S:
        # A collection of the garbage of many examples may take a second, so a slow file has further attempts.
        assert any(is_cpu_limit_kept(measure_cpu_s(text), MAX_CPU_S) for _ in range(MAX_ATTEMPTS))
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


def move_lines(text: str, moves: list[tuple[int, int]]) -> str:
    """Return the text with copies of lines, each from one place to another."""
    lines = text.split("\n")
    for source, target in moves:
        lines.insert(target % len(lines), lines[source % len(lines)])
    return "\n".join(lines)


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
    check_file(move_lines(text, moves))


def damage_file(random: Random) -> str:
    """Return a file with random changes: replaced parts, or moved and doubled lines."""
    if random.randrange(3) == 0:
        moves = [(random.randrange(200), random.randrange(200)) for _ in range(random.randint(1, 4))]
        return move_lines(random.choice(FILES), moves)
    changes = [
        (random.random(), random.randint(0, 60), random.choice(random.choice((PIECES, NAMES, CHARACTERS))))
        for _ in range(random.randint(1, 4))
    ]
    return apply_changes(random.choice(random.choice((FILES, BLOCKS, JSON_FILES))), changes)


@pytest.mark.fuzz
def test_randomly_damaged_files_are_jobs_or_have_errors() -> None:
    for number in range(RANDOM_FILES):
        text = damage_file(Random(f"{SEED}-{number}"))
        try:
            check_file(text)
        except BaseException:
            print(f"file {number} of the seed {SEED}:\n{text}")
            raise


def convert_files() -> list[tuple[MarkupFormat, str]]:
    """Return the files in the other languages."""
    documents = [
        simplify_job(parsed.document) for parsed in map(try_parse, (*FILES, *BLOCKS)) if isinstance(parsed, ParsedJob)
    ]
    return [(format, write_document(each, format)) for each in documents[:40] for format in MarkupFormat]


def check_data_file(text: str, format: MarkupFormat) -> None:
    """Parse a file in YAML, JSON or TOML. It is a job, or it has errors with places in the text."""
    error = ""
    try:
        parse_markup_job(text, f"job.{format}", format, VariableInputs(), PORTS)
    except DocumentErrors as errors:
        error = errors.text
    assert not error or re.match(rf"job\.{format}:\d+:\d+: |job\.{format}: the file is empty", error)


@pytest.mark.fuzz
def test_randomly_damaged_files_in_other_languages_are_jobs_or_have_errors() -> None:
    files = convert_files()
    for number in range(RANDOM_FILES // 4):
        random = Random(f"{SEED}-{number}")
        format, text = random.choice(files)
        changes = [
            (
                random.random(),
                random.choice((0, 0, 1, 3, 20)),
                random.choice(random.choice((MARKUP_PIECES, NAMES, CHARACTERS))),
            )
            for _ in range(random.randint(1, 4))
        ]
        damaged = apply_changes(text, changes)
        try:
            check_data_file(damaged, format)
        except BaseException:
            print(f"file {number} of the seed {SEED}, in {format}:\n{damaged}")
            raise


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
