"""The page of the limits of reads states the limits of the program."""

from pathlib import Path

import pytest

from wharf.cluster.api.access_control import MAX_CHARS_COMPILED_ON_LOOP
from wharf.cluster.api.lists.pages import MAX_STEPS_ON_LOOP
from wharf.cluster.api.settings import ApiSettings
from wharf.cluster.server.cpu_budget import MAX_OFF_LOOP_REQUESTS, SLICE_S, ReadLimits
from wharf.cluster.server.security.login_keys import MAX_LOGIN_KEYS
from wharf.cluster.server.security.logins import MAX_LOGIN_TOKEN_CHARS
from wharf.languages import patterns
from wharf.languages.filters.compiler import MAX_FILTER_INSTRUCTIONS
from wharf.languages.filters.scope import MAX_STEPS

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "read-limits.md").read_text().split())


@pytest.mark.parametrize(
    "statement",
    [
        f"| evaluate the filter of a list or of a deletion | {ReadLimits().filter_cpu_s:g} s |",
        f"| build, encode and compress a list or a large record; search | {ReadLimits().list_cpu_s:g} s |",
        f"| compare the versions of a job; parse the rules of policies | {ReadLimits().view_cpu_s:g} s |",
        f"{MAX_OFF_LOOP_REQUESTS} requests at a time",
        f"{SLICE_S * 1_000:g} ms at a time",
        f"more than {MAX_STEPS_ON_LOOP:,} steps for one record",
        f"more than {MAX_CHARS_COMPILED_ON_LOOP:,} characters in total",
        f"at most {MAX_STEPS:,} steps for one record",
        f"| characters of the expression | {patterns.MAX_PATTERN_CHARS:,} |",
        f"| instructions of its program | {patterns.MAX_PATTERN_INSTRUCTIONS:,} |",
        f"| transitions between its instructions | {patterns.MAX_PATTERN_TRANSITIONS:,} |",
        f"such as `{{0,20}}` | {patterns.MAX_REPETITIONS:,} |",
        f"such as `\\p{{L}}` | {patterns.MAX_UNICODE_CLASSES} |",
        f"| instructions of all expressions of one filter | {MAX_FILTER_INSTRUCTIONS:,} |",
        f"more than {patterns.MAX_MATCH_STEPS:,} steps",
        f"| characters of the token of an identity provider | {MAX_LOGIN_TOKEN_CHARS:,} |",
        f"| public keys of one identity provider | {MAX_LOGIN_KEYS} |",
    ],
)
def test_the_page_states_a_limit_of_the_program(statement: str) -> None:
    assert statement in PAGE


def test_the_default_settings_are_the_default_limits() -> None:
    settings, limits = ApiSettings(), ReadLimits()

    assert settings.max_filter_cpu.seconds == limits.filter_cpu_s
    assert settings.max_list_cpu.seconds == limits.list_cpu_s
    assert settings.max_view_cpu.seconds == limits.view_cpu_s
