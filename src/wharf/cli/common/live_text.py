"""A text that is replaced in place on a terminal."""

import sys
from types import TracebackType
from typing import Self

import click

from wharf.cli.common.rendering import get_terminal_width, wrap_words
from wharf.cli.common.terminal import get_unfiltered_stream, protect_terminals, render_for_terminal


class LiveText:
    """A context manager that shows a text, and replaces it with each update. Lines are cut at the width of the terminal."""

    def __init__(self, *, is_full_screen: bool = False) -> None:
        from rich.console import Console
        from rich.live import Live

        # The text is escaped in `update`, because the display itself moves the cursor.
        console = Console(file=get_unfiltered_stream(sys.stdout), highlight=False, no_color=not _has_colours())
        self._live = Live(console=console, auto_refresh=False, screen=is_full_screen)

    def __enter__(self) -> Self:
        self._live.start()
        protect_terminals()  # The display has replaced both streams, to print above itself.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, rendered: str) -> None:
        """Show this text, at once, with lines that break between words."""
        from rich.text import Text

        rendered = wrap_words(rendered, get_terminal_width())
        text = Text.from_ansi(render_for_terminal(rendered if _has_colours() else click.unstyle(rendered)))
        text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(text, refresh=True)

    def stop(self) -> None:
        """End the display. The last text stays, except on a full screen."""
        self._live.stop()


def _has_colours() -> bool:
    from click.globals import resolve_color_default

    return resolve_color_default() is not False
