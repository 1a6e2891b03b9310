"""The entry points: evaluate a job file, or read it with its variables, and map it to the JSON of a job."""

from dataclasses import dataclass
from typing import Final

from wharf.job_files.hcl.block_types import build_block_schema
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.mapper import JobMapper
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import JsonObject, PlaceIndex, list_sensitive_paths, spell_path
from wharf.job_files.hcl.warnings import list_warnings
from wharf.job_files.runtime_names import add_name_warnings
from wharf.job_files.task_problems import add_task_problems
from wharf.languages.hcl.budget import Budget, BudgetExceeded
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.documents import EvaluatedDocument, ParsedDocument, evaluate_document, parse_document
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.template_documents import TemplateDocument, read_template_document
from wharf.languages.hcl.variables import VariableInputs

JOB_FILE_SCHEMA: Final = BodySchema((), {JOB.name: build_block_schema(JOB, is_required=True)})
"""The top level of a job file, beside variables and local values."""


def parse_hcl_job(text: str | bytes, name: str, inputs: VariableInputs, ports: FunctionPorts) -> ParsedJob:
    """Return the job of a file. `name` is the name of the file in messages. Raises `DocumentErrors`.

    The file is in the native or the JSON form of HCL. All errors of a stage are raised together.
    """
    return evaluate_hcl_job(parse_document(text, name), inputs, ports)


def evaluate_hcl_job(
    document: ParsedDocument, inputs: VariableInputs, ports: FunctionPorts, *, checks_tasks: bool = False
) -> ParsedJob:
    """Return the job of a file whose syntax is right. Raises `DocumentErrors`.

    If `checks_tasks`, wrong options of drivers and wrong texts of templates are errors too, and misspelled names in references
    for nodes are warnings.

    A caller that also reads values files parses the job file first, because its syntax errors hide all others.
    """
    budget = Budget()
    evaluated = evaluate_document(document, JOB_FILE_SCHEMA, ports=ports, inputs=inputs, budget=budget)
    return _map_job(evaluated, budget, checks_tasks=checks_tasks)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A job file with its variables: the texts of the job are templates. `declarations` has what the job refers to."""

    parsed: ParsedJob
    declarations: TemplateDocument


def read_hcl_template(document: ParsedDocument, inputs: VariableInputs, ports: FunctionPorts) -> JobTemplate:
    """Return the job of a file without values for its variables. Dynamic blocks are evaluated. Raises `DocumentErrors`."""
    budget = Budget()
    declarations = read_template_document(document, JOB_FILE_SCHEMA, ports=ports, inputs=inputs, budget=budget)
    return JobTemplate(_map_job(declarations.evaluated, budget), declarations)


def _map_job(evaluated: EvaluatedDocument, budget: Budget, *, checks_tasks: bool = False) -> ParsedJob:
    """Return the job of an evaluated document. Raises `DocumentErrors`."""
    diagnostics = evaluated.diagnostics
    mapper = JobMapper(diagnostics, budget)
    job: JsonObject = {}
    for block in evaluated.body.list_blocks(JOB.name)[:1]:
        try:
            job = mapper.map_job(block)
        except BudgetExceeded as error:
            place = block.place
            diagnostics.add(place.source, place.start, place.end, error.message, error.fix)
    parsed = ParsedJob(
        job,
        [*evaluated.notes, *list_warnings(evaluated, job)],
        PlaceIndex(job, mapper.origins),
        evaluated.variables,
        diagnostics.hidden,
        spell_path,
        list_sensitive_paths(job, mapper.origins) if evaluated.body.has_sensitive_values else (),
    )
    parsed.hide_sensitive_values()
    if checks_tasks and job:
        add_task_problems(diagnostics, parsed)
        if diagnostics.diagnostics:
            from wharf.job_files.value_problems import add_value_problems

            add_value_problems(diagnostics, parsed)
    diagnostics.raise_if_any()
    if checks_tasks:
        add_name_warnings(parsed)
    return parsed
