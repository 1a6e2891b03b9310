"""The passes of garbage collection: their order and how long records are retained."""

from wharf.cluster.controllers.collection import CollectionSettings, list_collection_passes
from wharf.cluster.operations.operator.collection import NO_RESULTS, CollectionKind, ResultRetention
from wharf.contract.model.times import HOUR


def test_each_kind_of_record_has_its_own_retention_and_nodes_are_collected_last() -> None:
    settings = CollectionSettings(
        interval_s=300.0,
        evaluation_retention_ns=1,
        batch_evaluation_retention_ns=170 * HOUR,
        job_retention_ns=3,
        batch_job_retention_ns=160 * HOUR,
        max_batch_results=900,
        deployment_retention_ns=4,
        node_retention_ns=5,
    )

    assert [(each.kind, each.retention_ns, each.results) for each in list_collection_passes(settings)] == [
        (CollectionKind.EVALUATIONS, 1, NO_RESULTS),
        (CollectionKind.BATCH_EVALUATIONS, 24 * HOUR, ResultRetention(170 * HOUR, 900)),
        (CollectionKind.JOBS, 3, ResultRetention(160 * HOUR, 900)),
        (CollectionKind.JOB_RESULTS, 720 * HOUR, NO_RESULTS),
        (CollectionKind.DEPLOYMENTS, 4, NO_RESULTS),
        (CollectionKind.ONE_TIME_TOKENS, 0, NO_RESULTS),
        (CollectionKind.PAGE_SESSIONS, 0, NO_RESULTS),
        (CollectionKind.NODES, 5, NO_RESULTS),
    ]
