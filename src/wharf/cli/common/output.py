"""Output for programs: `--json` and `--format` print records with all their fields, by the field names of the API.

Templates use the syntax of `wharf.languages.templates`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from wharf.cli.common.errors import CliError
from wharf.languages.templates import MissingSource, ParsedTemplate, RecordFields, TemplateError

TASK_ONLY_TEXT: Final = "the template uses a function that only works in task templates"


def to_plain(value: Any) -> Any:  # Any value goes in; mappings, lists and plain values come out.
    """Return records as mappings with all their fields, including the empty ones that the API omits.

    Lists and maps of records are converted too.
    """
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        fields = ((wire_name, getattr(value, name)) for name, wire_name in names)
        return RecordFields((wire_name, to_plain(field)) for wire_name, field in fields if field is not msgspec.UNSET)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return msgspec.to_builtins(value)


def render_template(template: str, value: Any) -> str:  # A value that `to_plain` returned.
    """Render a template of `--format`. Raises CliError if it is invalid or uses functions that only tasks have."""
    try:
        rendered = ParsedTemplate(template).render(value)
    except TemplateError as error:
        raise CliError(f"invalid template: {error}") from error
    except MissingSource as error:
        raise CliError(f"{TASK_ONLY_TEXT}: {error}") from error
    if rendered.missing:
        raise CliError(f"{TASK_ONLY_TEXT}: {', '.join(rendered.missing)}")
    return rendered.text


def render_json(value: Any) -> str:  # A value that `to_plain` returned.
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
