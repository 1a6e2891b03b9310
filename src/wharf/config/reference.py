"""Writes the tables of docs/configuration.md from the declarations: `python -m wharf.config.reference`.

What stands above the marker in that page is written by hand and stays.
"""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final, get_args

from wharf.config.building import say_path
from wharf.config.left_out import REASONS
from wharf.config.not_yet import awaited, meaningless
from wharf.config.schema import ANY_NAME, Field, all_fields, is_section, say_type
from wharf.config.tree import Path
from wharf.config.values import plain
from wharf.model.setting import Secret

PAGE: Final = "docs/configuration.md"
MARKER: Final = "<!-- All below is written by `python -m wharf.config.reference`. -->"


def render(page: str) -> str:
    """The page with its tables made anew."""
    introduction = page.partition(MARKER)[0]
    return introduction + "\n".join([MARKER, "", *_tables(), *_left_out(), ""])


def _tables() -> Iterator[str]:
    tables: dict[Path, list[str]] = {(): []}
    texts: dict[Path, str] = {(): "Keys outside of any table."}
    for path, field in all_fields():
        inner = _table_path(path, field)
        if inner is not None:
            tables[inner] = []
            texts[inner] = field.about.text
        else:
            tables[path[:-1]].append(_row(path, field))
    for path, rows in tables.items():
        heading = f"`[{_show(path)}]`" if path else "The agent"
        yield f"## {heading}\n\n{texts[path]}\n"
        if rows:
            yield "| key | what | default |\n|---|---|---|"
            yield from rows
            yield ""


def _table_path(path: Path, field: Field) -> Path | None:
    if field.section is not None:
        return path
    return (*path, ANY_NAME) if is_section(field.map_of) else None


def _row(path: Path, field: Field) -> str:
    live = " *(reload)*" if field.about.live else ""
    what = awaited(path)
    why = meaningless(path)
    waits = f" *(no effect yet: comes with {what})*" if what is not None else ""
    waits = f" *(without meaning here: {why})*" if why is not None else waits
    return f"| `{_show(path)}` | {field.about.text} {_expected(field)}{live}{waits} | {_default(field)} |"


def _show(path: Path) -> str:
    return ".".join(key if key == ANY_NAME else say_path((key,)) for key in path)


def _expected(field: Field) -> str:
    kind: Any = field.type
    said = f"A table, each value {say_type(get_args(kind)[1])}" if field.map_of is not None else say_type(kind)
    least, most = field.about.least, field.about.most
    bounds = {
        (False, False): "",
        (True, False): f", {least} or more",
        (False, True): f", {most} or less",
        (True, True): f", {least} to {most}",
    }[(least is not None, most is not None)]
    return f"{said[0].upper()}{said[1:]}{bounds}."


def _default(field: Field) -> str:
    if field.about.shown_default is not None:
        return field.about.shown_default
    if isinstance(field.default, Secret):
        return "none"
    value = plain(field.default)
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
    for path, reason in REASONS.items():
        yield f"| `{say_path(path)}` | {reason.removesuffix(': remove it')} |"


def main() -> None:
    page = FilePath(PAGE)
    page.write_text(render(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
