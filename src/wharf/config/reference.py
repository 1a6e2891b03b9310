"""Writes the tables of docs/configuration.md from the declarations: `python -m wharf.config.reference`.

What stands above the marker in that page is written by hand and stays.
"""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final, get_args

from wharf.config.builder import format_path
from wharf.config.foreign_keys import REASON_BY_FOREIGN_KEY
from wharf.config.ineffective import get_awaited_capability, get_ineffective_reason
from wharf.config.schema import ANY_NAME, SettingField, describe_type, is_section, iterate_fields
from wharf.config.tree import KeyPath
from wharf.config.values import to_plain_value
from wharf.contract.model.settings import SecretText

PAGE: Final = "docs/configuration.md"
MARKER: Final = "<!-- All below is written by `python -m wharf.config.reference`. -->"


def render_page(page: str) -> str:
    """The page with its tables made anew."""
    introduction = page.partition(MARKER)[0]
    return introduction + "\n".join([MARKER, "", *_tables(), *_left_out(), ""])


def _tables() -> Iterator[str]:
    tables: dict[KeyPath, list[str]] = {(): []}
    texts: dict[KeyPath, str] = {(): "Keys outside of any table."}
    for path, field in iterate_fields():
        inner = _table_path(path, field)
        if inner is not None:
            tables[inner] = []
            texts[inner] = field.about.description
        else:
            tables[path[:-1]].append(_row(path, field))
    for path, rows in tables.items():
        heading = f"`[{_show(path)}]`" if path else "The agent"
        yield f"## {heading}\n\n{texts[path]}\n"
        if rows:
            yield "| key | what | default |\n|---|---|---|"
            yield from rows
            yield ""


def _table_path(path: KeyPath, field: SettingField) -> KeyPath | None:
    if field.section_type is not None:
        return path
    return (*path, ANY_NAME) if is_section(field.map_value_type) else None


def _row(path: KeyPath, field: SettingField) -> str:
    live = " *(reload)*" if field.about.is_reloadable else ""
    what = get_awaited_capability(path)
    why = get_ineffective_reason(path)
    waits = f" *(no effect yet: comes with {what})*" if what is not None else ""
    waits = f" *(without meaning here: {why})*" if why is not None else waits
    return f"| `{_show(path)}` | {field.about.description} {_expected(field)}{live}{waits} | {_default(field)} |"


def _show(path: KeyPath) -> str:
    return ".".join(key if key == ANY_NAME else format_path((key,)) for key in path)


def _expected(field: SettingField) -> str:
    kind: Any = field.type
    said = (
        f"A table, each value {describe_type(get_args(kind)[1])}"
        if field.map_value_type is not None
        else describe_type(kind)
    )
    least, most = field.about.min_value, field.about.max_value
    bounds = {
        (False, False): "",
        (True, False): f", {least} or more",
        (False, True): f", {most} or less",
        (True, True): f", {least} to {most}",
    }[(least is not None, most is not None)]
    return f"{said[0].upper()}{said[1:]}{bounds}."


def _default(field: SettingField) -> str:
    if field.about.default_text is not None:
        return field.about.default_text
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


def _left_out() -> Iterator[str]:
    yield "## Keys of other products that mean nothing here\n"
    yield "Each is refused with its reason, like every unknown key.\n"
    yield "| key | why |\n|---|---|"
    for path, reason in REASON_BY_FOREIGN_KEY.items():
        yield f"| `{format_path(path)}` | {reason.removesuffix(': remove it')} |"


def main() -> None:
    page = FilePath(PAGE)
    page.write_text(render_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
