"""Writes the table of what `nomad` refuses into docs/from-nomad.md: `python -m wharf.cli.nomad.reference`.

The text around the markers in that page is written by hand and not changed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wharf.cli.nomad.command_table import COMMANDS

PAGE: Final = "docs/from-nomad.md"
BEGIN_MARKER: Final = "<!-- Written by `python -m wharf.cli.nomad.reference`, up to the next comment. -->"
END_MARKER: Final = "<!-- The end of the written table. -->"


def render_page(page: str) -> str:
    """Return the page with its table replaced by the current one."""
    before, _, rest = page.partition(BEGIN_MARKER)
    after = rest.partition(END_MARKER)[2]
    return "\n".join([f"{before}{BEGIN_MARKER}", "", *_render_rows(), "", f"{END_MARKER}{after}"])


def _render_rows() -> Iterator[str]:
    """Yield the lines of the table: refused commands, then refused options. Options of one reason share a row."""
    yield "| Nomad | Instead |"
    yield "|---|---|"
    for name, command in sorted(COMMANDS.items()):
        if command.reason:
            yield f"| `nomad {name}` | {_escape(command.reason)} |"
    for name, command in sorted(COMMANDS.items()):
        options_by_reason: dict[str, list[str]] = {}
        for option, reason in command.refused.items():
            options_by_reason.setdefault(reason, []).append(f"`-{option}`")
        for reason, options in options_by_reason.items():
            yield f"| `nomad {name}` with {', '.join(options)} | {_escape(reason)} |"


def _escape(text: str) -> str:
    """Return a text for a cell, with templates and pipes that Markdown shows as they are."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(PAGE)
    path.write_text(render_page(path.read_text()))
