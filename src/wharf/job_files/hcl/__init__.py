"""Job files in HCL. `blocks` is the table of all blocks and arguments; `parse_hcl_job` converts a file by it.

job = parse_hcl_job(text, "web.hcl", VariableInputs(), FunctionPorts(random))      # raises DocumentErrors
job.document["TaskGroups"][0]["Count"]
job.find_place("TaskGroups[0].Count")                                              # web.hcl:4:13
"""

from wharf.job_files.hcl.parsed_job import ParsedJob
from wharf.job_files.hcl.parsing import evaluate_hcl_job, parse_hcl_job

__all__ = ["ParsedJob", "evaluate_hcl_job", "parse_hcl_job"]
