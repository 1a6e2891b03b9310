"""Writes the tables of docs/configuration.md from the declarations of settings: `python -m wharf.config.reference`.

The text above the marker in that page is written by hand and not changed.
"""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final, get_args

from wharf.config.builder import format_path
from wharf.config.foreign_keys import REASON_BY_FOREIGN_KEY
from wharf.config.ineffective import get_ineffective_reason
from wharf.config.schema import ANY_NAME, SettingField, describe_type, is_section, iterate_fields
from wharf.config.tree import KeyPath
from wharf.config.values import to_plain_value
from wharf.contract.model.settings import SecretText

PAGE: Final = "docs/configuration.md"
MARKER: Final = "<!-- All below is written by `python -m wharf.config.reference`. -->"


def render_page(page: str) -> str:
    """Return the page with its tables replaced by current ones."""
    introduction = page.partition(MARKER)[0]
    return introduction + "\n".join([MARKER, "", *_render_tables(), *_render_foreign_keys(), ""])


def _render_tables() -> Iterator[str]:
    """Yield the Markdown lines of one table for each table of the configuration."""
    tables: dict[KeyPath, list[str]] = {(): []}
    descriptions: dict[KeyPath, str] = {(): "Keys outside of any table."}
    for path, field in iterate_fields():
        table_path = _get_table_path(path, field)
        if table_path is not None:
            tables[table_path] = []
            descriptions[table_path] = field.info.description
        else:
            tables[path[:-1]].append(_render_row(path, field))
    for path, rows in tables.items():
        heading = f"`[{_format_key(path)}]`" if path else "The agent"
        yield f"## {heading}\n\n{descriptions[path]}\n"
        if rows:
            yield "| key | what | default |\n|---|---|---|"
            yield from rows
            yield ""


def _get_table_path(path: KeyPath, field: SettingField) -> KeyPath | None:
    """Return the path of the table that a field declares, or `None` if the field is a single value."""
    if field.section_type is not None:
        return path
    return (*path, ANY_NAME) if is_section(field.map_value_type) else None


def _render_row(path: KeyPath, field: SettingField) -> str:
    """Return the table row of one key."""
    reload_note = " *(reload)*" if field.info.is_reloadable else ""
    reason = get_ineffective_reason(path)
    effect_note = f" *(no effect: {reason})*" if reason is not None else ""
    return f"| `{_format_key(path)}` | {field.info.description} {describe_values(field)}{reload_note}{effect_note} | {describe_default(field)} |"


def _format_key(path: KeyPath) -> str:
    return ".".join(key if key == ANY_NAME else format_path((key,)) for key in path)


def describe_values(field: SettingField) -> str:
    """Return a sentence with the type and the range of a setting."""
    kind: Any = field.type
    type_text = (
        f"A table, each value {describe_type(get_args(kind)[1])}"
        if field.map_value_type is not None
        else describe_type(kind)
    )
    minimum, maximum = field.info.min_value, field.info.max_value
    range_text = {
        (False, False): "",
        (True, False): f", {minimum} or more",
        (False, True): f", {maximum} or less",
        (True, True): f", {minimum} to {maximum}",
    }[(minimum is not None, maximum is not None)]
    return f"{type_text[0].upper()}{type_text[1:]}{range_text}."


def describe_default(field: SettingField) -> str:
    """Return the default value of a setting as Markdown. The default of a secret is always shown as none."""
    if field.info.default_text is not None:
        return field.info.default_text
    if isinstance(field.default, SecretText):
        return "none"
    value = to_plain_value(field.default)
    match value:
        case bool():
            return "`true`" if value else "`false`"
        case "" | None:
            return "none"
        case []:
            return "none"
        case list():
            return ", ".join(f"`{item}`" for item in value)
        case dict():
            return "empty"
        case _:
            return f"`{value}`"


def _render_foreign_keys() -> Iterator[str]:
    """Yield the Markdown lines of the section about keys of Nomad that Wharf does not have."""
    yield "## Keys of Nomad that Wharf does not have\n"
    yield "Each is an error like every unknown key; the message gives the reason.\n"
    yield "| key | why |\n|---|---|"
    for path, reason in REASON_BY_FOREIGN_KEY.items():
        yield f"| `{format_path(path)}` | {reason.removesuffix(': remove it')} |"


def main() -> None:
    """Rewrite the page in the current folder."""
    page = FilePath(PAGE)
    page.write_text(render_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
