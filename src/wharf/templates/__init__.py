"""The double-brace language of templates: `{{ range service "db" }}{{ .Address }}{{ end }}`.

Responsible for reading a template, with errors at line and column, and for making text from it and from what `Sources`
know. It can do nothing but make text: it opens no file, looks at no clock and reaches no attribute of an object; who
renders tells it what there is, and bounds say how far it may go. docs/templates.md describes the language.
"""

from wharf.templates.errors import TemplateError
from wharf.templates.rendering import Bounds, Rendered, Template
from wharf.templates.sources import Missing, NoSources, Sources
from wharf.templates.values import Entries, Entry, Fields, shown

__all__ = [
    "Bounds",
    "Entries",
    "Entry",
    "Fields",
    "Missing",
    "NoSources",
    "Rendered",
    "Sources",
    "Template",
    "TemplateError",
    "shown",
]
