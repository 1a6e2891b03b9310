"""The entry point: evaluates a job file and maps it to the JSON of a job."""

from typing import Final

from wharf.job_files.hcl.block_types import build_block_schema
from wharf.job_files.hcl.blocks import JOB
from wharf.job_files.hcl.mapper import JobMapper
from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.places import PlaceIndex
from wharf.job_files.hcl.warnings import list_warnings
from wharf.languages.hcl.budget import Budget, BudgetExceeded
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.documents import evaluate_document, parse_document
from wharf.languages.hcl.schemas import BodySchema
from wharf.languages.hcl.variables import VariableInputs

JOB_FILE_SCHEMA: Final = BodySchema((), {JOB.name: build_block_schema(JOB, is_required=True)})
"""The top level of a job file, beside variables and local values."""


def parse_hcl_job(text: str | bytes, name: str, inputs: VariableInputs, ports: FunctionPorts) -> ParsedJob:
    """Return the job of a file. `name` is the name of the file in messages. Raises `DocumentErrors`.

    The file is in the native or the JSON form of HCL. All errors of a stage are raised together.
    """
    budget = Budget()
    evaluated = evaluate_document(
        parse_document(text, name), JOB_FILE_SCHEMA, ports=ports, inputs=inputs, budget=budget
    )
    diagnostics = evaluated.diagnostics
    jobs = evaluated.body.list_blocks(JOB.name)
    mapper = JobMapper(diagnostics, budget)
    document = {}
    for job in jobs[:1]:
        try:
            document = mapper.map_job(job)
        except BudgetExceeded as error:
            diagnostics.add(job.place.source, job.place.start, job.place.end, error.message, error.fix)
    diagnostics.raise_if_any()
    return ParsedJob(document, list_warnings(evaluated, document), PlaceIndex(document, mapper.origins))
