"""What `--json` and `--format` see of records: all of their fields by the wire's names. Templates are those of `wharf.languages.templates`."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wharf.cli.common.errors import CliError
from wharf.languages.templates import MissingSource, ParsedTemplate, RecordFields, TemplateError

TASK_ONLY_TEXT: Final = "the template asks for what only tasks have"


def to_plain(value: Any) -> Any:  # Any value goes in; mappings, lists and plain values come out.
    """Records with all of their fields, also the empty ones."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        found = ((wire, getattr(value, name)) for name, wire in names)
        return RecordFields((wire, to_plain(one)) for wire, one in found if one is not msgspec.UNSET)
    if isinstance(value, Mapping):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    return msgspec.to_builtins(value)


def render_template(template: str, value: Any) -> str:  # What `plain` gives.
    """Raises `Failed` where the template is none, or asks for what is not there."""
    try:
        made = ParsedTemplate(template).render(value)
    except TemplateError as error:
        raise CliError(f"the template, {error}") from error
    except MissingSource as missing:
        raise CliError(f"{TASK_ONLY_TEXT}: {missing}") from missing
    if made.missing:
        raise CliError(f"{TASK_ONLY_TEXT}: {', '.join(made.missing)}")
    return made.text


def render_json(value: Any) -> str:  # What `plain` gives.
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
