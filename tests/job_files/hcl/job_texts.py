"""Short forms for tests of job files: whole files, single blocks wrapped in a file, and the JSON form of a file."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wharf.job_files.hcl.block_types import BlockType, Storage
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.parsing import JOB_FILE_SCHEMA, parse_hcl_job
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import EvaluatedBody, evaluate_document, parse_document, parse_values
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.values import to_plain
from wharf.languages.hcl.variables import VariableInputs

Json = dict[str, Any]


class CountingBytes:
    """A random port that returns 0, 1, 2 and so on."""

    def draw_bytes(self, count: int) -> bytes:
        return bytes(range(count))


PORTS = FunctionPorts(CountingBytes())


def parse_file(text: str, *, values: str | None = None, **inputs: Any) -> ParsedJob:
    """Parse a whole file. Raises `DocumentErrors`."""
    files = (parse_values(values),) if values is not None else ()
    return parse_hcl_job(text, "job.hcl", VariableInputs(files=files, **inputs), PORTS)


def parse_body(body: str) -> Json:
    """Return the JSON of a job with this body."""
    return parse_file(f'job "j" {{\n{body}\n}}\n').document


def parse_group(body: str) -> Json:
    """Return the JSON of a group with this body."""
    group: Json = parse_body(f'group "g" {{\n{body}\n}}')["TaskGroups"][0]
    return group


def parse_task(body: str) -> Json:
    """Return the JSON of a task with this body."""
    task: Json = parse_group(f'task "t" {{\n{body}\n}}')["Tasks"][0]
    return task


def find_error_text(text: str, **inputs: Any) -> str:
    """Return the text of the errors of a whole file."""
    try:
        parse_file(text, **inputs)
    except DocumentErrors as errors:
        return errors.text
    raise AssertionError("the file has no error")


def list_errors(body: str) -> list[str]:
    """Return the messages of the errors of a job with this body, without places, each with its fix after a bar."""
    return list_file_errors(f'job "j" {{\n{body}\n}}\n')


def list_task_errors(body: str) -> list[str]:
    """Return the messages of the errors of a task with this body, as `list_errors`."""
    return list_errors(f'group "g" {{\ntask "t" {{\n{body}\n}}\n}}')


def list_file_errors(text: str) -> list[str]:
    """Return the messages of the errors of a file, as `list_errors`."""
    try:
        parse_file(text)
    except DocumentErrors as errors:
        return [f"{each.message} | {each.fix}" if each.fix else each.message for each in errors.diagnostics]
    return []


@dataclass(frozen=True)
class Example:
    """A block as text, and the fields of its JSON that differ from those of an empty block."""

    path: str
    """The path of the block, such as `job.group.network`."""
    text: str
    fields: Json


def find_blocks(path: str) -> list[BlockType]:
    """Return the blocks of a path, such as `job.group.network`, from the job inward."""
    found = [JOB]
    for name in path.split(".")[1:]:
        found.append(next(block for block in found[-1].blocks if block.name == name))
    return found


def wrap_block(path: str, text: str) -> str:
    """Return a file that contains the text of a block at its path."""
    outer = find_blocks(path)[:-1]
    for block in reversed(outer):
        label = ' "x"' if block.label else ""
        required = "".join(f'{argument.name} = "1"\n' for argument in block.arguments if argument.is_required)
        text = f"{block.name}{label} {{\n{required}{text}\n}}"
    return f"{text}\n"


def find_object(document: Json, path: str, field: str | None = None) -> Any:
    """Return the JSON of the last block of a path: of the first of several. `field` replaces the field of the last block."""
    found: Any = document
    steps = find_blocks(path)[1:]
    for block in steps:
        is_last = block is steps[-1]
        found = found[field if field is not None and is_last else block.field]
        if isinstance(found, list):
            found = found[0]
        elif block.storage is Storage.MAP:
            found = next(iter(found.values()))
    return found


def build_empty_object(block: BlockType) -> Json:
    """Return the JSON of a block without any content, from the table."""
    empty: Json = {
        argument.field: argument.absent
        for argument in block.arguments
        if not argument.operand and not argument.is_absent_omitted
    }
    for inner in block.blocks:
        if inner.field and not inner.is_absent_omitted:
            empty[inner.field] = None
        if inner.other_field:
            empty[inner.other_field] = None
    return {**empty, **block.fixed_fields}


# -- the JSON form


def to_json_form(text: str) -> str:
    """Return a file in the JSON form: with the same values, and without variables and local values."""
    evaluated = evaluate_document(parse_document(text), JOB_FILE_SCHEMA, ports=PORTS)
    evaluated.diagnostics.raise_if_any()
    return json.dumps(_body_to_json(evaluated.body, JOB_FILE_SCHEMA))


def _body_to_json(body: EvaluatedBody, schema: BodySchema) -> Json:
    """Return a body as an object. In a free-form body, JSON does not show labels: they are objects in lists."""
    result: Json = {name: escape_template(to_plain(attribute.value)) for name, attribute in body.attributes.items()}
    for block in body.blocks:
        inner = schema.blocks[block.type].body if not schema.is_free_form else schema
        content: Any = _body_to_json(block.body, inner)
        if schema.is_free_form and block.labels:
            content = [content]
        for label in reversed(block.labels):
            content = {label: content}
            if schema.is_free_form and label is not block.labels[0]:
                content = [content]
        result.setdefault(block.type, []).append(content)
    return result


def escape_template(value: Any) -> Any:
    """Return a value for the JSON form, in which texts are templates."""
    if isinstance(value, str):
        return re.sub(r"(?<!\$)\$\{|(?<!%)%\{", lambda match: match[0][0] + match[0], value)
    if isinstance(value, Mapping):
        return {key: escape_template(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [escape_template(item) for item in value]
    return value
