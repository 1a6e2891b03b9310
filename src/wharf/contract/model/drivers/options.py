"""Compares the options of tasks with those that their drivers have: names such as `comand`, and types such as a text for `args`.

The types in `DRIVER_CONFIGS` are the only description of the options. Job files, registrations and nodes use it (record 0241).
Only options of built-in drivers are known. A plug-in checks its options itself, when a task starts.
"""

import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from functools import cache
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import msgspec

from wharf.contract.model.drivers import DRIVER_CONFIGS, REQUIRED_OPTIONS
from wharf.contract.model.drivers.programs import DurationOption
from wharf.contract.model.times import DurationError, parse_duration_ns
from wharf.languages.hcl.amounts import find_duration
from wharf.languages.hcl.diagnostics import is_secret_name
from wharf.languages.suggestions import find_nearest_name

MAX_OPTION_PROBLEMS: Final = 20
"""The problems of one task's options that are reported. Searching a similar name is slow."""
MAX_SHOWN_CHARS: Final = 80
MAX_MESSAGE_CHARS: Final = 300
MAX_LISTED_OPTIONS: Final = 12
"""A longer list of options would hide the error."""


class NomadOption(NamedTuple):
    """An option of a driver of Nomad that Wharf does not have. `fix` says what to write instead, or what happens.

    An option that is ignored changes nothing that a task could notice, so nodes start the task (record 0254).
    """

    fix: str
    is_ignored: bool = False


NOMAD_OPTIONS: Final[Mapping[str, Mapping[str, NomadOption]]] = {
    "docker": {
        "advertise_ipv6_address": NomadOption('delete it, and write address_mode = "driver" in the service'),
        "isolation": NomadOption("it has no effect: it is an option for Windows", is_ignored=True),
        "port_map": NomadOption(
            'add a port "NAME" with to = PORT to the network of the group, and write ports = ["NAME"] here'
        ),
        "ssl": NomadOption("it has no effect: registries are always used with TLS", is_ignored=True),
        "volumes_from": NomadOption("write a volume in the group and volume_mount in the task, or volumes here"),
        "windows_allow_insecure_container_admin": NomadOption(
            "it has no effect: it is an option for Windows", is_ignored=True
        ),
    },
    "raw_exec": {
        **dict.fromkeys(
            ("cgroup_v1_override", "cgroup_v2_override"),
            NomadOption(
                "it has no effect: the task is in the control group that its node creates for it", is_ignored=True
            ),
        ),
        "no_cgroups": NomadOption(
            "it has no effect: the node limits the task by control groups if it can",
            is_ignored=True,
        ),
    },
}
"""Options of Nomad, also of earlier versions of it, by driver."""


class TextRule(NamedTuple):
    """What the texts of an option must be on every node: a pattern, in words, and how to correct a text."""

    pattern: re.Pattern[str]
    expected: str
    fix: str


_PROGRAM: Final = TextRule(re.compile("[^=]*"), 'a program without "="', "write variables in env of the task")
_ABSOLUTE_PATH: Final = TextRule(re.compile("/.*", re.DOTALL), "an absolute path", "begin it with /")
_MOUNT_TYPE: Final = TextRule(
    re.compile("volume|bind|tmpfs"), "volume, bind or tmpfs", 'write "bind" for a folder or file'
)
TEXT_RULES: Final[Mapping[tuple[str, str], TextRule]] = {
    ("driver raw_exec", "command"): _PROGRAM,
    ("driver exec", "command"): _PROGRAM,
    ("driver raw_exec", "work_dir"): _ABSOLUTE_PATH,
    ("driver exec", "work_dir"): _ABSOLUTE_PATH,
    ("driver docker", "ulimit"): TextRule(
        re.compile(r"-?\d+(?::-?\d+)?"), "one number, or two with a colon", 'write "SOFT:HARD", or one number for both'
    ),
    ("driver docker", "volumes"): TextRule(
        re.compile("[^:]*:.*", re.DOTALL), "source:target or source:target:ro", 'write "SOURCE:TARGET"'
    ),
    ("block mount", "type"): _MOUNT_TYPE,
    ("block mounts", "type"): _MOUNT_TYPE,
}
"""Rules for the texts of options, by their driver or block, and by their name. Nodes have the same rules."""
MAX_SECONDS_DIGITS: Final = 6
"""A longer number without a unit is no number of seconds."""
REFERENCE_MARK: Final = "${"
"""A text with this mark has its final value only on the node."""

OptionPath = tuple[str | int, ...]


class OptionProblem(NamedTuple):
    """An option that its driver does not have, or whose value has a wrong type. `path` leads to it in the task's `Config`."""

    path: OptionPath
    message: str
    fix: str
    is_unknown: bool
    """Whether the driver does not have the option. Otherwise its value is wrong, or it is missing."""
    is_ignored: bool = False
    """Whether nodes ignore the option, which only Nomad has."""
    missing: str = ""
    """The option that the driver needs and that is missing."""


def find_option_problems(driver: str, config: Mapping[str, object]) -> Iterator[OptionProblem]:
    """Yield the first problems of the options of a task. Nothing is yielded for drivers of plug-ins."""
    config_type = DRIVER_CONFIGS.get(driver)
    if config_type is not None:
        problems = chain(
            _iterate_missing_option(driver, config), _iterate_problems(config, config_type, (), f"driver {driver}")
        )
        yield from islice(problems, MAX_OPTION_PROBLEMS)


def may_have_unknown_options(driver: str, config: Mapping[str, object]) -> bool:
    """Return whether an option of a task may be unknown. Much faster than `find_option_problems`: it looks into no values.

    `False` if the driver has all options and none of them is a block.
    """
    config_type = DRIVER_CONFIGS.get(driver)
    if config_type is None:
        return False  # Only a plug-in knows its options.
    kinds = _list_kinds(config_type)
    return any(key not in kinds or _get_block_type(kinds[key]) is not None for key in config)


def convert_options(driver: str, config: Mapping[str, object]) -> dict[str, Any]:
    """Return the options of a task with the types that its driver requires. Values of a wrong type stay as they are.

    A block may be an object, or a list with one object, as in job files in HCL. In lists and maps of texts, numbers and bools
    become texts. Options that are null are left out.
    """
    config_type = DRIVER_CONFIGS.get(driver)
    return dict(config) if config_type is None else _convert_fields(config, config_type)


def _iterate_missing_option(driver: str, config: Mapping[str, object]) -> Iterator[OptionProblem]:
    """Yield a problem if a task lacks the option without which its driver cannot start it.

    If the option is misspelled, the path leads to the misspelled one.
    """
    name, example = REQUIRED_OPTIONS.get(driver, ("", ""))
    if not name or config.get(name) not in (None, ""):
        return
    unknown = [key for key in config if key not in _list_kinds(DRIVER_CONFIGS[driver])]
    misspelled = [key for key in unknown[:MAX_OPTION_PROBLEMS] if find_nearest_name(key, [name]) is not None]
    fix = (
        f'write {name} instead of "{misspelled[0]}"' if misspelled else f'add {name} to its config, such as "{example}"'
    )
    path = (misspelled[0],) if misspelled else (name,) if name in config else ()
    yield OptionProblem(path, f'a task with the driver {driver} needs the option "{name}"', fix, False, missing=name)


def _iterate_problems(
    config: Mapping[str, object], config_type: type[msgspec.Struct], path: OptionPath, owner: str
) -> Iterator[OptionProblem]:
    """Yield the problems of one object: of the task's options, or of a block in them."""
    kinds = _list_kinds(config_type)
    foreign = NOMAD_OPTIONS.get(owner.removeprefix("driver "), {})
    for key, value in config.items():
        if key in foreign:
            message, option = f'"{key}" is an option of Nomad that Wharf does not have', foreign[key]
            yield OptionProblem((*path, key), message, option.fix, is_unknown=True, is_ignored=option.is_ignored)
        elif key not in kinds:
            message = f'unknown key "{key[:MAX_SHOWN_CHARS]}" for {owner}'
            yield OptionProblem((*path, key), message, _suggest_option(key, kinds, owner), is_unknown=True)
        elif value is not None:
            yield from _iterate_value_problems(value, kinds[key], (*path, key), owner)


def _suggest_option(key: str, names: Collection[str], owner: str) -> str:
    """Return what to write instead of an unknown option."""
    nearest = find_nearest_name(key, names)
    if nearest is not None:
        return f'did you mean "{nearest}"?'
    if len(names) <= MAX_LISTED_OPTIONS:
        return f"the options are {', '.join(names)}"
    return f"`wharf job explain-field {owner.rpartition(' ')[2]}` lists the options"


def _iterate_value_problems(value: object, kind: Any, path: OptionPath, owner: str) -> Iterator[OptionProblem]:
    """Yield the problem of a value that has another type than its option, or the problems inside it."""
    block_type, origin = _get_block_type(kind), typing.get_origin(kind)
    is_list = origin is list
    if block_type is not None:
        blocks = value if isinstance(value, list | tuple) else [value]
        is_repeated = not is_list and len(blocks) != 1
        if is_repeated or not all(isinstance(block, Mapping) for block in blocks):
            yield _describe_wrong_type(value, kind, path, owner)
            return
        for at, block in enumerate(blocks):
            block_path = path if block is value else (*path, at)
            yield from _iterate_problems(block, block_type, block_path, f"block {path[-1]}")
            yield from _iterate_missing_fields(block, block_type, block_path)
        return
    if not is_list and origin is not dict:
        if not _is_scalar_of(value, kind):
            yield _describe_wrong_type(value, kind, path, owner)
        else:
            yield from _iterate_wrong_texts(value, path, owner, str(path[-1]))
        return
    entries = _list_entries(value, kind)
    if entries is None:
        yield _describe_wrong_type(value, kind, path, owner)
        return
    for step, item in entries:
        if not isinstance(item, str | int | float):
            yield _describe_wrong_type(item, str, (*path, *step), owner, option=path[-1])
        else:
            yield from _iterate_wrong_texts(item, (*path, *step), owner, str(path[-1]))


def _iterate_wrong_texts(value: object, path: OptionPath, owner: str, option: str) -> Iterator[OptionProblem]:
    """Yield the problem of a text that no node accepts. An empty text is an option that is not set."""
    rule, text = TEXT_RULES.get((owner, option)), str(value)
    if rule is None or not text or REFERENCE_MARK in text or rule.pattern.fullmatch(text) is not None:
        return
    place = f'"{option}"' if path[-1] == option else f'an item of "{option}"'
    shown = re.sub("=.*", "=...", text[:MAX_SHOWN_CHARS], flags=re.DOTALL)  # It may be the value of a secret variable.
    message = f'{place} for {owner} takes {rule.expected}, not "{shown}"'
    yield OptionProblem(path, message[:MAX_MESSAGE_CHARS], rule.fix, is_unknown=False)


def _iterate_missing_fields(
    block: Mapping[str, object], block_type: type[msgspec.Struct], path: OptionPath
) -> Iterator[OptionProblem]:
    """Yield a problem for each option that a block needs and does not have."""
    for field in msgspec.structs.fields(block_type):
        if field.required and block.get(field.name) is None:
            name = next(step for step in reversed(path) if isinstance(step, str))
            yield OptionProblem(path, f'block {name} has no "{field.name}"', f'add "{field.name}"', is_unknown=False)


def _list_entries(value: object, kind: Any) -> list[tuple[OptionPath, object]] | None:
    """Return the items of a list or map of texts with their paths, or `None` if the value is neither."""
    if typing.get_origin(kind) is list:
        return [((at,), item) for at, item in enumerate(value)] if isinstance(value, list | tuple) else None
    if isinstance(value, Mapping):
        return [((key,), item) for key, item in value.items()]
    if isinstance(value, list | tuple) and all(isinstance(block, Mapping) for block in value):
        return [((at, key), item) for at, block in enumerate(value) for key, item in block.items()]
    return None


def _is_scalar_of(value: object, kind: Any) -> bool:
    """Return whether a value is, or reads as, a value of this type. References may read as any type on the node."""
    if isinstance(value, str) and REFERENCE_MARK in value:
        return True
    if isinstance(value, str) and _is_duration(kind):
        try:
            return parse_duration_ns(value) >= 0
        except DurationError:
            return False
    try:
        msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _convert_fields(config: Mapping[str, object], config_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the options of one object, converted. Unknown options stay as they are."""
    kinds = _list_kinds(config_type)
    return {
        key: _convert_value(value, kinds[key]) if key in kinds else value
        for key, value in config.items()
        if value is not None
    }


def _convert_value(value: Any, kind: Any) -> Any:
    """Return a value with the type of its option, or unchanged if it cannot be converted."""
    block_type = _get_block_type(kind)
    if block_type is not None:
        blocks = value if isinstance(value, list | tuple) else [value]
        converted = [_convert_fields(block, block_type) if isinstance(block, Mapping) else block for block in blocks]
        return converted if typing.get_origin(kind) is list or len(converted) != 1 else converted[0]
    if typing.get_origin(kind) not in (list, dict):
        return value if isinstance(value, Mapping | list | tuple) else _convert_scalar(value, kind)
    entries = _list_entries(value, kind)
    if entries is None:
        return value
    if typing.get_origin(kind) is list:
        return [_convert_text(item) for _, item in entries]
    return {step[-1]: _convert_text(item) for step, item in entries}


def _convert_scalar(value: Any, kind: Any) -> Any:
    """Return a number or bool for a text such as `5` or `true`, if the option has this type."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        return value


def _convert_text(item: object) -> object:
    """Return the text of an item of a list or map of texts, as HCL converts it."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, float):
        return format(Decimal(repr(item)), "f").removesuffix(".0")
    return str(item) if isinstance(item, int) else item


def _describe_wrong_type(
    value: object, kind: Any, path: OptionPath, owner: str, *, option: str | int | None = None
) -> OptionProblem:
    """Return the problem of a value of a wrong type. `option` names the option if the value is an item of it."""
    name = path[-1] if option is None else option
    place = f'"{name}"' if option is None else f'item {path[-1]} of "{name}"'
    if option is not None and isinstance(path[-1], int):
        place = f'item {path[-1] + 1} of "{name}"'
    message = f"{place} for {owner} takes {_name_kind(kind)}, not {_show(value, str(name))}"
    return OptionProblem(path, message[:MAX_MESSAGE_CHARS], _suggest_value(value, kind, str(name)), is_unknown=False)


def _name_kind(kind: Any) -> str:
    """Return the type of an option in words."""
    block_type = _get_block_type(kind)
    if block_type is not None:
        return "blocks" if typing.get_origin(kind) is list else "one block"
    for part, words in ((list, "a list of texts"), (dict, "a map of texts")):
        if typing.get_origin(kind) is part:
            return words
    if _is_duration(kind):
        return "a duration such as 30s or 1h30m"
    return {int: "a whole number", bool: "true or false"}.get(kind, "a text")


def _suggest_value(value: object, kind: Any, name: str) -> str:
    """Return how to write the value. The text fits all languages of job files."""
    block_type, item = _get_block_type(kind), value
    if isinstance(value, list | tuple) and len(value) == 1 and not isinstance(value[0], Mapping | list):
        item = value[0]
    if block_type is not None:
        options = ", ".join(_list_kinds(block_type))
        count = "" if typing.get_origin(kind) is list else "one "
        return f"write {count}block {name} with options of {options}"[:MAX_MESSAGE_CHARS]
    if typing.get_origin(kind) is list:
        if not isinstance(value, str | int | float):
            return 'write ["...", "..."]'
        # A shell would split them, so users often write them as one text.
        items = value.split() if name == "args" and isinstance(value, str) and value.strip() else [value]
        return f"write [{', '.join(_quote(each, name) for each in items)}]"[:MAX_MESSAGE_CHARS]
    if typing.get_origin(kind) is dict:
        return 'write a map, such as { name = "text" } in HCL or {name: text} in YAML'
    if kind is bool:
        return "write true or false"
    if kind is int:
        return "write a whole number, such as 10"
    if _is_duration(kind) and isinstance(item, str | int | float):
        text = str(item).replace(" ", "").lower()
        duration = f"{text}s" if text.isdecimal() and len(text) < MAX_SECONDS_DIGITS else find_duration(text)
        return f'write "{duration or "30s"}"; the units are ns, us, ms, s, m and h'
    suffix = ', and the arguments in "args"' if name == "command" and isinstance(value, list | tuple) else ""
    return (
        f"write {_quote(item, name)}" if isinstance(item, str | int | float) else "write one text in quotes"
    ) + suffix


def _show(value: object, name: str) -> str:
    """Return a value for a message. Values of options with names of secrets are not shown."""
    if isinstance(value, str | int | float):
        if is_secret_name(name):
            return "a text" if isinstance(value, str) else "a number"
        return f'"{value[:MAX_SHOWN_CHARS]}"' if isinstance(value, str) else str(_convert_text(value))[:MAX_SHOWN_CHARS]
    if isinstance(value, Mapping):
        return "a map"
    is_block = isinstance(value, list | tuple) and bool(value) and all(isinstance(item, Mapping) for item in value)
    return "a block" if is_block else "a list" if isinstance(value, list | tuple) else "null"


def _quote(value: object, name: str) -> str:
    """Return a value as a text in quotes, without the values of secrets."""
    return '"..."' if is_secret_name(name) else f'"{str(_convert_text(value))[:MAX_SHOWN_CHARS]}"'


@cache
def _list_kinds(config_type: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the options of a type with their types, without `None`."""
    return {name: _without_none(kind) for name, kind in typing.get_type_hints(config_type).items()}


def _without_none(kind: Any) -> Any:
    """Return a type without `None`: null means that the option is not set."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    rest = tuple(part for part in typing.get_args(kind) if part is not type(None))
    return rest[0] if len(rest) == 1 else typing.Union[rest]  # noqa: UP007 (the parts are known only here)


def _is_duration(kind: Any) -> bool:
    """Return whether the values of an option are durations: texts with a unit, or also numbers of nanoseconds."""
    return kind is DurationOption or kind == str | int


@cache
def _get_block_type(kind: Any) -> type[msgspec.Struct] | None:
    """Return the type of the blocks of an option, or `None` if its values are not blocks."""
    part = typing.get_args(kind)[0] if typing.get_origin(kind) is list else kind
    return part if isinstance(part, type) and issubclass(part, msgspec.Struct) else None
