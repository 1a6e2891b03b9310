"""Configuration of Sphinx, which builds the site from docs/: `make site`. Each warning, such as about a broken link, is an error.

The pages are also read on code hosts, so they are plain Markdown; only docs/index.md has a directive of Sphinx.
"""

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer  # type: ignore[import-untyped]

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from wharf import __version__

project = "Wharf"
author = "The Wharf authors"
release = version = __version__
language = "en"
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}
nitpicky = True
suppress_warnings = [
    # Decision records and the pages of the job file are reached by links; a test checks that index.md lists all other pages.
    "toc.not_included",
    # Blocks with templates in HCL, and shortened outputs, are shown with fewer colors.
    "misc.highlighting_failure",
]
# Anchors as on code hosts.
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"Wharf {release}"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
pygments_style = "friendly"


def setup(app: Any) -> None:  # Sphinx's application; its types are not needed elsewhere.
    """Show the sources of state diagrams as text, because drawing them needs a program from a network."""
    app.add_lexer("mermaid", TextLexer)
