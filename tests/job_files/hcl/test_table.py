"""The table of blocks against the records of jobs: no field of one is missing in the other, except those that are listed here."""

import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tests.job_files.hcl.job_texts import build_empty_object
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.job import Job
from wharf.job_files.hcl.block_types import ArgumentKind, BlockType, BodyKind, Storage
from wharf.job_files.hcl.blocks import JOB, iterate_blocks

SERVER_FIELDS: Final = {
    "Service.Namespace", "Job.VersionTag", "Job.Payload", "Job.ConsulNamespace", "Job.VaultNamespace",
}  # fmt: skip
"""Fields of records that no argument sets: servers set them, or only callers of the API do."""
VALUES: Final[dict[ArgumentKind, Any]] = {
    ArgumentKind.TEXT: "x", ArgumentKind.WHOLE: 1, ArgumentKind.BOOL: True, ArgumentKind.DURATION: 1, ArgumentKind.TEXTS: ["x"],
    ArgumentKind.WHOLES: [1], ArgumentKind.TEXT_MAP: {"x": "y"},
}  # fmt: skip


def build_full_object(block: BlockType) -> Any:
    """Return the JSON of a block with every argument and every block."""
    if block.body is not BodyKind.FIELDS:
        return {}
    full = build_empty_object(block)
    full |= dict.fromkeys(block.label_fields, "x")
    full |= {argument.field: VALUES[argument.kind] for argument in block.arguments if not argument.operand}
    for inner in block.blocks:
        if inner.field:
            converted = build_full_object(inner)
            stored = {Storage.OBJECT: converted, Storage.LIST: [converted], Storage.MAP: {"x": converted}}
            full[inner.field] = stored[inner.storage]
            if inner.other_field:
                full[inner.other_field] = [converted] if inner.name == "port" else converted
    return full


def test_every_field_of_the_table_is_a_field_of_the_records() -> None:
    decoded = convert_object(Job, {**build_full_object(JOB), "Status": "pending"})

    assert decoded.unknown_fields == ()


def iterate_records(kind: Any, document: Any) -> Iterator[tuple[type[msgspec.Struct], dict[str, Any]]]:
    """Yield each record type in a type, with the JSON object for it."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (tuple, dict, typing.Union):
        for inner in typing.get_args(kind):
            yield from iterate_records(inner, document)
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        items = document.values() if isinstance(document, dict) and "x" in document else document
        item = next(iter(items)) if not isinstance(items, dict) else items
        yield kind, item
        hints = typing.get_type_hints(kind)
        for field in msgspec.structs.fields(kind):
            if field.encode_name in item and item[field.encode_name] is not None:
                yield from iterate_records(hints[field.name], item[field.encode_name])


def test_every_field_of_the_records_has_an_argument() -> None:
    missing = set()
    for record, item in iterate_records(Job, build_full_object(JOB)):
        names = {field.encode_name for field in msgspec.structs.fields(record)}
        found = {name.lower() for name in item}
        fixed = {name.lower() for name, value in item.items() if value is None}
        missing |= {f"{record.__name__}.{name}" for name in names if name.lower() not in found or name.lower() in fixed}

    server_set = {f"Job.{name}" for name in Job.ignored_when_submitted} | {"Job.Stop", "Job.Version"}
    policies = {f"ScalingPolicy.{name}" for name in ("ID", "Target", "CreateIndex", "ModifyIndex")}
    assert missing - server_set - policies - {"Periodic.SpecType"} == SERVER_FIELDS


def test_every_deprecated_argument_says_what_to_write() -> None:
    deprecated = {
        f"{block.name}.{argument.name}": argument.deprecated
        for _, block in iterate_blocks()
        for argument in block.arguments
        if argument.deprecated
    }

    assert set(deprecated) == {
        "group.stop_after_client_disconnect", "group.max_client_disconnect", "group.prevent_reschedule_on_lost",
        "network.mbits", "resources.disk", "resources.iops", "logs.enabled", "template.vault_grace",
    }  # fmt: skip


def test_the_path_of_a_block_is_unique() -> None:
    paths = [path for path, _ in iterate_blocks()]

    assert len(paths) == len(set(paths))
