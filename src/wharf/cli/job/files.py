"""Job files: reads HCL, YAML, JSON and TOML into the document that servers validate, and locates errors in the file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wharf.cli.common.documents import STDIN, read_utf8_text
from wharf.cli.common.errors import CliError, ValidationIssue, parse_validation_issues
from wharf.cli.job.variables import VariableOptions, describe_submitted_variables, read_inputs
from wharf.job_files.fields import explain_type, is_duration_field
from wharf.job_files.markup_jobs import (
    find_origin,
    find_value,
    has_variables,
    is_hcl_in_json,
    list_declared_variables,
    map_markup_job,
    read_markup,
)
from wharf.languages.hcl.diagnostics import DocumentErrors, SourceFile
from wharf.languages.markup import MarkupFormat

if TYPE_CHECKING:
    from wharf.contract.wire.jobs.messages import JobSource
    from wharf.job_files.conversion import Conversion
    from wharf.job_files.hcl.parsed_job import ParsedJob
    from wharf.languages.hcl.variables import VariableInputs
    from wharf.world import World

HCL: Final = "hcl"
HCL_SUFFIXES: Final = (".hcl", ".nomad", ".wharf")
"""The endings of job files in HCL."""
SUBMITTED_HCL_FORMAT: Final = "hcl2"
"""The name of HCL in the stored source of a job."""
_FORMATS_BY_SUFFIX: Final = {
    ".yaml": MarkupFormat.YAML, ".yml": MarkupFormat.YAML, ".json": MarkupFormat.JSON, ".toml": MarkupFormat.TOML,
}  # fmt: skip
_HCL_START: Final = re.compile(
    r'^(?:(?:job|variable)[ \t]+(?:"[^"\n]*"|[\w-]+)[ \t]*\{|(?:variables|locals)[ \t]*\{)', re.MULTILINE
)
_TOML_START: Final = re.compile(r"(?:\s|#[^\n]*\n)*(?:[\w\"'.-]+[ \t]*=|\[)")
OPAQUE_FIELDS: Final = frozenset({"Config", "Env", "Meta", "Params"})
"""Maps whose keys the user chooses: a key such as `Timeout` in them is not a duration field."""
_UNKNOWN_FIELD: Final = re.compile(r"Job\.(\w+(?:\[\d+\]|\.\w+)*) (is not a known field.*)")
MIN_DURATION_NS: Final = 1_000_000
"""A shorter duration in a job is almost certainly a number of seconds without its unit."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file: `source` is its text, `parsed` the job with the field names of the API."""

    name: str
    source: str
    format: str
    parsed: "ParsedJob"
    inputs: "VariableInputs"

    @property
    def document(self) -> dict[str, Any]:
        return self.parsed.document

    @property
    def id(self) -> str:
        return str(self.document.get("ID") or "")

    def build_submission(self) -> "JobSource":
        """Return the source that is stored with the job: the text, and the values of its variables."""
        from wharf.contract.wire.jobs.messages import JobSource

        flags, variables = describe_submitted_variables(self.inputs, self.parsed.variables, self.parsed.hidden.names)
        stored_format = SUBMITTED_HCL_FORMAT if self.format == HCL else self.format
        return JobSource(
            source=self.source,
            format=stored_format,
            variable_flags=flags,
            variables=variables,
            sensitive_fields=self.sensitive_fields or None,
        )

    @property
    def sensitive_fields(self) -> tuple[str, ...]:
        """The JSON pointers of the fields whose values come from sensitive variables."""
        from wharf.contract.model.jobs.sensitive_fields import write_pointers

        return write_pointers(self.parsed.sensitive_paths)

    def format_errors(self, text: str) -> str:
        """Return the server's validation errors with their places in this file."""
        # Several groups may inherit one field of the job: its problem is reported once.
        lines = dict.fromkeys(self._format_issue(issue) for issue in parse_validation_issues(text))
        return self.parsed.hidden.hide("\n".join(lines))

    def format_warning(self, warning: str) -> str:
        """Return a server's warning, with the position of the field that it is about."""
        unknown_field = _UNKNOWN_FIELD.fullmatch(warning)
        if unknown_field is not None:
            return f"{self.parsed.find_place(unknown_field[1])}: {unknown_field[1]} {unknown_field[2]}"
        issues = parse_validation_issues(warning)
        if len(issues) != 1 or not issues[0].field_path:
            return warning
        path = find_origin(self.document, issues[0].field_path)
        text = self.parsed.hide_message(path, issues[0].text)
        return f"{self.parsed.find_place(path)}: {self.parsed.spell_path(self.parsed.cut_path(path))}: {text}"

    def list_warnings(self) -> list[str]:
        """Return the warnings that need no server: of the parser, and durations that probably lack a unit."""
        return [
            *self.parsed.warnings,
            *(
                f"{self.parsed.find_place(path)}: {self.parsed.spell_path(path)}: {duration} without a unit means "
                f'nanoseconds: write "{duration}s" for seconds'
                for path, duration in _iter_tiny_durations(self.document)
                if not self.parsed.is_sensitive(path)
            ),
        ]

    def _format_issue(self, issue: ValidationIssue) -> str:
        """Return one validation problem with its place; a number error of a duration field names the format."""
        if not issue.field_path:
            located = self.format_warning(issue.text)
            return located if located != issue.text else f"{self.name}: {self.parsed.hide_keys(issue.text)}"
        text, field_path, fix = issue.text, find_origin(self.document, issue.field_path), ""
        is_job = field_path == "Job"
        name = field_path if is_job else self.parsed.spell_path(self.parsed.cut_path(field_path))
        if self.format != HCL and not self.parsed.is_sensitive(field_path):
            value, format = find_value(self.document, field_path), MarkupFormat(self.format)
            text, fix = explain_type(field_path, text, value, format, file_path=name)
        return self.parsed.render_problem("" if is_job else field_path, name, text, fix)


def read_job_file(path: str, options: VariableOptions, world: "World") -> JobFile:
    """Read a job file; `-` is standard input. Raises CliError with all errors of the file.

    Errors are those of syntax, variables and names: fields, and options of drivers. Servers check the values.
    """
    name = "standard input" if path == STDIN else path
    text = read_utf8_text(path, name)
    try:
        return _parse(path, name, text, options, world)
    except DocumentErrors as errors:
        raise CliError(errors.text) from errors


def convert_file(
    path: str, name: str, target: str, options: VariableOptions, world: "World", *, evaluates: bool
) -> "Conversion":
    """Return a job file in another language; `-` is standard input. Raises CliError and `UnwritableValue`."""
    from wharf.cli.job.local_files import LocalFiles
    from wharf.job_files.conversion import JobFormat, convert_data_job, convert_hcl_job
    from wharf.languages.hcl.calls import FunctionPorts
    from wharf.languages.hcl.documents import list_declared_names, parse_document

    text = read_utf8_text(path, name)
    format = detect_format(path, text)
    ports = FunctionPorts(_RandomBytes(world), LocalFiles())
    try:
        if format != HCL:
            data = read_markup(text, name, MarkupFormat(format)).value
            if format != MarkupFormat.JSON or not is_hcl_in_json(data):
                inputs = read_inputs(path, options, list_declared_variables(data))
                source = SourceFile(name, text)
                return convert_data_job(
                    source, JobFormat(format), JobFormat(target), inputs, ports, evaluates=evaluates
                )
        document = parse_document(text, name)
        inputs = read_inputs(path, options, list_declared_names(document))
        conversion = convert_hcl_job(document, JobFormat(target), inputs, ports, evaluates=evaluates)
    except DocumentErrors as errors:
        raise CliError(errors.text) from errors
    return conversion


def detect_format(path: str, text: str) -> str:
    """Return the language of a job file by the ending of its name, else by its text."""
    if path.endswith(HCL_SUFFIXES):
        return HCL
    for suffix, format in _FORMATS_BY_SUFFIX.items():
        if path.endswith(suffix):
            return format
    if text.lstrip().startswith("{"):
        return MarkupFormat.JSON
    if _HCL_START.search(text):
        return HCL
    return MarkupFormat.TOML if _TOML_START.match(text) else MarkupFormat.YAML


def _parse(path: str, name: str, text: str, options: VariableOptions, world: "World") -> JobFile:
    """Return the job of a text. Its syntax errors hide those of values files. Raises CliError and DocumentErrors."""
    from wharf.cli.job.local_files import LocalFiles
    from wharf.languages.hcl.calls import FunctionPorts
    from wharf.languages.hcl.variables import VariableInputs

    format = detect_format(path, text)
    ports = FunctionPorts(_RandomBytes(world), LocalFiles())
    if format != HCL:
        document = read_markup(text, name, MarkupFormat(format))
        if format != MarkupFormat.JSON or not is_hcl_in_json(document.value):
            needs_inputs = has_variables(document.value) or options.values or options.files
            names = list_declared_variables(document.value)
            inputs = read_inputs(path, options, names) if needs_inputs else VariableInputs()
            parsed = map_markup_job(document, SourceFile(name, text), inputs, ports)
            return JobFile(name, text, format, parsed, inputs)
    from wharf.job_files.hcl.parsing import evaluate_hcl_job
    from wharf.languages.hcl.documents import list_declared_names, parse_document

    parsed_document = parse_document(text, name)
    inputs = read_inputs(path, options, list_declared_names(parsed_document))
    parsed = evaluate_hcl_job(parsed_document, inputs, ports, checks_tasks=True)
    return JobFile(name, text, HCL, parsed, inputs)


class _RandomBytes:
    """The random bytes of functions of job files."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def draw_bytes(self, count: int) -> bytes:
        return self._world.token_bytes(count)


def _iter_tiny_durations(value: Any, path: str = "") -> Iterator[tuple[str, int]]:  # Any value of the document.
    """Yield the durations below MIN_DURATION_NS in a document, each as its field path and its nanoseconds."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _iter_tiny_durations(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            item_path = f"{path}.{key}" if path else key
            if type(item) is int and 0 < item < MIN_DURATION_NS and is_duration_field(item_path):
                yield item_path, item
            elif key not in OPAQUE_FIELDS:
                yield from _iter_tiny_durations(item, item_path)
