"""Judging a job: every rule of its specification, told all at once, each with the path of its field."""

from wharf.model.validation.findings import Findings, Problem, Section, warning_text
from wharf.model.validation.job import submission_warnings, validate
from wharf.model.validation.surroundings import (
    check_drivers,
    check_network_modes,
    check_places,
    merged,
    refuse_scaling,
    refuse_update,
)

__all__ = [
    "Findings",
    "Problem",
    "Section",
    "check_drivers",
    "check_network_modes",
    "check_places",
    "merged",
    "refuse_scaling",
    "refuse_update",
    "submission_warnings",
    "validate",
    "warning_text",
]
