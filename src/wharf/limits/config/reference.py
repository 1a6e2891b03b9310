"""Writes the tables of docs/limits.md from the declarations: `python -m wharf.limits.config.reference`.

What stands above the marker in that page is written by hand and stays.
"""

from pathlib import Path
from typing import Final

from wharf.limits.config.schema import TABLES

PAGE: Final = "docs/limits.md"
MARKER: Final = "<!-- All below is written by `python -m wharf.limits.config.reference`. -->"


def render_page(page: str) -> str:
    """The page with its tables made anew."""
    parts = [page.partition(MARKER)[0] + MARKER, "", "## Keys of the file", ""]
    for table in TABLES:
        parts += [f"### `[{table.name}]`" if table.name else "### Outside of any table", "", table.description, ""]
        parts += ["| key | what | default |", "|---|---|---|"]
        parts += [f"| `{key.name}` | {key.description} {key.kind.description} | {key.default} |" for key in table.keys]
        parts.append("")
    parts += ["### `[meta]`", "", "Whatever stands here is told by `GET /meta`, as JSON.", ""]
    return "\n".join(parts)


def main() -> None:
    page = Path(PAGE)
    page.write_text(render_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
