"""Maps an evaluated job block to the JSON of the job, by the table of blocks.

Every object has all of its fields, also those that the file does not set. Values are not judged here: whether a job is valid
is decided when it is submitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from wharf.job_files.hcl import blocks
from wharf.job_files.hcl.argument_values import (
    TEXT_LIST_TYPE,
    TEXT_MAP_TYPE,
    convert_argument,
    convert_text,
    convert_text_list,
    describe_found,
    describe_mismatch,
)
from wharf.job_files.hcl.block_types import Argument, BlockType, BodyKind, Storage, build_empty_object
from wharf.job_files.hcl.places import JsonObject, ObjectOrigin
from wharf.languages.hcl.budget import Budget
from wharf.languages.hcl.conversions import ConversionError, to_text
from wharf.languages.hcl.diagnostics import HIDDEN, DiagnosticList, SourceRange
from wharf.languages.hcl.documents import EvaluatedAttribute, EvaluatedBlock, EvaluatedBody
from wharf.languages.hcl.template_texts import TemplateText
from wharf.languages.hcl.values import MAPPINGS, SEQUENCES, describe_value, has_sensitive_parts, to_plain

HORIZONTAL: Final = "horizontal"
VERTICAL_TYPES: Final[Mapping[str, str]] = {"cpu": "vertical_cpu", "mem": "vertical_mem"}
DEFAULT_IDENTITY_NAMES: Final = ("", "default")
_ENTRY_BYTES: Final = 8
"""What an entry of a map counts as, beside its texts."""


@dataclass(frozen=True, slots=True)
class _BlockPlan:
    """What converting a block needs, computed once: the object without any arguments, and its size as JSON."""

    empty_object: JsonObject
    size: int
    arguments: Mapping[str, Argument]
    blocks: Mapping[str, BlockType]
    required: tuple[Argument, ...]
    list_fields: tuple[str, ...]
    """The fields that are empty lists without their argument. Each object gets lists of its own."""


@cache
def _get_plan(block: BlockType) -> _BlockPlan:
    empty = dict(build_empty_object(block))
    return _BlockPlan(
        empty,
        len(msgspec.json.encode(empty)),
        {argument.name: argument for argument in block.arguments},
        {inner.name: inner for inner in block.blocks},
        tuple(argument for argument in block.arguments if argument.is_required),
        tuple(name for name, value in empty.items() if isinstance(value, list)),
    )


ShortForms: TypeAlias = list[tuple[Argument, EvaluatedAttribute, Any]]
"""The short forms that a constraint or an affinity uses, such as `version = ">= 1.2"`, with their values."""


class JobMapper:
    """Converts blocks to JSON objects. Errors are added to the diagnostics, and the result is then incomplete."""

    def __init__(self, diagnostics: DiagnosticList, budget: Budget) -> None:
        self._diagnostics = diagnostics
        self._budget = budget
        self.origins: dict[int, ObjectOrigin] = {}
        """The origins of all objects, by identity."""

    def map_job(self, job: EvaluatedBlock) -> JsonObject:
        """Return the JSON of a job. Raises `BudgetExceeded`."""
        return self._convert_block(blocks.JOB, job)

    def _add_error(
        self, place: SourceRange, message: str, fix: str = "", related: tuple[SourceRange, str] | None = None
    ) -> None:
        self._diagnostics.add(place.source, place.start, place.end, message, fix, related=related)

    # -- blocks

    def _convert_block(self, block: BlockType, source: EvaluatedBlock) -> JsonObject:
        """Return the JSON object of a block."""
        match block.body:
            case BodyKind.FIELDS:
                result = self._convert_fields(block, source)
            case BodyKind.FREE_FORM:
                result = _convert_free_form(source.body)
            case BodyKind.TEXT_MAP:
                result = self._convert_text_block(source)
            case BodyKind.LIST_MAP:
                result = self._convert_list_block(source)
        self.origins[id(result)] = ObjectOrigin(result, block, source)
        return result

    def _convert_fields(self, block: BlockType, source: EvaluatedBlock) -> JsonObject:
        """Return the object of a block with arguments and blocks of the table."""
        plan = _get_plan(block)
        self._budget.use_result(plan.size)
        result = plan.empty_object.copy()
        for field in plan.list_fields:
            result[field] = []
        if source.labels:
            for field in block.label_fields:
                result[field] = source.labels[0]
        attributes = source.body.attributes
        short_forms: ShortForms = []
        for name, attribute in attributes.items():
            argument = plan.arguments.get(name)
            if argument is None:
                inner = plan.blocks[name]
                value = attribute.value
                if isinstance(value, TemplateText):
                    result[inner.field] = value.convert(TEXT_LIST_TYPE if inner.short_argument else TEXT_MAP_TYPE)
                elif inner.short_argument:
                    self._add_short_blocks(result, inner, attribute)
                else:
                    result[inner.field] = self._convert_map_argument(inner, attribute)
            elif attribute.value is not None:
                self._set_argument(result, argument, attribute, short_forms)
        for argument in plan.required:
            found = attributes.get(argument.name)
            if found is None or (found.value is None and not found.is_failed):
                place = source.place if found is None else found.place
                self._add_error(place, f"{block.name} needs {argument.name}", f"write {argument.name} = ...")
        deferred: list[tuple[BlockType, JsonObject, EvaluatedBlock]] = []
        for inner_source in source.body.blocks:
            inner = plan.blocks[inner_source.type]
            converted = self._convert_block(inner, inner_source)
            if inner.field:
                self._store_block(result, inner, converted, inner_source)
            else:
                deferred.append((inner, converted, inner_source))
        self._complete(block, source, result, short_forms, deferred)
        return result

    def _set_argument(
        self, result: JsonObject, argument: Argument, attribute: EvaluatedAttribute, short_forms: ShortForms
    ) -> None:
        """Store the value of an argument in its field, or remember a short form of a comparison."""
        try:
            value = convert_argument(argument, attribute.value)
        except ConversionError as error:
            place, message, fix = describe_mismatch(argument, attribute, error)
            self._add_error(place, message, fix)
            return
        if not argument.operand:
            result[argument.field] = value
        elif value != "":
            short_forms.append((argument, attribute, value))

    def _store_block(self, result: JsonObject, block: BlockType, converted: JsonObject, source: EvaluatedBlock) -> None:
        """Store the object of a block in its field."""
        field = block.field
        if block.name == "port" and (isinstance(converted["Value"], str) or converted["Value"] > 0):
            field = block.other_field
        elif block is blocks.TASK_IDENTITY and converted["Name"] in DEFAULT_IDENTITY_NAMES:
            self._store_default_identity(result, block, converted, source)
            return
        if block.storage is Storage.OBJECT:
            result[field] = converted
        elif block.storage is Storage.LIST:
            if result.get(field) is None:
                result[field] = []
            result[field].append(converted)
        else:
            if result[field] is None:
                result[field] = {}
            result[field][source.labels[0] if source.labels else ""] = converted

    def _store_default_identity(
        self, result: JsonObject, block: BlockType, converted: JsonObject, source: EvaluatedBlock
    ) -> None:
        """Store the identity that a task has by default. A task has one of them."""
        first = result[block.other_field]
        if first is not None:
            origin = self.origins[id(first)].source
            assert isinstance(origin, EvaluatedBlock), "an identity is always a block"
            self._add_error(
                source.place,
                "a task has one identity without a name, or with the name default",
                'write name = "..."',
                (origin.place, "the first is at"),
            )
        result[block.other_field] = converted

    # -- what follows from several parts of a block

    def _complete(
        self,
        block: BlockType,
        source: EvaluatedBlock,
        result: JsonObject,
        short_forms: ShortForms,
        deferred: list[tuple[BlockType, JsonObject, EvaluatedBlock]],
    ) -> None:
        """Fill in what follows from several parts of a block, or of blocks inside it."""
        match block.name:
            case "constraint" | "affinity":
                self._complete_comparison(result, short_forms)
            case "periodic":
                if result["Spec"] is not None or result["Specs"] is not None:
                    result["SpecType"] = "cron"
            case "scaling":
                self._complete_scaling(block, source, result)
            case "task":
                self._check_scaling_labels(source)
            case "group":
                self._copy_to_tasks(result["Tasks"] or (), deferred)
            case "job":
                groups = [self._build_group(task, origin) for inner, task, origin in deferred if inner.becomes_group]
                groups += result["TaskGroups"] or ()
                result["TaskGroups"] = groups or None
                for group in groups:
                    self._copy_to_tasks(group["Tasks"] or (), deferred)

    def _complete_comparison(self, result: JsonObject, short_forms: ShortForms) -> None:
        """Set the operand and the value of the short form that a comparison uses."""
        if not result["Operand"]:
            result["Operand"] = "="
        for argument, attribute, value in short_forms:
            first, first_attribute, _ = short_forms[0]
            if argument is not first:
                self._add_error(
                    attribute.name_place,
                    f'"{first.name}" and "{argument.name}" are two comparisons',
                    "write one block for each",
                    (first_attribute.name_place, "the first is at"),
                )
                return
            result["Operand"] = argument.operand
            result[argument.field] = to_text(value)

    def _complete_scaling(self, block: BlockType, source: EvaluatedBlock, result: JsonObject) -> None:
        """Check the type of a scaling block, which follows from its place and label."""
        expected = HORIZONTAL
        if block is blocks.TASK_SCALING:
            label = source.labels[0] if source.labels else "cpu"
            expected = VERTICAL_TYPES.get(label.lower(), "")
            if not expected:
                place = source.label_places[0] if source.label_places else source.place
                self._add_error(
                    place,
                    f'the label of scaling in a task is "cpu" or "mem", not "{HIDDEN if source.has_sensitive_labels else label[:80]}"',
                    'write scaling "cpu" {',
                )
                return
        if result["Type"] not in ("", expected):
            attribute = source.body.attributes["type"]
            self._add_error(
                attribute.place, f'"type" is "{expected}" here, not {describe_found(attribute)}', "delete the line"
            )
        result["Type"] = expected

    def _check_scaling_labels(self, task: EvaluatedBlock) -> None:
        """Report a second scaling block of a task for the same resource."""
        by_label: dict[str, EvaluatedBlock] = {}
        for block in task.body.blocks:
            if block.type == "scaling" and block.labels:
                first = by_label.setdefault(block.labels[0].lower(), block)
                if first is not block:
                    self._add_error(
                        block.place, f'a task has one scaling block for "{block.labels[0][:80]}"', "join both into one",
                        (first.place, "the first is at"),
                    )  # fmt: skip

    def _build_group(self, task: JsonObject, source: EvaluatedBlock) -> JsonObject:
        """Return the group that a task of the job becomes."""
        group = self._convert_block(
            blocks.GROUP, EvaluatedBlock("group", source.labels, EvaluatedBody(), source.place, source.label_places)
        )
        group["Tasks"] = [task]
        return group

    def _copy_to_tasks(self, tasks: Any, deferred: list[tuple[BlockType, JsonObject, EvaluatedBlock]]) -> None:
        """Give tasks the Vault block and the secrets of their group or job. The nearest Vault block wins."""
        for block, converted, source in deferred:
            if not block.copied_to_tasks:
                continue
            size = len(msgspec.json.encode(converted, enc_hook=str))  # A template is a text.
            for task in tasks:
                if block.name == "vault" and task["Vault"] is not None:
                    continue
                self._budget.use_result(size)
                copied = dict(converted)
                self.origins[id(copied)] = ObjectOrigin(copied, block, source)
                if block.name == "vault":
                    task["Vault"] = copied
                else:
                    task["Secrets"] = [*(task["Secrets"] or ()), copied]

    # -- short forms of blocks

    def _add_short_blocks(self, result: JsonObject, block: BlockType, attribute: EvaluatedAttribute) -> None:
        """Store a block for each text of an argument such as `depends = ["build"]`. Null counts as absent."""
        value = attribute.value
        if value is None:
            return
        items = value.items if isinstance(value, SEQUENCES) else (value,)
        if not items:
            result[block.field] = []
        for position, item in enumerate(items):
            place = attribute.get_item_place(position)
            if not isinstance(item, str):
                self._add_error(
                    place,
                    f'"{block.name}" takes a list of texts, with {describe_value(item)} in it',
                    f"write {block.name} {{ {block.short_argument} = ... }}",
                )
                continue
            argument = replace(attribute, name=block.short_argument, value=item, node=attribute.get_item_node(position))
            source = EvaluatedBlock(block.name, (), EvaluatedBody({argument.name: argument}), place)
            source.body.has_sensitive_values = attribute.is_sensitive or has_sensitive_parts(value)
            self._store_block(result, block, self._convert_block(block, source), source)

    # -- maps

    def _convert_map_argument(self, block: BlockType, attribute: EvaluatedAttribute) -> JsonObject | None:
        """Return the map of an argument such as `meta = { a = 1 }`. Null counts as absent."""
        value = attribute.value
        if value is None:
            return None
        if not isinstance(value, MAPPINGS):
            self._add_error(
                attribute.place,
                f'"{block.name}" takes a map of texts, not {describe_found(attribute)}',
                f"write {block.name} = {{ name = ... }}",
            )
            return None
        result: JsonObject = {}
        for key, item in value.entries.items():
            self._budget.use_result(len(key) + _ENTRY_BYTES)
            try:
                result[key] = convert_text(item)
            except ConversionError:
                name = HIDDEN if attribute.is_sensitive else key
                self._report_map_value(attribute.get_item_place(key), name, describe_value(item))
        self.origins[id(result)] = ObjectOrigin(result, block, attribute)
        return result

    def _convert_text_block(self, source: EvaluatedBlock) -> JsonObject:
        """Return the map of a block whose arguments are texts."""
        result: JsonObject = {}
        for name, attribute in source.body.attributes.items():
            if attribute.is_failed:
                continue
            try:
                result[name] = convert_text(attribute.value)
            except ConversionError:
                self._report_map_value(attribute.place, name, describe_value(attribute.value))
        return result

    def _report_map_value(self, place: SourceRange, name: str, found: str) -> None:
        fix = "delete the line" if found == "null" else "use jsonencode for a list or map"
        self._add_error(place, f'"{name[:80]}" takes a text, not {found}', fix)

    def _convert_list_block(self, source: EvaluatedBlock) -> JsonObject:
        """Return the map of a block whose arguments are lists of texts."""
        result: JsonObject = {}
        for name, attribute in source.body.attributes.items():
            if attribute.is_failed:
                continue
            if isinstance(attribute.value, TemplateText):
                result[name] = attribute.value.convert(TEXT_LIST_TYPE)
                continue
            try:
                result[name] = convert_text_list(attribute.value)
            except ConversionError as error:
                found = describe_found(attribute)
                self._add_error(attribute.place, f'"{name[:80]}" takes a list of texts, not {found}', error.fix)
        return result


def _convert_free_form(body: EvaluatedBody) -> JsonObject:
    """Return a body of any content. Each nested block, and each object literal, becomes an item of a list."""
    result: JsonObject = {}
    for name, attribute in body.attributes.items():
        if attribute.value is not None:
            plain = to_plain(attribute.value)
            result[name] = [plain] if attribute.is_object_literal else plain
    for block in body.blocks:
        if block.type in body.attributes:
            continue  # The evaluation has reported that the name occurs twice.
        inner = _convert_free_form(block.body)
        for label in reversed(block.labels):
            inner = {label: [inner]}
        result.setdefault(block.type, []).append(inner)
    return result
