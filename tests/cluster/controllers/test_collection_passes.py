"""The passes of garbage collection: their order and how long records are retained."""

from wharf.cluster.controllers.collection import CollectionSettings, list_collection_passes
from wharf.cluster.operations.operator.collection import CollectionKind


def test_each_kind_of_record_has_its_own_retention_and_nodes_are_collected_last() -> None:
    settings = CollectionSettings(
        interval_s=300.0,
        evaluation_retention_ns=1,
        batch_evaluation_retention_ns=2,
        job_retention_ns=3,
        deployment_retention_ns=4,
        node_retention_ns=5,
    )

    assert [(each.kind, each.retention_ns) for each in list_collection_passes(settings)] == [
        (CollectionKind.EVALUATIONS, 1),
        (CollectionKind.BATCH_EVALUATIONS, 2),
        (CollectionKind.JOBS, 3),
        (CollectionKind.DEPLOYMENTS, 4),
        (CollectionKind.ONE_TIME_TOKENS, 0),
        (CollectionKind.NODES, 5),
    ]
