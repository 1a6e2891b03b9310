"""Builds the JSON Schema (draft 2020-12) of job files in YAML and JSON, with the descriptions of all fields.

Besides the standard keywords, each field has these annotations: `x-type`, `x-unit`, `x-default`, `x-limits`, `x-values`, `x-effect`,
`x-set-by`, `x-hcl` (its spelling in HCL) and `x-block` (the definition of its fields).
"""

import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from wharf.contract.model.body_limits import LIMITS_BY_FIELD
from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.settings import Duration
from wharf.contract.model.times import UNITS_NS
from wharf.job_files.fields import COMPARISON_PATTERN
from wharf.job_files.markup_jobs import EXTENSION_PREFIX
from wharf.job_files.reference.defaults import (
    JOB_TYPES,
    JOB_TYPES_BY_POLICY,
    find_defaults,
    iterate_record_types,
    list_field_types,
    list_fields,
)
from wharf.job_files.reference.docstrings import FieldText, read_field_texts
from wharf.job_files.reference.spellings import Spelling, find_spellings, iterate_block_places
from wharf.job_files.schema import DRIVERS_KEY, FIELDS_KEY, JsonObject

SCHEMA_ID: Final = "urn:wharf:schema:job"
EXPRESSION: Final = "[$%]\\{"
"""The pattern of a text with an expression, such as `${var.count}`, which may stand for a value of any type."""
DURATION: Final = rf"^[+-]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)({'|'.join(UNITS_NS)}))+)$"
EXPRESSION_SCHEMA: Final[JsonObject] = {"type": "string", "pattern": EXPRESSION}
OPTIONS_TYPE: Final = "options of the driver"

_FILE_ONLY_TEXTS: Final[Mapping[tuple[str, str], FieldText]] = {
    ("Job", "Reschedule"): FieldText(
        "When and how often failed allocations are replaced, for all groups of the job.\n\nEach group inherits the fields that its own "
        "block does not set. The stored job has the result in its groups only.",
        {"Default": "none; each group has the policy of the job type", "Limits": "not for `system` and `sysbatch` jobs"},
        {}, is_duration=False,
    ),
    ("LogConfig", "Enabled"): FieldText(
        "Whether the output of the task is stored.\n\nIt is the opposite of `Disabled`, which takes precedence.",
        {"Default": "none", "Deprecated": "use `Disabled`"}, {}, is_duration=False,
    ),
    ("Job", "Migrate"): FieldText(
        "How allocations are moved off a node that is drained, for all groups of the job.\n\nEach group inherits the fields that its "
        "own block does not set. The stored job has the result in its groups only.",
        {"Default": "none; each group has the defaults of the block", "Limits": "only for `service` jobs"}, {}, is_duration=False,
    ),
}  # fmt: skip
"""Fields of submitted records that stored ones do not have."""
_SHORT_FORMS: Final[Mapping[str, str]] = {
    "Constraint": "A comparison as text, such as `${attr.kernel.name} = linux`.",
    "Affinity": "A comparison as text, such as `${node.datacenter} = dc1`.",
    "Need": "The name that the need has in `On`.",
}
"""Records that a file may write as text."""
_BOUNDS: Final = re.compile(
    r"(?P<low>-?[0-9][0-9,]*) to (?P<high>[0-9][0-9,]*)|at least (?P<min>-?[0-9][0-9,]*)|at most (?P<max>[0-9][0-9,]*)"
)


class MissingDescription(Exception):
    """The error for a field without a description."""


def build_schema_document() -> JsonObject:
    """Return the schema, with a definition for each record of a job and for the options of each driver."""
    record_types = [*_iterate_reachable_types(Job)]
    for options_type in DRIVER_CONFIGS.values():
        record_types += [each for each in _iterate_reachable_types(options_type) if each not in record_types]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Job file of Wharf",
        "description": "A job for `wharf job run`, in YAML or JSON. Durations are texts such as 30s, or nanoseconds.",
        "type": "object",
        "if": {"required": ["Job"]},
        "then": {"properties": {"Job": {"$ref": "#/$defs/Job"}}},
        "else": {"$ref": "#/$defs/Job"},
        DRIVERS_KEY: {name: options_type.__name__ for name, options_type in DRIVER_CONFIGS.items()},
        "$defs": {record_type.__name__: build_definition(record_type) for record_type in record_types},
    }


def _iterate_reachable_types(record_type: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """Yield a record class and those of its fields, outer ones first, each once."""
    seen = [record_type]
    for current in seen:
        for field_type in list_field_types(current).values():
            seen += [inner for inner in iterate_record_types(field_type) if inner not in seen]
    yield from seen


def _is_options_type(record_type: type[msgspec.Struct]) -> bool:
    return record_type.__module__.startswith("wharf.contract.model.drivers")


def build_definition(record_type: type[msgspec.Struct]) -> JsonObject:
    """Return the schema of a record: all fields, without any other."""
    texts = read_field_texts(record_type)
    python_names = {field.encode_name: field.name for field in list_fields(record_type)}
    properties: JsonObject = {}
    for name, field_type in list_field_types(record_type).items():
        text = texts.get(python_names.get(name, "")) or _FILE_ONLY_TEXTS.get((record_type.__name__, name))
        if text is None:
            raise MissingDescription(
                f"{record_type.__name__}.{python_names.get(name, name)} has no description: write a docstring below the field"
            )
        properties[name] = _build_property(record_type, name, field_type, text)
    required = [name for name, entry in properties.items() if _is_required(entry)]
    # The short forms of comparisons set these fields by other names.
    conditions = [_require(record_type, name) for name in required if record_type not in (Constraint, Affinity)]
    definition: JsonObject = {
        "title": _find_block_name(record_type) or record_type.__name__,
        "description": (record_type.__doc__ or "").split("\n\n")[0],
        "type": "object",
        "x-hcl-name": _find_block_name(record_type),
        **({"x-places": places} if (places := _list_places(record_type)) else {}),
        "properties": properties,
        **({} if _is_options_type(record_type) else {"patternProperties": _build_other_names(record_type)}),
        "additionalProperties": False,
    }
    if record_type is Job:
        properties |= _build_file_only_properties()
    if record_type.__name__ == "Task":
        conditions += [_build_driver_condition(driver, options) for driver, options in DRIVER_CONFIGS.items()]
    return {**definition, "allOf": conditions} if conditions else definition


def _build_driver_condition(driver: str, options_type: type[msgspec.Struct]) -> JsonObject:
    """Return the schema of a task that checks the options of a driver, if the task has this driver."""
    options = _allow_expression({"$ref": f"#/$defs/{options_type.__name__}"})
    return {
        "if": {"properties": {"Driver": {"const": driver}}, "required": ["Driver"]},
        "then": {"properties": {"Config": options}},
    }


def _is_required(entry: JsonObject) -> bool:
    return bool(entry.get("x-default") == "none; required")


def _require(record_type: type[msgspec.Struct], name: str) -> JsonObject:
    """Return a schema that requires a field, by any of its usual names."""
    if _is_options_type(record_type):
        return {"required": [name]}
    names = [name, name.lower(), name[0].lower() + name[1:], _get_python_name(record_type, name)]
    names += [spelling.name for spelling in find_spellings().get((record_type.__name__, name.lower()), [])]
    usual = [{"required": [each]} for each in dict.fromkeys(filter(None, names))]
    # Any other spelling: not all names differ from it.
    patterns = [_match_any_case(name.lower(), has_blanks=True)]
    patterns += [_match_any_case(each.name) for each in find_spellings().get((record_type.__name__, name.lower()), [])]
    other = {"not": {"propertyNames": {"not": {"pattern": f"^({'|'.join(patterns)})$"}}}}
    return {"anyOf": [*usual, other]}


def _match_any_case(name: str, *, has_blanks: bool = False) -> str:
    """Return a pattern for a name in upper and lower case. With `has_blanks`, signs `_` may be anywhere in it."""
    letters = [f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in name]
    return f"_*{'_*'.join(letters)}_*" if has_blanks else "".join(letters)


def _get_python_name(record_type: type[msgspec.Struct], name: str) -> str:
    """Return the Python name of a field, such as `task_groups`."""
    names = {field.encode_name: field.name for field in list_fields(record_type)}
    return names.get(name, name.lower())


def _build_other_names(record_type: type[msgspec.Struct]) -> JsonObject:
    """Return schemas for the other names of the fields: in any case, with underscores, and as in HCL.

    Editors do not offer them, because they are patterns. Blocks that are written as in HCL are not checked further.
    """
    class_path = f"#/$defs/{record_type.__name__}/properties"
    patterns: JsonObject = {}
    for name in list_field_types(record_type):
        patterns[f"^(?!{name}$){_match_any_case(name.lower(), has_blanks=True)}$"] = {"$ref": f"{class_path}/{name}"}
    known = {name.lower() for name in list_field_types(record_type)}
    for block in {place.block for place in iterate_block_places() if place.record_type is record_type}:
        for argument in block.arguments:
            if argument.operand:
                patterns[f"^{_match_any_case(argument.name)}$"] = {"type": ["string", "boolean", "null"]}
            elif argument.name.replace("_", "") not in known and argument.field.lower() in known:
                patterns[f"^{_match_any_case(argument.name)}$"] = {"$ref": f"{class_path}/{argument.field}"}
        for inner in block.blocks:
            if inner.field.lower() in known and inner.name.replace("_", "") not in known:
                patterns[f"^{_match_any_case(inner.name)}$"] = {"type": ["object", "array", "string", "null"]}
    if record_type is Job:
        patterns[f"^{EXTENSION_PREFIX}"] = {"description": "Ignored: holds parts that aliases of YAML refer to."}
    return dict(sorted(patterns.items()))


def _build_file_only_properties() -> JsonObject:
    """Return the schemas of the parts of a job file that are not part of the job."""
    rule: JsonObject = {
        "type": "object", "properties": _RULE_FIELDS, "required": ["condition", "error_message"], "additionalProperties": False,
    }  # fmt: skip
    fields: JsonObject = {
        **_VARIABLE_FIELDS,
        "validation": _describe_declared(
            "A rule for the values of the variable. A list has several rules.", "block, or list of blocks",
            anyOf=[rule, {"type": "array", "items": rule}, {"type": "null"}],
            form="block", fields=_RULE_FIELDS,
        ),
    }  # fmt: skip
    declaration = {"properties": fields, "additionalProperties": False, "allOf": _build_default_conditions()}
    return {
        "variables": _describe_declared(
            "The variables of the file, by name. Use one with `${var.NAME}`.\n\nA value that is no map is the default of its variable.",
            "map of blocks", type=["object", "null"], hcl_name="variable", form="block", has_label=True,
            additionalProperties={"if": {"type": "object"}, "then": declaration}, fields=fields,
        ),
        "locals": _describe_declared(
            "Values with a name that are computed once. Use one with `${local.NAME}`.", "map of any values",
            type=["object", "null"], hcl_name="locals", form="block",
        ),
    }  # fmt: skip


def _describe_declared(
    prose: str,
    type_text: str,
    *,
    hcl_name: str = "",
    form: str = "argument",
    has_label: bool = False,
    is_expression: bool = False,
    fields: JsonObject | None = None,
    **keywords: Any,
) -> JsonObject:
    """Return the schema of a part of declarations, with its annotations and its description.

    `is_expression`: the value is a text in YAML, and an expression without quotes in HCL.
    """
    # Without a name, that of YAML is the one of HCL too.
    spelling: JsonObject = {"name": hcl_name} if hcl_name else {}
    spelling |= {"form": form}
    spelling |= {"has_label": True} if has_label else {"is_expression": True} if is_expression else {}
    hcl = f"\nHCL: block `{hcl_name}`" if hcl_name else ""
    return {
        "description": f"{prose}\n\nType: {type_text}{hcl}", **keywords, "x-type": type_text,
        "x-hcl": spelling,
        **({FIELDS_KEY: fields} if fields is not None else {}),
    }  # fmt: skip


_VARIABLE_FIELDS: Final[JsonObject] = {
    "type": _describe_declared(
        "The type of the values: `string`, `number`, `bool`, `any`, or one such as `list(string)`.", "text",
        type="string", pattern=r"^\s*(string|number|bool|any|(list|set|map|tuple|object)\s*\()", examples=["number"], is_expression=True,
    ),
    "default": _describe_declared(
        "The value if no other is given. Without it, the variable needs a value.\n\nIt has neither names nor functions.", "any value",
        examples=["web:1"],
    ),
    "description": _describe_declared("What the variable is for.", "text", type=["string", "null"], examples=["The image of the server"]),
    "sensitive": _describe_declared(
        "Whether messages, plans and the stored source of the job hide the value.", "true or false",
        type="boolean", examples=[True],
    ),
}  # fmt: skip
_RULE_FIELDS: Final[JsonObject] = {
    "condition": _describe_declared(
        "An expression that is true for values that are allowed. It uses only the variable itself.", "text or true or false",
        type="string", pattern=r"\bvar\b", examples=["var.count > 0"], is_expression=True,
    ),
    "error_message": _describe_declared(
        "The text of the error for other values.", "text", type="string", minLength=1, examples=["write a number above 0"],
    ),
}  # fmt: skip
_DEFAULT_SCHEMAS: Final[Mapping[str, JsonObject]] = {
    "string": {"type": ["string", "number", "boolean", "null"]},
    "number": {
        "anyOf": [
            {"type": ["number", "null"]},
            {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$"},
        ]
    },
    "bool": {"enum": [True, False, "true", "false", "1", "0", None]},
}
"""The defaults of variables of a type. Other values cannot be converted to it."""


def _build_default_conditions() -> list[JsonObject]:
    """Return schemas that compare the default of a variable with its type."""
    conditions: list[JsonObject] = []
    for name, schema in _DEFAULT_SCHEMAS.items():
        conditions.append(_build_default_condition({"const": name}, schema))
    for pattern, type_name in ((r"^\s*(list|set|tuple)\(", "array"), (r"^\s*(map|object)\(", "object")):
        conditions.append(
            _build_default_condition({"type": "string", "pattern": pattern}, {"type": [type_name, "null"]})
        )
    return conditions


def _build_default_condition(type_schema: JsonObject, default_schema: JsonObject) -> JsonObject:
    default = {"anyOf": [EXPRESSION_SCHEMA, default_schema]}
    return {
        "if": {"properties": {"type": type_schema}, "required": ["type"]},
        "then": {"properties": {"default": default}},
    }


def _find_block_name(record_type: type[msgspec.Struct]) -> str:
    """Return the name of the HCL block whose fields are those of the record; the name of the driver for its options."""
    for driver, options_type in DRIVER_CONFIGS.items():
        if options_type is record_type:
            return driver
    return next((place.block.name for place in iterate_block_places() if place.record_type is record_type), "")


def _list_places(record_type: type[msgspec.Struct]) -> list[str]:
    """Return the paths of the HCL blocks that hold the record, such as `job > group > task`."""
    places = [place.path for place in iterate_block_places() if place.record_type is record_type]
    return list(dict.fromkeys(" > ".join(path) for path in sorted(places, key=len)))


def _build_property(record_type: type[msgspec.Struct], name: str, field_type: Any, text: FieldText) -> JsonObject:
    """Return the schema of one field, with its annotations and its description."""
    inner_type = next(iterate_record_types(field_type), None)
    is_options = _is_options_type(record_type)
    type_text = OPTIONS_TYPE if _is_config(record_type, name) else _describe_type(field_type, text)
    spelling = _find_spelling(record_type, name, field_type)
    values = find_defaults(record_type).get(name, {})
    entry: JsonObject = {**_build_value_schema(field_type, text, type_text, is_options=is_options), "x-type": type_text}
    if inner_type is not None:
        entry["x-block"] = inner_type.__name__
    if unit := text.facts.get("Unit"):
        entry["x-unit"] = unit
    if text.values:
        entry["x-values"] = dict(text.values)
    _add_default(entry, text, values, has_block=inner_type is not None, is_always_set=_is_always_set(record_type, name))
    if _is_required(entry):
        _refuse_empty_values(entry)
    if limits := _describe_limits(record_type, name, text):
        entry["x-limits"] = limits
    if text.example is not None:
        # Editors offer the examples of a text that has further values too.
        names = [value for value in text.values if "<" not in value] if "enum" not in str(entry.get("anyOf")) else []
        entry["examples"] = [text.example, *(name for name in names if name != text.example)]
    if (effect := text.facts.get("Effect")) is not None:
        entry["x-effect"] = effect
    if (replacement := text.facts.get("Deprecated")) is not None:
        entry |= {"deprecated": True, "x-deprecated": replacement}
    if set_by := text.facts.get("Set by"):
        entry |= {"readOnly": True, "doNotSuggest": True, "x-set-by": set_by}
    if spelling is not None:
        entry["x-hcl"] = {"name": spelling.name, "form": spelling.form}
        if spelling.has_label:
            entry["x-hcl"]["has_label"] = True
    return {"description": _build_description(text.prose, entry), **entry}


def _refuse_empty_values(entry: JsonObject) -> None:
    """Leave null and the empty text out of the schema of a required field."""
    if isinstance(entry.get("type"), list):
        entry["type"] = [name for name in entry["type"] if name != "null"]
        if "string" in entry["type"]:
            entry["minLength"] = 1
    for alternative in entry.get("anyOf", ()):
        if "enum" in alternative:
            alternative["enum"] = [value for value in alternative["enum"] if value not in (None, "")]


def _is_always_set(record_type: type[msgspec.Struct], name: str) -> bool:
    """Return whether a record has a block even if a file lacks it, such as the resources of a task."""
    fields = {field.encode_name: field.default for field in list_fields(record_type)}
    return isinstance(fields.get(name), msgspec.Struct)


def _is_config(record_type: type[msgspec.Struct], name: str) -> bool:
    return record_type.__name__ == "Task" and name == "Config"


def _find_spelling(record_type: type[msgspec.Struct], name: str, field_type: Any) -> Spelling | None:
    """Return how HCL spells a field; `None` if HCL cannot set it. A label counts only if there is no argument."""
    if _is_options_type(record_type):
        is_block = next(iterate_record_types(field_type), None) is not None
        return Spelling(name, "block" if is_block else "argument")
    found = find_spellings().get((record_type.__name__, name.lower()), [])
    return next((each for each in found if each.form != "label"), found[0] if found else None)


def _add_default(
    entry: JsonObject, text: FieldText, values: Mapping[str, Any], *, has_block: bool, is_always_set: bool
) -> None:
    """Add the default of a field: the text of its docstring, otherwise what canonicalization fills in.

    `is_always_set`: the record has the block even if the file lacks it.
    """
    if text.facts.get("Set by"):
        return
    default_text = text.facts.get("Default")
    if default_text is None:
        default_text = _describe_defaults(values, is_duration=text.is_duration)
        if has_block:
            default_text = "the defaults of its fields" if is_always_set else "none"
    entry["x-default"] = default_text
    distinct = {msgspec.json.encode(value) for value in values.values()}
    if len(distinct) == 1 and not has_block and "Default" not in text.facts:
        value = next(iter(values.values()))
        if value not in ("", None):
            is_number_of_ns = text.is_duration and isinstance(value, int)
            entry["default"] = (
                str(Duration(value)) if is_number_of_ns else msgspec.json.decode(msgspec.json.encode(value))
            )


def _describe_defaults(values: Mapping[str, Any], *, is_duration: bool) -> str:
    """Return a phrase with the defaults of all job types, such as ``2 for `service` jobs, 3 for `batch` jobs``."""
    types_by_text: dict[str, list[str]] = {}
    for job_type, value in values.items():
        types_by_text.setdefault(format_value(value, is_duration=is_duration), []).append(job_type)
    if len(types_by_text) == 1:
        return next(iter(types_by_text))
    return ", ".join(f"{text} for {_join_types(job_types)} jobs" for text, job_types in types_by_text.items())


def _join_types(job_types: Iterable[str]) -> str:
    return " and ".join(f"`{job_type}`" for job_type in job_types)


def format_value(value: Any, *, is_duration: bool = False) -> str:  # Any value of a field.
    """Return a value as it is written in a job file; `none` for an empty one."""
    if value is None or value == "":
        return "none"
    if is_duration:
        return value if isinstance(value, str) else str(Duration(value)) if value else "0s"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return f"`{value}`"
    return f"`{msgspec.json.encode(value).decode()}`" if value else "none"


def _describe_limits(record_type: type[msgspec.Struct], name: str, text: FieldText) -> str:
    """Return the limits of a field: those of its docstring, and those of all bodies for this field."""
    limits = text.facts.get("Limits", "")
    field_limits = LIMITS_BY_FIELD.get(f"{record_type.__name__}.{name}")
    if field_limits is not None and "characters" not in limits and "items" not in limits:
        limits = "; ".join(filter(None, [limits, f"at most {field_limits.max_text_chars:,} characters"]))
    return limits


def _describe_type(field_type: Any, text: FieldText) -> str:
    """Return the type of a field in words."""
    if text.is_duration:
        return "duration"
    inner_type = next(iterate_record_types(field_type), None)
    origin = typing.get_origin(_strip_none(field_type))
    if inner_type is not None:
        return "list of blocks" if origin in (tuple, list) else "map of blocks" if origin is dict else "block"
    plain = _strip_none(field_type)
    if origin in (tuple, list):
        return "list of whole numbers" if typing.get_args(plain)[0] is int else "list of texts"
    if origin is dict:
        value_type = typing.get_args(plain)[1]
        if value_type is str:
            return "map of texts"
        return "map of lists of texts" if typing.get_origin(value_type) is tuple else "map of any values"
    names = {bool: "true or false", int: "whole number", bytes: "base64 text"}
    return names.get(plain, "text")


def _strip_none(field_type: Any) -> Any:
    """Return the type without `None`."""
    if typing.get_origin(field_type) not in (typing.Union, types.UnionType):
        return field_type
    return next(member for member in typing.get_args(field_type) if member is not type(None))


def _allow_expression(schema: JsonObject) -> JsonObject:
    """Return a schema that also accepts null and an expression."""
    return {"anyOf": [schema, EXPRESSION_SCHEMA, {"type": "null"}]}


def _allow_text(schema: JsonObject, pattern: str, error: str) -> JsonObject:
    """Return a schema that also accepts null and a text with this pattern. Editors show `error` for another text."""
    return {
        **schema,
        "type": [schema["type"], "string", "null"],
        "pattern": pattern,
        "patternErrorMessage": f"{error}, or an expression such as ${{var.name}}",
    }


def _build_value_schema(field_type: Any, text: FieldText, type_text: str, *, is_options: bool) -> JsonObject:
    """Return the keywords that check the value of a field.

    Null means that the field is missing, and an expression may stand for a value of any type.
    """
    inner_type = next(iterate_record_types(field_type), None)
    if inner_type is not None:
        return _build_block_schema(inner_type, type_text, is_options=is_options)
    match type_text:
        case "duration":
            return _allow_text(
                {"type": "integer"}, f"{DURATION}|{EXPRESSION}", "expected a duration such as 30s or 1h30m"
            )
        case "whole number":
            pattern = f"^-?[0-9]+$|{EXPRESSION}" if is_options else EXPRESSION
            return _allow_text({"type": "integer", **_build_bounds(text)}, pattern, "expected a whole number")
        case "true or false":
            pattern = f"^(true|false|0|1)$|{EXPRESSION}" if is_options else EXPRESSION
            return _allow_text({"type": "boolean"}, pattern, "expected true or false")
        case "list of texts":
            # Drivers read numbers in their options as texts.
            item = {"type": ["string", "number", "boolean"] if is_options else "string"}
            return _allow_text({"type": "array", "items": item}, EXPRESSION, "expected a list of texts")
        case "list of whole numbers":
            return _allow_text(
                {"type": "array", "items": {"type": "integer"}}, EXPRESSION, "expected a list of numbers"
            )
        case "map of texts":
            item = {"type": ["string", "number", "boolean"] if is_options else ["string", "null"]}
            return _build_map_schema(item, is_options=is_options)
        case "map of lists of texts":
            return _build_map_schema({"type": "array", "items": {"type": "string"}}, is_options=is_options)
        case "map of any values" | "options of the driver":
            return _allow_text({"type": "object"}, EXPRESSION, "expected a map")
    if text.values and "Other values" not in text.facts and not any("<" in value for value in text.values):
        allowed = [*text.values, *(() if text.facts.get("Default") == "none; required" else ("",)), None]
        return {"anyOf": [{"enum": allowed}, EXPRESSION_SCHEMA]}
    return {"type": ["string", "null"]}


_NO_OPERAND: Final = "write LEFT OPERAND RIGHT, such as ${attr.kernel.name} = linux"


def _build_block_schema(inner_type: type, type_text: str, *, is_options: bool) -> JsonObject:
    """Return the keywords that check one or several blocks. Options of drivers may be converted from HCL, with lists of blocks."""
    reference: JsonObject = {"$ref": f"#/$defs/{inner_type.__name__}"}
    if inner_type.__name__ == "Need":
        name = {"type": "string", "minLength": 1, "description": _SHORT_FORMS["Need"]}
        return {
            "type": ["array", "string", "null"],
            "items": {"if": {"type": "string"}, "then": name, "else": reference},
        }
    if inner_type.__name__ in _SHORT_FORMS:
        short_form = {
            "type": "string",
            "pattern": COMPARISON_PATTERN,
            "patternErrorMessage": _NO_OPERAND,
            "description": _SHORT_FORMS[inner_type.__name__],
        }
        # Not anyOf: editors then report the wrong part of it.
        items = {"if": {"type": "string"}, "then": short_form, "else": reference}
        return {
            "type": ["array", "string", "null"], "items": items, "pattern": COMPARISON_PATTERN,
            "patternErrorMessage": _NO_OPERAND,
        }  # fmt: skip
    if is_options:
        return {"anyOf": [reference, {"type": "array", "items": reference}, EXPRESSION_SCHEMA, {"type": "null"}]}
    if type_text == "block":
        return _allow_expression(reference)
    if type_text == "map of blocks":
        return _allow_text(
            {"type": "object", "additionalProperties": reference}, EXPRESSION, "expected a map of blocks"
        )
    return _allow_text({"type": "array", "items": reference}, EXPRESSION, "expected a list of blocks")


def _build_map_schema(value_schema: JsonObject, *, is_options: bool) -> JsonObject:
    """Return the keywords that check a map. The options of drivers may have a list with one map, which is how HCL writes it."""
    one_map: JsonObject = {"type": "object", "additionalProperties": value_schema}
    schema = _allow_text(one_map, EXPRESSION, "expected a map")
    return (
        {**schema, "type": ["object", "array", "string", "null"], "items": one_map, "maxItems": 1}
        if is_options
        else schema
    )


def _build_bounds(text: FieldText) -> JsonObject:
    """Return the minimum and maximum of a number, from the beginning of its limits. Other limits depend on other fields."""
    match = _BOUNDS.match(text.facts.get("Limits", ""))
    if match is None:
        return {}
    bounds = {"minimum": match["low"] or match["min"], "maximum": match["high"] or match["max"]}
    numbers = {name: int(value.replace(",", "")) for name, value in bounds.items() if value}
    if "Cores" in text.facts.get("Limits", ""):
        numbers.pop("minimum", None)  # 0 is valid together with whole cores.
    return numbers


def _build_description(prose: str, entry: JsonObject) -> str:
    """Return the description that editors and the OpenAPI document show: the prose, then the facts, each on a line."""
    unit = f" ({entry['x-unit']})" if "x-unit" in entry else ""
    facts = [f"Type: {entry['x-type']}{unit}"]
    if "x-values" in entry:
        facts.append("Values: " + "; ".join(f"`{value}`: {meaning}" for value, meaning in entry["x-values"].items()))
    names = {
        "x-default": "Default",
        "x-limits": "Limits",
        "x-effect": "Effect",
        "x-deprecated": "Deprecated",
        "x-set-by": "Set by",
    }
    facts += [f"{title}: {entry[key]}" for key, title in names.items() if key in entry]
    if "x-hcl" in entry:
        facts.append(f"HCL: {describe_spelling(entry['x-hcl'])}")
    return f"{prose}\n\n" + "\n".join(facts)


def describe_spelling(spelling: Mapping[str, str]) -> str:
    """Return how HCL spells a field, in words, such as ``block `port` ``."""
    match spelling["form"]:
        case "label":
            return "the label of the block"
        case "argument":
            return f"`{spelling['name']}`"
        case _:
            return f"block `{spelling['name']}`"


def list_job_types(record_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the job types that may have the record."""
    return JOB_TYPES_BY_POLICY.get(record_type, JOB_TYPES)
