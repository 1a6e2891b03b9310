"""The double-brace language of templates: `{{ range service "db" }}{{ .Address }}{{ end }}`.

Responsible for reading a template, with errors at line and column, and for making text from it and from what `Sources`
know. It can do nothing but make text: it opens no file, looks at no clock and reaches no attribute of an object; who
renders tells it what there is, and bounds say how far it may go. docs/templates.md describes the language.
"""

from wharf.languages.templates.errors import TemplateError
from wharf.languages.templates.rendering import ParsedTemplate, RenderLimits, RenderResult
from wharf.languages.templates.sources import MissingSource, NoSources, TemplateSources
from wharf.languages.templates.values import RecordFields, VariableEntries, VariableEntry, format_value

__all__ = [
    "MissingSource",
    "NoSources",
    "ParsedTemplate",
    "RecordFields",
    "RenderLimits",
    "RenderResult",
    "TemplateError",
    "TemplateSources",
    "VariableEntries",
    "VariableEntry",
    "format_value",
]
