"""All selectors of a type are listed, and every listed one can be used."""

import pytest

from tests.languages.filters.datum import Datum
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.node_pools import NodePool
from wharf.contract.model.nodes.node import Node
from wharf.languages.filters import SelectorInfo, compile_filter, list_selectors


def test_a_selector_is_listed_with_its_kind_its_operators_and_its_values() -> None:
    listed = {info.selector: info for info in list_selectors(Datum)}

    assert listed["N"] == SelectorInfo("N", "int", ("==",))
    assert listed["Colour"].values == ("blue", "red")
    assert listed["Subs.<index>.Port"] == SelectorInfo("Subs.<index>.Port", "int", ("==",))
    assert listed["Meta.<key>"].operators == ("==", "contains", "matches", "is empty")
    assert listed["Any.<key>"].kind == "any"


@pytest.mark.parametrize("record", [Job, Node, Allocation, Evaluation, Deployment, NodePool, Token, Datum])
def test_every_listed_selector_can_be_used_with_every_listed_operator(record: type) -> None:
    literals = {"bool": "true", "int": "1", "uint": "1", "float": "1"}
    for info in list_selectors(record):
        selector = info.selector.replace("<index>", "0").replace("<key>", "k")
        for operator in info.operators:
            value = "" if operator.startswith("is ") else f' "{literals.get(info.kind, "1")}"'
            if operator == "contains" and info.kind == "list":
                continue  # The literal must fit the elements.
            compile_filter(f"{selector} {operator}{value}", record)


def test_a_recursive_type_has_a_finite_list_of_selectors() -> None:
    assert len(list_selectors(Job)) < 1_000
