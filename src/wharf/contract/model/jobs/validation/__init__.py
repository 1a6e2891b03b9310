"""Validation of jobs: all violated rules of the job specification at once, each with the path of its field."""

from wharf.contract.model.jobs.validation.context import (
    check_drivers,
    check_existing_volumes,
    check_known_drivers,
    check_missing_drivers,
    check_namespace_and_node_pool,
    check_network_modes,
    find_scaling_error,
    find_update_error,
    merge_findings,
)
from wharf.contract.model.jobs.validation.findings import Findings, ProblemSection, ValidationProblem, format_warnings
from wharf.contract.model.jobs.validation.job import list_submission_warnings, validate_job

__all__ = [
    "Findings",
    "ProblemSection",
    "ValidationProblem",
    "check_drivers",
    "check_existing_volumes",
    "check_known_drivers",
    "check_missing_drivers",
    "check_namespace_and_node_pool",
    "check_network_modes",
    "find_scaling_error",
    "find_update_error",
    "format_warnings",
    "list_submission_warnings",
    "merge_findings",
    "validate_job",
]
