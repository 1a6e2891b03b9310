"""The check of log lines, and the page of warnings and errors."""

import pytest

from tools.log_lines import PhraseTexts, check_form, check_texts, list_log_lines, read_texts, render_page

PATH = "src/wharf/cluster/server/nodes.py"
MISSED = list(list_log_lines(PATH, 'log.warning("node missed heartbeat node=%s ttl_s=%.0f", node, ttl)'))
TEXTS = {"node missed heartbeat": PhraseTexts("node missed heartbeat", "The node is down.", "Start it.")}


@pytest.mark.parametrize(
    "call",
    [
        'log.warning("node missed heartbeat")',
        'log.info("node missed heartbeat node=%s ttl_s=%.0f", node, ttl)',
        'self._log.error("node missed heartbeat; retrying error=%r", error)',
    ],
)
def test_a_phrase_with_fields_passes(call: str) -> None:
    (line,) = list_log_lines(PATH, call)

    assert list(check_form([line])) == []


@pytest.mark.parametrize(
    "call",
    [
        'log.warning("node %s missed its heartbeat", node)',
        'log.warning(f"node {node} missed its heartbeat")',
        "log.warning(text)",
        'log.warning("node=%s", node)',
    ],
)
def test_a_log_line_without_a_fixed_phrase_is_found(call: str) -> None:
    (line,) = list_log_lines(PATH, call)

    assert [finding.rule for finding in check_form([line])] == ["log-line"]


def test_a_call_of_another_object_is_not_a_log_line() -> None:
    assert list(list_log_lines(PATH, "warnings.warning(text)")) == []


def test_a_warning_without_cause_and_remedy_is_found() -> None:
    (finding,) = check_texts(MISSED, {})

    assert finding.message == 'add cause and remedy of "node missed heartbeat" to docs/logs.toml'


def test_texts_of_a_phrase_that_no_warning_logs_are_found() -> None:
    (finding,) = check_texts([], TEXTS)

    assert finding.message == 'no warning or error logs "node missed heartbeat": remove the entry'


def test_an_info_line_needs_no_texts() -> None:
    assert list(check_texts(list(list_log_lines(PATH, 'log.info("elected leader")')), {})) == []


def test_the_page_lists_a_phrase_under_the_part_with_the_longest_matching_module() -> None:
    page = render_page(MISSED, TEXTS, {"wharf.": "Agent", "wharf.cluster.": "Servers"})

    assert page.endswith(
        "## Servers\n\n| line | level | cause | what to do |\n|---|---|---|---|\n"
        "| `node missed heartbeat` | WARNING | The node is down. | Start it. |\n"
    )


def test_texts_are_read_by_phrase() -> None:
    text = '[[line]]\nphrase = "node missed heartbeat"\ncause = "The node is down."\nremedy = "Start it."'

    assert read_texts(text) == TEXTS
