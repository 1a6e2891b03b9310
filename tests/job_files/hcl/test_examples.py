"""Each block of job files with every argument, in the native and the JSON form: the table of blocks against literal JSON."""

import pytest

from tests.job_files.hcl.examples import EXAMPLES
from tests.job_files.hcl.job_texts import (
    PORTS,
    Example,
    build_empty_object,
    find_blocks,
    find_object,
    parse_file,
    to_json_form,
    wrap_block,
)
from wharf.job_files.hcl.block_types import Argument, BlockType, BodyKind
from wharf.job_files.hcl.blocks import iterate_blocks
from wharf.job_files.hcl.parsing import JOB_FILE_SCHEMA
from wharf.languages.hcl.documents import EvaluatedBody, evaluate_document, parse_document

EXAMPLE_IDS = [f"{example.path.removeprefix('job.')}-{number}" for number, example in enumerate(EXAMPLES)]


def build_expected(example: Example) -> dict[str, object]:
    """Return the whole JSON of an example: its fields, and those of an empty block."""
    block = find_blocks(example.path)[-1]
    return {**build_empty_object(block), **example.fields} if block.body is BodyKind.FIELDS else example.fields


@pytest.mark.parametrize("example", EXAMPLES, ids=EXAMPLE_IDS)
def test_a_block_has_its_fields(example: Example) -> None:
    document = parse_file(wrap_block(example.path, example.text)).document

    assert find_object(document, example.path) == build_expected(example)


@pytest.mark.parametrize("example", EXAMPLES, ids=EXAMPLE_IDS)
def test_a_block_has_the_same_fields_in_the_json_form(example: Example) -> None:
    text = to_json_form(wrap_block(example.path, example.text))

    assert find_object(parse_file(text).document, example.path) == build_expected(example)


def list_used_items(body: EvaluatedBody, block: BlockType) -> set[tuple[str, int]]:
    """Return the arguments and blocks of a body, with the identities of their rows in the table."""
    rows: dict[str, Argument | BlockType] = {argument.name: argument for argument in block.arguments}
    rows |= {inner.name: inner for inner in block.blocks}
    used = {(f"argument {name}", id(rows[name])) for name in body.attributes if name in rows}
    for inner in body.blocks:
        row = rows.get(inner.type)
        if isinstance(row, BlockType):
            used |= {(f"block {row.name}", id(row)), *list_used_items(inner.body, row)}
    return used


def test_every_block_and_argument_has_an_example() -> None:
    used: set[tuple[str, int]] = set()
    for example in EXAMPLES:
        document = parse_document(wrap_block(example.path, example.text))
        job = evaluate_document(document, JOB_FILE_SCHEMA, ports=PORTS).body.blocks[0]
        used |= list_used_items(job.body, find_blocks("job")[0])
    # The content of blocks that are copied or moved is the same as in tasks and groups: see test_completion.
    rows: dict[int, tuple[str, int]] = {}
    for _, block in iterate_blocks():
        rows |= {id(each): (f"argument {each.name}", id(each)) for each in block.arguments}
        if block.name != "job" and block.field:
            rows[id(block)] = (f"block {block.name}", id(block))

    assert {name for name, _ in set(rows.values()) - used} == set()
