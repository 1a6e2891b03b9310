"""Where the texts of gates are stored: the question with the versions of the job, an answer with the state of its step (0329)."""

from tests.cluster.scheduling.test_runs import Run, a_step
from wharf.cluster.state import tables
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.table import Table
from wharf.contract.model.jobs.steps import Gate

QUESTION = "Release to production?"
ANSWER = "checked with QA"
TABLES = {name: value for name, value in vars(tables).items() if isinstance(value, Table)}


def a_finished_run(question: str) -> Run:
    run = Run(
        a_step("build"),
        a_step("lint", "build"),
        a_step("test", "build"),
        a_step("ship", "test", gate=Gate(ask=question)),
    )
    for name in ("build", "lint", "test"):
        run.end(name)
    run.answer("ship", approve=True, text=ANSWER)
    run.end("ship")
    return run


def encode_tables(run: Run) -> dict[str, bytes]:
    """Return the stored bytes of all records, by the name of their table."""
    return {
        name: b"".join(encode_record(table, each) for each in run.replica.iter_all(table))
        for name, table in TABLES.items()
    }


def test_the_question_of_a_gate_is_stored_only_with_the_job_and_its_version() -> None:
    stored = encode_tables(a_finished_run(QUESTION))

    assert {name: data.count(QUESTION.encode()) for name, data in stored.items() if QUESTION.encode() in data} == {
        "JOBS": 1,
        "JOB_VERSIONS": 1,
    }


def test_an_answer_is_stored_once() -> None:
    stored = encode_tables(a_finished_run(QUESTION))

    assert {name: data.count(ANSWER.encode()) for name, data in stored.items() if ANSWER.encode() in data} == {
        "ARRAY_ATTEMPTS": 1
    }


def test_a_usual_question_is_less_than_a_hundredth_of_what_a_run_stores() -> None:
    with_question, without = (
        sum(map(len, encode_tables(a_finished_run(question)).values())) for question in (QUESTION, "")
    )

    assert with_question - without == 2 * len(QUESTION)
    assert with_question - without < with_question / 100
