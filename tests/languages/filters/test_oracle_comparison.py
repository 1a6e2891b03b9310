"""Compiled filters agree with the slow interpreter of `oracle`, over types and records of all kinds."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.contract.model.strategies import records
from tests.languages.filters import oracle
from tests.languages.filters.datum import DATUM, Colour, Datum, Sub
from tests.languages.filters.expressions import trees_over
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.languages.filters import FilterEvaluationError, FilterTypeError, compile_filter, format_filter, parse_filter
from wharf.languages.filters.tree import Expression

subs = st.builds(
    Sub,
    name=st.sampled_from(("s0", "s1", "")),
    port=st.integers(0, 2),
    tags=st.none() | st.lists(st.sampled_from(("blue", "a"))).map(tuple),
)
data = st.just(DATUM) | st.builds(
    Datum,
    name=st.sampled_from(("web", "", "b")),
    n=st.sampled_from((0, 1, 50, -1)),
    f=st.sampled_from((1.5, 2.0)),
    b=st.booleans(),
    meta=st.dictionaries(st.sampled_from(("a", "x.y")), st.sampled_from(("b", "web"))),
    subs=st.lists(subs, max_size=2).map(tuple),
    nil_ptr=st.none() | subs,
    nil_map=st.none() | st.just({"a": "b"}),
    number=st.none() | st.integers(0, 2),
    no_text=st.none() | st.sampled_from(("web", "")),
    colour=st.sampled_from(Colour),
    data=st.none() | st.binary(max_size=2),
)


def outcome_of_oracle(tree: Expression, record: Any) -> str:
    try:
        oracle.check_types(tree, type(record), {})
    except oracle.TypeMismatch:
        return "does not fit"
    try:
        return str(oracle.evaluate(tree, record, {}))
    except oracle.MissingValue:
        return "not readable"


def outcome_of_compiled(tree: Expression, record: Any) -> str:
    try:
        return str(compile_filter(format_filter(tree), type(record)).accepts(record))
    except FilterTypeError:
        return "does not fit"
    except FilterEvaluationError:
        return "not readable"


@given(tree=trees_over(Datum), record=data)
def test_a_compiled_filter_agrees_with_the_slow_interpreter(tree: Expression, record: Datum) -> None:
    assert outcome_of_oracle(tree, record) == outcome_of_compiled(tree, record), format_filter(tree)


@given(tree=trees_over(Job), record=records(Job))
def test_compiled_filters_agree_with_the_oracle_over_jobs(tree: Expression, record: Job) -> None:
    assert outcome_of_oracle(tree, record) == outcome_of_compiled(tree, record), format_filter(tree)


@given(tree=trees_over(Node), record=records(Node))
def test_compiled_filters_agree_with_the_oracle_over_nodes(tree: Expression, record: Node) -> None:
    assert outcome_of_oracle(tree, record) == outcome_of_compiled(tree, record), format_filter(tree)


@given(tree=trees_over(Deployment), record=records(Deployment))
def test_compiled_filters_agree_with_the_oracle_over_deployments(tree: Expression, record: Deployment) -> None:
    assert outcome_of_oracle(tree, record) == outcome_of_compiled(tree, record), format_filter(tree)


@given(tree=trees_over(Datum), record=data)
def test_a_filter_that_fits_the_type_fails_only_with_evaluation_errors(tree: Expression, record: Datum) -> None:
    assert outcome_of_compiled(tree, record) in ("True", "False", "does not fit", "not readable")
    assert parse_filter(format_filter(tree)) == tree
