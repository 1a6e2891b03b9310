"""What programs get of records: JSON, and templates of `--format`. Their language has tests of its own."""

import pytest

from wharf.cli.common.errors import CliError
from wharf.cli.common.output import render_json, render_template, to_plain
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType


def test_a_record_has_all_of_its_fields_also_the_empty_ones() -> None:
    record = Evaluation(
        id="e1", type=SchedulerType.BATCH, triggered_by=EvaluationTrigger.SCHEDULED, status=EvaluationStatus.BLOCKED
    )

    assert render_template("{{.ID}} {{.Status}} [{{.JobID}}]", to_plain(record)) == "e1 blocked []"
    with pytest.raises(
        CliError, match=r"the template, line 1, column 3: there is no field \.JobId: did you mean \.JobID\?"
    ):
        render_template("{{.JobId}}", to_plain(record))
    assert '"JobID": ""' in render_json(to_plain(record))


def test_a_template_of_a_list_takes_one_of_it() -> None:
    assert render_template("{{(index . 1).ID}} of {{len .}}", to_plain([{"ID": "web"}, {"ID": "sums"}])) == "sums of 2"


def test_what_only_tasks_have_is_not_shown_as_if_it_were_empty() -> None:
    with pytest.raises(CliError, match="the template asks for what only tasks have: the variable db"):
        render_template('{{with variable "db"}}{{.password}}{{end}}', [])
