"""Chains of replaced allocations, also such that no scheduler would write: a snapshot of another cluster may contain them."""

from tests.builders import a_job
from tests.kit.state import an_allocation
from wharf.cluster.scheduling.reconcile.replacement_chain import ReplacementChain

JOB = a_job()


def test_allocations_that_replace_each_other_are_found_once_each() -> None:
    first = an_allocation(JOB, id="a", next_allocation="b", previous_allocation="b")
    second = an_allocation(JOB, id="b", next_allocation="a", previous_allocation="a")
    itself = an_allocation(JOB, id="c", next_allocation="c", previous_allocation="c")
    chain = ReplacementChain({each.id: each for each in (first, second, itself)})

    assert [each.id for each in chain.iter_replacements(first)] == ["b"]
    assert list(chain.iter_replacements(itself)) == []
