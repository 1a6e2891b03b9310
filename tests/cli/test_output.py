"""Output for programs: JSON, and templates of `--format`. The template language has its own tests."""

import pytest

from wharf.cli.common.errors import CliError
from wharf.cli.common.output import render_json, render_template, to_plain
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType


def test_a_record_has_all_its_fields_including_empty_ones() -> None:
    record = Evaluation(
        id="e1", type=SchedulerType.BATCH, triggered_by=EvaluationTrigger.SCHEDULED, status=EvaluationStatus.BLOCKED
    )

    assert render_template("{{.ID}} {{.Status}} [{{.JobID}}]", to_plain(record)) == "e1 blocked []"
    with pytest.raises(
        CliError, match=r"invalid template: line 1, column 3: there is no field \.JobId: did you mean \.JobID\?"
    ):
        render_template("{{.JobId}}", to_plain(record))
    assert '"JobID": ""' in render_json(to_plain(record))


def test_a_template_can_index_a_list() -> None:
    assert render_template("{{(index . 1).ID}} of {{len .}}", to_plain([{"ID": "web"}, {"ID": "sums"}])) == "sums of 2"


def test_a_template_function_for_tasks_is_an_error_in_output() -> None:
    with pytest.raises(
        CliError, match="the template uses a function that only works in task templates: the variable db"
    ):
        render_template('{{with variable "db"}}{{.password}}{{end}}', [])
