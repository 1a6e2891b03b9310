"""The double-brace language of templates: `{{ range service "db" }}{{ .Address }}{{ end }}`.

Parses templates, with errors at line and column, and renders them as text from a value and from `TemplateSources`. A
template can do nothing else: it cannot open files, read clocks or access attributes of objects, and limits bound its time
and output. docs/templates.md describes the language.
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
