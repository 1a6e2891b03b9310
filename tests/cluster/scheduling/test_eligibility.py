"""The eligible node classes that a blocked evaluation lists."""

from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import a_node
from wharf.cluster.scheduling.fleet.node_class import compute_node_class
from wharf.cluster.state.tables import NODES
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus


def blocked(job: Job) -> tuple[Loop, Evaluation]:
    loop = Loop()
    for name, rack, zone in (("a", "r1", "dc1"), ("b", "r2", "dc1"), ("c", "r2", "dc2")):
        node = a_node(name, cpu=10, meta={"rack": rack, "unique.key": name}, datacenter=zone, status=NodeStatus.READY)
        loop.put(NODES.build_put(replace(node, computed_class=compute_node_class(node), create_index=WRITE_INDEX)))
    loop.register(job)
    loop.process_pending()
    (evaluation,) = loop.open_evaluations()
    return loop, evaluation


def get_eligibility(loop: Loop, evaluation: Evaluation) -> dict[str, bool | None]:
    eligible = evaluation.class_eligibility or {}
    return {name: eligible.get(loop.node(name).computed_class) for name in ("a", "b", "c")}


def of(constraint: Constraint) -> Job:
    return a_job("shop", a_group("web", a_task(constraints=(constraint,))), datacenters=("dc1",))


def test_a_blocked_evaluation_lists_the_eligible_node_classes() -> None:
    loop, evaluation = blocked(of(a_constraint("${meta.rack}", "r2")))

    assert get_eligibility(loop, evaluation) == {"a": False, "b": True, "c": False}
    assert not evaluation.escaped_computed_class


def test_a_job_with_unique_constraints_lists_no_node_classes() -> None:
    _, evaluation = blocked(of(a_constraint("${node.unique.name}", "b")))

    assert (evaluation.class_eligibility, evaluation.escaped_computed_class) == (None, True)


def test_nodes_that_differ_only_in_unique_attributes_have_one_class() -> None:
    ours = a_node("a", meta={"rack": "r", "unique.key": "1"}, attributes={"unique.hostname": "a"})
    theirs = a_node("b", meta={"rack": "r", "unique.key": "2"}, attributes={"unique.hostname": "b"})

    assert compute_node_class(ours) == compute_node_class(theirs)
    assert compute_node_class(ours) != compute_node_class(replace(ours, node_class="large"))
    assert compute_node_class(ours).startswith("v1:")
