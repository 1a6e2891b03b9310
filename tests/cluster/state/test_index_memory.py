"""An index takes little memory for values that a single record has, which is most of them."""

import tracemalloc

from wharf.cluster.state.codec import RecordDecoder
from wharf.cluster.state.table_records import TableRecords
from wharf.cluster.state.tables import DEPLOYMENTS
from wharf.contract.model.deployments import Deployment, DeploymentStatus

RECORD_COUNT = 2_000
MAX_BYTES = 250
"""For each record: its places in the table, in the order of creation and in the index. A dict for each index value would
need 180 bytes more."""


def test_an_index_value_of_one_record_takes_no_dict() -> None:
    records = {
        f"{number:08x}": Deployment(
            id=f"{number:08x}", namespace="default", job_id=f"job-{number}", status=DeploymentStatus.RUNNING
        )
        for number in range(RECORD_COUNT)
    }
    table: TableRecords[Deployment] = TableRecords(DEPLOYMENTS, RecordDecoder(DEPLOYMENTS), last_change=0)
    tracemalloc.start()
    try:
        for key, record in records.items():
            table.put_record(key, record)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken_bytes / RECORD_COUNT < MAX_BYTES
