"""What programs get of records: JSON, and templates of `--format`. Their language has tests of its own."""

import pytest

from wharf.cli.failing import Failed
from wharf.cli.records_shown import in_json, in_template, plain
from wharf.model.evaluation import Evaluation, EvaluationStatus, EvaluationTrigger, SchedulerType


def test_a_record_has_all_of_its_fields_also_the_empty_ones() -> None:
    record = Evaluation(
        id="e1", type=SchedulerType.BATCH, triggered_by=EvaluationTrigger.SCHEDULED, status=EvaluationStatus.BLOCKED
    )

    assert in_template("{{.ID}} {{.Status}} [{{.JobID}}]", plain(record)) == "e1 blocked []"
    with pytest.raises(
        Failed, match=r"the template, line 1, column 3: there is no field \.JobId: did you mean \.JobID\?"
    ):
        in_template("{{.JobId}}", plain(record))
    assert '"JobID": ""' in in_json(plain(record))


def test_a_template_of_a_list_takes_one_of_it() -> None:
    assert in_template("{{(index . 1).ID}} of {{len .}}", plain([{"ID": "web"}, {"ID": "sums"}])) == "sums of 2"


def test_what_only_tasks_have_is_not_shown_as_if_it_were_empty() -> None:
    with pytest.raises(Failed, match="the template asks for what only tasks have: the variable db"):
        in_template('{{with variable "db"}}{{.password}}{{end}}', [])
