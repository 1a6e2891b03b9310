"""Settings for tests: the defaults of the configuration. Tests change single values with `replace`."""

from typing import Final

from wharf.cluster.controllers.collection import CollectionSettings
from wharf.cluster.controllers.heartbeats import HeartbeatSettings
from wharf.cluster.operations.search import SearchLimits
from wharf.contract.model.times import HOUR

USUAL_HEARTBEATS: Final = HeartbeatSettings(min_ttl_s=10.0, grace_s=10.0, failover_ttl_s=300.0, max_per_second=50.0)
USUAL_COLLECTION: Final = CollectionSettings(
    interval_s=300.0,
    evaluation_retention_ns=HOUR,
    batch_evaluation_retention_ns=24 * HOUR,
    job_retention_ns=4 * HOUR,
    deployment_retention_ns=HOUR,
    node_retention_ns=24 * HOUR,
)
USUAL_SEARCH_LIMITS: Final = SearchLimits(
    is_fuzzy_enabled=True, max_examined_records=100_000, max_results=100, min_query_bytes=2
)
