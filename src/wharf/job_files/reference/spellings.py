"""How HCL spells each field of the API, from the table of HCL blocks."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec

from wharf.contract.model.jobs.job import Job
from wharf.job_files.hcl.block_types import BlockType, BodyKind
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.reference.defaults import iterate_record_types, list_field_types


class Spelling(NamedTuple):
    """How HCL spells one field."""

    name: str
    """The name of the argument or block; empty if the field is the label of its block."""
    form: str
    """`argument`, `block`, `map` (a block with any names), or `label`."""
    has_label: bool = False


class BlockPlace(NamedTuple):
    """One place of a block in the table, with the record that holds its fields."""

    path: tuple[str, ...]
    """The names of the blocks from `job` on."""
    block: BlockType
    record_type: type[msgspec.Struct]


def iterate_block_places(
    block: BlockType = JOB, record_type: type[msgspec.Struct] = Job, path: tuple[str, ...] = ("job",)
) -> Iterator[BlockPlace]:
    """Yield each block at each place of the table whose fields are those of a record.

    Blocks that are stored elsewhere are left out: those of a job or group that are copied to its tasks.
    """
    yield BlockPlace(path, block, record_type)
    for inner in block.blocks:
        inner_type = find_record_type(record_type, inner.field)
        if inner_type is not None and inner.body is BodyKind.FIELDS:
            yield from iterate_block_places(inner, inner_type, (*path, inner.name))


def find_record_type(record_type: type[msgspec.Struct], field: str) -> type[msgspec.Struct] | None:
    """Return the record class of a field, or `None` if the field holds no record or does not exist."""
    return next(iterate_record_types(list_field_types(record_type).get(field)), None)


@cache
def find_spellings() -> dict[tuple[str, str], list[Spelling]]:
    """Return the HCL spellings of each field, by the name of its record class and its wire name in lower case.

    Names of fields are not case-sensitive: the table writes `URL` for the field `Url`.
    """
    found: dict[tuple[str, str], list[Spelling]] = {}
    for place in iterate_block_places():
        record_name = place.record_type.__name__
        for field in place.block.label_fields:
            _add(found, (record_name, field), Spelling("", "label"))
        for argument in place.block.arguments:
            _add(found, (record_name, argument.field), Spelling(argument.name, "argument"))
        for inner in place.block.blocks:
            form = "block" if inner.body is BodyKind.FIELDS else "map"
            spelling = Spelling(inner.name, form, bool(inner.label))
            for field in filter(None, (inner.field, inner.other_field)):
                _add(found, (record_name, field), spelling)
    return found


def _add(found: dict[tuple[str, str], list[Spelling]], field: tuple[str, str], spelling: Spelling) -> None:
    spellings = found.setdefault((field[0], field[1].lower()), [])
    if spelling not in spellings:
        spellings.append(spelling)
