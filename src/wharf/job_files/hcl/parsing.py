"""The entry point: evaluates a job file and maps it to the JSON of a job."""

from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.variables import VariableInputs


def parse_hcl_job(text: str | bytes, name: str, inputs: VariableInputs, ports: FunctionPorts) -> ParsedJob:
    """Return the job of a file. `name` is the name of the file in messages. Raises `DocumentErrors`."""
    raise NotImplementedError
