"""The eligible node classes that a blocked evaluation lists."""

from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import a_node
from wharf.cluster.scheduling.fleet.node_class import compute_node_class
from wharf.cluster.state.tables import NODES
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus


def make_blocked_evaluation(job: Job) -> tuple[SimulatedCluster, Evaluation]:
    cluster = SimulatedCluster()
    for name, rack, zone in (("a", "r1", "dc1"), ("b", "r2", "dc1"), ("c", "r2", "dc2")):
        node = a_node(name, cpu=10, meta={"rack": rack, "unique.key": name}, datacenter=zone, status=NodeStatus.READY)
        cluster.put(NODES.build_put(replace(node, computed_class=compute_node_class(node), create_index=WRITE_INDEX)))
    cluster.register(job)
    cluster.process_pending()
    (evaluation,) = cluster.open_evaluations()
    return cluster, evaluation


def get_eligibility(cluster: SimulatedCluster, evaluation: Evaluation) -> dict[str, bool | None]:
    eligible = evaluation.class_eligibility or {}
    return {name: eligible.get(cluster.node(name).computed_class) for name in ("a", "b", "c")}


def make_job(constraint: Constraint) -> Job:
    return a_job("shop", a_group("web", a_task(constraints=(constraint,))), datacenters=("dc1",))


def test_a_blocked_evaluation_lists_the_eligible_node_classes() -> None:
    cluster, evaluation = make_blocked_evaluation(make_job(a_constraint("${meta.rack}", "r2")))

    assert get_eligibility(cluster, evaluation) == {"a": False, "b": True, "c": False}
    assert not evaluation.escaped_computed_class


def test_a_job_with_unique_constraints_lists_no_node_classes() -> None:
    _, evaluation = make_blocked_evaluation(make_job(a_constraint("${node.unique.name}", "b")))

    assert (evaluation.class_eligibility, evaluation.escaped_computed_class) == (None, True)


def test_nodes_that_differ_only_in_unique_attributes_have_one_class() -> None:
    first = a_node("a", meta={"rack": "r", "unique.key": "1"}, attributes={"unique.hostname": "a"})
    second = a_node("b", meta={"rack": "r", "unique.key": "2"}, attributes={"unique.hostname": "b"})

    assert compute_node_class(first) == compute_node_class(second)
    assert compute_node_class(first) != compute_node_class(replace(first, node_class="large"))
    assert compute_node_class(first).startswith("v1:")
