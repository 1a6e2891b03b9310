"""Job files in YAML, JSON and TOML: reads a file, evaluates its templates, and returns the JSON of the job.

A file with `variables` or `locals` is a template: `${...}` in its texts is evaluated as in HCL. In any other file, texts stay
as they are (record 0236).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from wharf.contract.model.decoding import DecodingError, convert_object
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.jobs.messages import JobRegisterRequest
from wharf.job_files.fields import (
    FieldProblem,
    NormalizedJob,
    describe_type,
    explain_type,
    has_job_fields,
    normalize_job,
)
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import (
    FilePath,
    find_path_value,
    format_path,
    iterate_referring_texts,
    list_marked_paths,
    parse_path,
)
from wharf.job_files.hcl.warnings import list_warnings
from wharf.job_files.runtime_names import add_name_warnings
from wharf.job_files.task_problems import add_task_problems
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.diagnostics import (
    MAX_DIAGNOSTICS,
    Diagnostic,
    DiagnosticList,
    DocumentErrors,
    FixSource,
    SourceFile,
    SourceRange,
    hide_quoted,
)
from wharf.languages.hcl.documents import (
    MAX_FILE_BYTES,
    EvaluatedAttribute,
    EvaluatedDocument,
    ParsedDocument,
    evaluate_document,
)
from wharf.languages.hcl.json_documents import JsonArray, JsonExpression, JsonNode, JsonObject, JsonProperty, JsonScalar
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.template_documents import check_template_document
from wharf.languages.hcl.values import to_plain
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupDocument, MarkupFormat, parse_markup
from wharf.languages.markup_errors import MarkupError

VARIABLES: Final = "variables"
LOCALS: Final = "locals"
TEMPLATE_KEYS: Final = (VARIABLES, LOCALS)
"""Keys that make a file a template."""
EXTENSION_PREFIX: Final = "x-"
"""Top-level keys with this prefix are ignored. They hold parts that other parts of a YAML file refer to by aliases."""
WRAPPER: Final = "Job"
"""The key of the job in a request of the API. A file may have it too."""
_REQUEST_FIELDS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(JobRegisterRequest))
"""The keys of a request of the API, which a file with the key `Job` may have. Commands read only the job."""
_JOB: Final = "job"
_TEMPLATE_SCHEMA: Final = BodySchema((_JOB,))
"""The top level of a file with variables, beside these."""
_DECLARED_REFERENCE: Final = re.compile(r"(?<!\$)\$\{\s*(var|local)\.([A-Za-z_][\w-]*)")
"""The start of a reference to a variable or local value. A doubled sign makes it a text."""
_NO_JOB_FIXES: Final = {
    MarkupFormat.YAML: "write the fields of a job, such as ID: web",
    MarkupFormat.JSON: 'write an object, such as {"ID": "web", ...}',
    MarkupFormat.TOML: 'write the fields of a job, such as ID = "web"',
}
_ID_FIXES: Final = {
    MarkupFormat.YAML: "add one, such as ID: web",
    MarkupFormat.JSON: 'add one, such as "ID": "web"',
    MarkupFormat.TOML: 'add one, such as ID = "web"',
}
FOREIGN_FILES: Final = {
    "apiVersion": (
        "this is a manifest of Kubernetes, not a job file",
        "write a job file: `wharf job init --docker` writes an example; a pod is a group, and a container is a task",
    ),
    "services": (
        "this is a file of docker compose, not a job file",
        "write a job file: `wharf job init --docker` writes an example; a service is a group with a task",
    ),
}
"""Keys of files of other programs, with the error about such a file and what to do."""
_MANIFEST_START: Final = re.compile(
    r"(?:\s*(?:#[^\n]*|---[^\n]*)?\n)*+(apiVersion):[ \t]*\S.*\n(?:[^\n]*\n)*?kind:[ \t]*\w"
)
"""The start of a manifest of Kubernetes, which may have several documents."""
COMPOSE_SERVICE_KEYS: Final = frozenset({"build", "command", "environment", "image", "ports"})
"""Keys of a service that show that a file is one of docker compose."""
INHERITED_BLOCKS: Final = {
    re.compile(r"^TaskGroups\[\d+\]\.Update\."): "Update.",
    re.compile(r"^TaskGroups\[\d+\]\.ReschedulePolicy\."): "Reschedule.",
    re.compile(r"^TaskGroups\[\d+\]\.Migrate\."): "Migrate.",
    re.compile(r"\.Tasks\[\d+\]\.RestartPolicy\."): ".RestartPolicy.",
    re.compile(r"\.Checks\[\d+\]\.CheckRestart\."): ".CheckRestart.",
}
"""Paths of blocks that inherit fields, each with the path of the block that they inherit from."""


def has_variables(document: Any) -> bool:
    """Return whether a document declares variables or local values."""
    return isinstance(document, dict) and any(key in document for key in TEMPLATE_KEYS)


def list_declared_variables(document: Any) -> dict[str, bool]:
    """Return the variables whose declarations say whether they are sensitive, and what they say."""
    variables = document.get(VARIABLES) if isinstance(document, dict) else None
    if not isinstance(variables, dict):
        return {}
    return {
        name: part["sensitive"] is not False
        for name, part in variables.items()
        if isinstance(part, dict) and "sensitive" in part
    }


def is_hcl_in_json(document: Any) -> bool:
    """Return whether a JSON document is a job file in the JSON form of HCL: the job is below its name."""
    job = document.get(_JOB) if isinstance(document, dict) else None
    return isinstance(job, dict | list) and not any(str(key).lower() == "id" for key in job)


def parse_markup_job(
    text: str, name: str, format: MarkupFormat, inputs: VariableInputs, ports: FunctionPorts
) -> ParsedJob:
    """Return the job of a file. `name` is the name of the file in messages. Raises `DocumentErrors`."""
    return map_markup_job(read_markup(text, name, format), SourceFile(name, text), inputs, ports)


def read_markup(text: str, name: str, format: MarkupFormat) -> MarkupDocument:
    """Return the document of a file. Raises `DocumentErrors` if it cannot be read."""
    with name_markup_errors(text, name):
        return parse_markup(text, format)


@contextmanager
def name_markup_errors(text: str, name: str) -> Iterator[None]:
    """In the block, turn errors of a text into `DocumentErrors` with the name of its file."""
    try:
        yield
    except MarkupError as error:
        diagnostics, problem = DiagnosticList(), error
        manifest = _MANIFEST_START.match(text)
        if manifest is not None:  # It often has several documents, or templates of another program.
            message, fix = FOREIGN_FILES["apiVersion"]
            problem = MarkupError(message, *manifest.span(1), fix)
        problem.add_to(diagnostics, name, text)
        raise DocumentErrors(diagnostics.diagnostics) from error


def map_markup_job(
    document: MarkupDocument, source: SourceFile, inputs: VariableInputs, ports: FunctionPorts
) -> ParsedJob:
    """Return the job of a document. Raises `DocumentErrors`."""
    diagnostics = DiagnosticList()
    places = MarkupPlaces(document, source)
    value = document.value
    if not isinstance(value, dict):
        raise _refuse_document(document, source)
    if foreign := _find_foreign_key(value):
        diagnostics.add(*places.get_range((foreign,), is_name=True), *FOREIGN_FILES[foreign])
        diagnostics.raise_if_any()
    try:
        evaluated = _evaluate_templates(document, source, inputs, ports)
    except DocumentErrors as errors:
        # The rest of the file is checked as it is written, but for values with references.
        evaluated = None
        diagnostics.diagnostics += errors.diagnostics
        diagnostics.hidden = errors.hidden or diagnostics.hidden
        diagnostics.omitted_count += errors.omitted_count
    if evaluated is None and not diagnostics.diagnostics:
        _add_undeclared_references(diagnostics, value, places)
    if evaluated is not None:
        value = to_plain(evaluated.body.attributes[_JOB].value)
    prefix: FilePath = (WRAPPER,) if WRAPPER in value else ()
    job = value.get(WRAPPER, value)
    if not isinstance(job, dict):
        diagnostics.add(*places.get_range(prefix), f"Job: expected a job, got {describe_type(job)}")
        diagnostics.raise_if_any()
    if prefix:
        _add_unknown_request_fields(diagnostics, value, places)
    normalized = normalize_job(
        {
            key: item
            for key, item in job.items()
            if (prefix or key not in TEMPLATE_KEYS) and not key.startswith(EXTENSION_PREFIX)
        },
        document.format,
    )
    places.set_origins(normalized, prefix)
    if evaluated is not None:
        places.set_sensitive_values(evaluated.body.attributes[_JOB])
    # The problems are in the order of the file. To locate all of 80,000 takes a second.
    diagnostics.omitted_count += max(0, len(normalized.problems) - MAX_DIAGNOSTICS)
    for problem in normalized.problems[:MAX_DIAGNOSTICS]:
        place = places.get_range((*prefix, *problem.path), is_name=problem.is_name)
        diagnostics.add(*place, *places.hide_problem(problem, prefix))
    parsed = ParsedJob(normalized.document, [], places, spell_path=places.spell_path)
    if evaluated is not None:
        diagnostics.hidden = evaluated.diagnostics.hidden
        parsed = replace(
            parsed,
            warnings=[*evaluated.notes, *list_warnings(evaluated, normalized.document)],
            variables=evaluated.variables,
            hidden=diagnostics.hidden,
            sensitive_paths=places.list_sensitive_paths(),
        )
        parsed.hide_sensitive_values()
    has_job_key = any(str(key).lower() == _JOB for key in job)
    if not normalized.document.get("ID") and not has_job_key:
        source, start, _ = places.get_range(prefix)
        diagnostics.add(source, start, start, "the job has no ID", _ID_FIXES[document.format])
    add_task_problems(diagnostics, parsed)
    if diagnostics.diagnostics:
        reported = {problem.path for problem in normalized.problems}
        _add_type_problems(diagnostics, parsed, document.format, reported, is_template=evaluated is not None)
        from wharf.job_files.value_problems import add_value_problems

        add_value_problems(diagnostics, parsed)
    diagnostics.raise_if_any()
    add_name_warnings(parsed)
    return parsed


def refuse_other_files(document: MarkupDocument, source: SourceFile) -> None:
    """Raise `DocumentErrors` if a document is not a job file: it is no map, or has no field of a job. Types are not checked."""
    value = document.value
    if not isinstance(value, dict):
        raise _refuse_document(document, source)
    foreign = _find_foreign_key(value)
    if not foreign and (has_job_fields(value) or any(key in value for key in (*TEMPLATE_KEYS, WRAPPER, _JOB))):
        return
    message, fix = FOREIGN_FILES.get(
        foreign, ("not a job file: it has no field of a job", _NO_JOB_FIXES[document.format])
    )
    diagnostics = DiagnosticList()
    key = foreign or next(iter(value), "")
    diagnostics.add(*MarkupPlaces(document, source).get_range((key,), is_name=True), message, fix)
    diagnostics.raise_if_any()


def _add_unknown_request_fields(diagnostics: DiagnosticList, value: Mapping[str, Any], places: "MarkupPlaces") -> None:
    """Add an error for each key beside `Job` that a request of the API does not have."""
    job_fields = {field.encode_name for field in msgspec.structs.fields(Job)}
    for key in value:
        if key not in _REQUEST_FIELDS and key not in TEMPLATE_KEYS and not key.startswith(EXTENSION_PREFIX):
            fix = "move it into Job" if key in job_fields else "delete it, or move it into Job if it belongs to the job"
            diagnostics.add(*places.get_range((key,), is_name=True), f"{key} is not a known field beside Job", fix)


def _find_foreign_key(value: Mapping[str, Any]) -> str:
    """Return the key that shows that a file is one of another program, or an empty text."""
    if "apiVersion" in value and "kind" in value:
        return "apiVersion"
    services = value.get("services")
    is_compose = isinstance(services, dict) and any(
        isinstance(service, dict) and service.keys() & COMPOSE_SERVICE_KEYS for service in services.values()
    )
    return "services" if is_compose and not any(key.lower() == "id" for key in value) else ""


def _refuse_document(document: MarkupDocument, source: SourceFile) -> DocumentErrors:
    """Return the error of a document that is no map."""
    found = "an empty file" if document.value is None else describe_type(document.value)
    message, fix = f"not a job file: expected a map, got {found}", _NO_JOB_FIXES[document.format]
    start = len(source.text) - len(source.text.lstrip())
    if document.format is MarkupFormat.YAML:
        from wharf.languages.yaml_faults import explain_text

        start = document.build_tree().start
        reason, reason_fix = explain_text(source.text, start)
        message, fix = (reason, reason_fix) if isinstance(document.value, str) and reason else (message, fix)
    end = start + len(source.get_line_text(start).strip())
    return DocumentErrors([Diagnostic(SourceRange(source, start, end), message, fix)])


def _add_type_problems(
    diagnostics: DiagnosticList, parsed: ParsedJob, format: MarkupFormat, reported: set[FilePath], *, is_template: bool
) -> None:
    """Add the values of a wrong type to other errors, so that the user sees all errors in one run.

    Without other errors, the server reports them, together with the rules that it checks. `reported` are the paths of problems
    that are reported already.
    """
    try:
        convert_object(Job, parsed.document)
    except DecodingError as error:
        for problem in error.problems:
            if (problem.path != "ID" or parsed.document.get("ID")) and parse_path(problem.path) not in reported:
                path = find_origin(parsed.document, problem.path)
                value = find_value(parsed.document, path)
                if not is_template and isinstance(value, str) and "${" in value:
                    continue  # The reference may be an error already. Its value may have the right type.
                place = parsed.find_place(path)
                name = parsed.spell_path(parsed.cut_path(path))
                written = place.text if path in parsed.places else ""
                message, fix = explain_type(path, problem.message, value, format, file_path=name, written=written)
                if parsed.is_sensitive(path):
                    message, fix = hide_quoted(message), ""
                diagnostics.add(place.source, place.start, place.end, f"{name}: {message}", fix)


def _add_undeclared_references(diagnostics: DiagnosticList, document: Any, places: "MarkupPlaces") -> None:
    """Add an error for the first `${var.name}` or `${local.name}` of each name in a file that declares none of them.

    The file is no template, so the text would reach the node, which knows no such name. `$${` stays as it is.
    """
    seen: set[str] = set()
    for path, text in iterate_referring_texts(document):
        for match in _DECLARED_REFERENCE.finditer(text):
            kind, name = match[1], match[2]
            if f"{kind}.{name}" in seen:
                continue
            seen.add(f"{kind}.{name}")
            if len(seen) > MAX_DIAGNOSTICS:
                diagnostics.omitted_count += 1  # Searching the place of each takes long.
                continue
            key = VARIABLES if kind == "var" else LOCALS
            source, start, end = places.get_range(path)
            at = source.text.find(match[0], start)
            diagnostics.add(
                source,
                *((at, at + len(match[0])) if at >= 0 else (start, end)),
                f'the file does not declare "{kind}.{name[:80]}": it has no "{key}"',
                f'add "{key}" with "{name[:80]}" to the top of the file, or write $${{{kind}.{name[:80]}}} for this text',
            )


def find_origin(document: Any, field_path: str) -> str:
    """Return the path at which a document has the value of a field: groups and tasks inherit policies from above."""
    for pattern, replacement in INHERITED_BLOCKS.items():
        origin = pattern.sub(replacement, field_path)
        is_inherited = origin != field_path and find_value(document, field_path) is None
        if is_inherited and find_value(document, origin) is not None:
            return origin
    return field_path


def find_value(document: Any, path: str) -> Any:
    """Return the value of a field of a document, or `None` if it has none."""
    return find_path_value(document, parse_path(path))


class MarkupPlaces(Mapping[str, SourceRange]):
    """The places of the fields of a job by their paths. The tree is built when the first place is needed."""

    def __init__(self, document: MarkupDocument, source: SourceFile) -> None:
        self._document = document
        self._source = source
        self._job: Mapping[str, Any] = {}
        self._origins: Mapping[FilePath, FilePath] = {}
        self._prefix: FilePath = ()
        self._sensitive: set[FilePath] = set()
        self._tree: JsonNode | None = None
        self._has_tree = False
        self._indexes: dict[int, dict[str, JsonProperty]] = {}

    def set_origins(self, normalized: NormalizedJob, prefix: FilePath) -> None:
        """Set the paths in the file of fields that the document has elsewhere."""
        self._job = normalized.document
        self._origins = normalized.origins
        self._prefix = prefix

    def __getitem__(self, path: str) -> SourceRange:
        found = self._find_field(path)
        if found is None and path:
            raise KeyError(path)
        return found.value if found is not None else SourceRange(SourceFile(self._source.name, "", is_file=False), 0, 0)

    def map_file_paths(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """Return the paths of the job by those of the file, for all values."""
        return {
            tuple(map(str, (*self._prefix, *self._get_file_path(path)))): tuple(map(str, path))
            for path in reversed([parse_path(text) for text in self])
        }

    def spell_path(self, path: str) -> str:
        """Return the path in the file of a field of the job."""
        return format_path(self._get_file_path(parse_path(path)))

    def __iter__(self) -> Iterator[str]:
        """Yield the paths that the file contains: not those inside a list or map that a template returns."""
        return (path for path in _iterate_paths(self._job, ()) if not path or self._find_field(path) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def set_sensitive_values(self, job: EvaluatedAttribute) -> None:
        """Set which values of the file come from sensitive variables."""
        self._sensitive = {()} if job.is_sensitive else set(list_marked_paths(job.value))

    def is_sensitive(self, file_path: FilePath) -> bool:
        """Return whether the value at a path of the file comes from a sensitive variable."""
        return bool(self._sensitive) and any(file_path[:end] in self._sensitive for end in range(len(file_path) + 1))

    def hide_problem(self, problem: FieldProblem, prefix: FilePath) -> tuple[str, FixSource]:
        """Return message and fix of a problem, without parts of sensitive values and of their keys."""
        ends = [end for end in range(len(problem.path) + 1) if (*prefix, *problem.path[:end]) in self._sensitive]
        if not ends and not self.is_sensitive(prefix):
            return problem.message, problem.fix
        shown = format_path(problem.path[: min(ends, default=0)])
        if problem.is_name:
            return f"{shown}: a field has a wrong name, which comes from a sensitive variable", ""
        return hide_quoted(problem.message.replace(format_path(problem.path), shown)), ""

    def list_sensitive_paths(self) -> list[FilePath]:
        """Return the paths in the document of the fields whose values come from sensitive variables."""
        found: list[FilePath] = []
        if self._sensitive:
            self._collect_sensitive(self._job, (), found)
        return found

    def _collect_sensitive(self, value: Any, path: FilePath, found: list[FilePath]) -> None:
        """Add the paths of a value and of the values inside it that are sensitive."""
        if self.is_sensitive((*self._prefix, *self._get_file_path(path))):
            found.append(path)
            return
        for step, item in _iterate_items(value):
            self._collect_sensitive(item, (*path, step), found)

    def get_range(self, path: FilePath, *, is_name: bool = False) -> tuple[SourceFile, int, int]:
        """Return source and offsets of a value, or of the nearest value around it. With `is_name`, those of its key."""
        while True:
            found = self._find(path)
            if found is not None:
                place = found.name if is_name else found.value
                return place.source, place.start, place.end
            if not path:
                return SourceFile(self._source.name, "", is_file=False), 0, 0
            path = path[:-1]
            is_name = True

    def _get_file_path(self, path: FilePath) -> FilePath:
        """Return the path in the file of a path of the document."""
        for length in range(len(path), 0, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return (*origin, *path[length:])
        return path

    def _load_tree(self) -> JsonNode | None:
        if not self._has_tree:
            self._has_tree = True
            try:
                self._tree = self._document.build_tree()
            except MarkupError:
                self._tree = None
        return self._tree

    def _find_field(self, path: str) -> "_Place | None":
        return self._find((*self._prefix, *self._get_file_path(parse_path(path))))

    def _find(self, path: FilePath) -> "_Place | None":
        """Return the place of a value and of its key. The empty path is the start of the document."""
        node = self._load_tree()
        if node is None:
            return None
        if not path:
            start = SourceRange(self._source, node.start, node.start)
            return _Place(start, start)
        entry: JsonProperty | None = None
        for step in path:
            entry = None
            if isinstance(node, JsonObject):
                entry = self._index_properties(node).get(str(step))
                if entry is None:
                    return None
                node = entry.value
            elif isinstance(node, JsonArray) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
            else:
                return None
        value = SourceRange(self._source, node.start, node.end)
        if entry is None:
            return _Place(value, value)
        name = SourceRange(self._source, entry.start, entry.end)
        return _Place(name, value if self._is_marked(node, entry.end) else name)

    def _index_properties(self, node: JsonObject) -> dict[str, JsonProperty]:
        """Return the first property of each key. A search in the list for each of 60,000 unknown fields takes minutes."""
        index = self._indexes.get(id(node))
        if index is None:
            index = self._indexes[id(node)] = {entry.key: entry for entry in reversed(node.properties)}
        return index

    def _is_marked(self, node: JsonNode, key_end: int) -> bool:
        """Return whether a mark below a value shows it: it is not empty, and a list or map is on the line of its key."""
        is_empty = node.end <= node.start
        return not is_empty and (isinstance(node, JsonScalar) or "\n" not in self._source.text[key_end : node.end])


@dataclass(frozen=True, slots=True)
class _Place:
    """The places of a key and of its value. Items of lists have no key, and values of several lines have that of their key."""

    name: SourceRange
    value: SourceRange


def _iterate_paths(value: Any, path: FilePath) -> Iterator[str]:
    """Yield the paths of a value and of all values inside it."""
    yield format_path(path)
    for step, item in _iterate_items(value):
        yield from _iterate_paths(item, (*path, step))


def _iterate_items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a map, or the positions and items of a list."""
    return value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()


# -- templates


def _evaluate_templates(
    document: MarkupDocument, source: SourceFile, inputs: VariableInputs, ports: FunctionPorts
) -> EvaluatedDocument | None:
    """Return the document with its templates evaluated, or `None` if it has none. Raises `DocumentErrors`."""
    if not has_variables(document.value):
        # The document stays as it is, but values for variables that it does not declare are an error.
        nothing = ParsedDocument(source, JsonObject([], 0, 0))
        evaluate_document(nothing, BodySchema(), ports=ports, inputs=inputs).diagnostics.raise_if_any()
        return None
    parsed = _build_template_document(document, source)
    evaluated = evaluate_document(parsed, _TEMPLATE_SCHEMA, ports=ports, inputs=inputs)
    evaluated.diagnostics.raise_if_any()
    return evaluated


def check_templates(document: MarkupDocument, source: SourceFile, inputs: VariableInputs, ports: FunctionPorts) -> None:
    """Check the declarations of a file, and its templates without values of variables. Raises `DocumentErrors`."""
    check_template_document(_build_template_document(document, source), _TEMPLATE_SCHEMA, ports=ports, inputs=inputs)


def _build_template_document(document: MarkupDocument, source: SourceFile) -> ParsedDocument:
    """Return a file with variables as a document in the JSON form of HCL. Raises `DocumentErrors`."""
    diagnostics = DiagnosticList()
    size = len(source.text.encode())
    if size > MAX_FILE_BYTES:
        place = SourceFile(source.name, "", is_file=False)
        diagnostics.add(
            place, 0, 0, f"the file has {size:,} bytes; a file with variables may have {MAX_FILE_BYTES:,} at most"
        )
    tree: JsonNode | None = None
    try:
        tree = document.build_tree()
    except MarkupError as error:
        error.add_to(diagnostics, source.name, source.text)
    diagnostics.raise_if_any()
    assert isinstance(tree, JsonObject), "the value of the document is an object"
    rest = [entry for entry in tree.properties if entry.key not in TEMPLATE_KEYS]
    properties = [JsonProperty(_JOB, tree.start, tree.start, JsonObject(rest, tree.start, tree.end))]
    for entry in tree.properties:
        if entry.key == VARIABLES:
            declarations = _build_declarations(entry, diagnostics, source)
            properties.append(JsonProperty("variable", entry.start, entry.end, declarations))
        elif entry.key == LOCALS:
            if isinstance(entry.value, JsonObject):
                properties.append(entry)
            elif not (isinstance(entry.value, JsonScalar) and entry.value.value is None):
                diagnostics.add(source, entry.start, entry.end, f"{LOCALS} is a map of names to values")
    diagnostics.raise_if_any()
    return ParsedDocument(source, JsonObject(properties, tree.start, tree.end))


def _build_declarations(entry: JsonProperty, diagnostics: DiagnosticList, source: SourceFile) -> JsonNode:
    """Return the declarations in the JSON form of HCL. A value that is not a map is the default of its variable."""
    if not isinstance(entry.value, JsonObject):
        if not (isinstance(entry.value, JsonScalar) and entry.value.value is None):
            diagnostics.add(source, entry.start, entry.end, f"{VARIABLES} is a map of names to declarations")
        return JsonObject([], entry.start, entry.end)
    declarations: list[JsonProperty] = []
    for key, start, end, value in entry.value.properties:
        if isinstance(value, JsonObject):
            parts = [_convert_validation(part) for part in value.properties]
            declaration = JsonObject(parts, value.start, value.end)
        elif isinstance(value, JsonScalar) and value.value is None:
            declaration = JsonObject([], value.start, value.end)
        else:
            declaration = JsonObject([JsonProperty("default", start, end, value)], value.start, value.end)
        declarations.append(JsonProperty(key, start, end, declaration))
    return JsonObject(declarations, entry.start, entry.end)


def _convert_validation(part: JsonProperty) -> JsonProperty:
    """Return a part of a declaration. A condition is an expression also without `${ }` around it."""
    if part.key != "validation":
        return part

    def convert(node: JsonNode) -> JsonNode:
        if isinstance(node, JsonArray):
            return JsonArray([convert(item) for item in node.items], node.start, node.end)
        if not isinstance(node, JsonObject):
            return node
        return JsonObject([convert_condition(inner) for inner in node.properties], node.start, node.end)

    def convert_condition(inner: JsonProperty) -> JsonProperty:
        text = inner.value.value if isinstance(inner.value, JsonScalar) else None
        if inner.key != "condition" or not isinstance(text, str):
            return inner
        start, end = inner.value.start, inner.value.end
        text = text.strip()
        if text.startswith("${") and text.endswith("}"):
            text, start, end = text[2:-1], start + 2, end - 1
        return inner if "${" in text else inner._replace(value=JsonExpression(text, start, end))

    return part._replace(value=convert(part.value))
