"""A log of a few batches for tests of the checks. Each batch is checked at once."""

from typing import Any

from simulation.loop import SimulatedLoop
from simulation.record_history import RecordHistory
from simulation.timeline import Timeline
from wharf.cluster.engines.port import Batch, EncodedChange
from wharf.cluster.state import Table
from wharf.cluster.state.codec import encode_record
from wharf.contract.model.log import Cause, CauseKind


class SmallLog:
    """A log without a store. `failures` are the messages of the checks that failed."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)
        self.failures: list[str] = []
        self.history = RecordHistory(Timeline(self.loop), lambda error: self.failures.append(str(error)))
        self.index = 0

    def put(self, *records: tuple[Table[Any], Any], kind: str = "test") -> int:
        """Commit one batch with these records. Return its index."""
        self.index += 1
        changes = [
            EncodedChange(table.name, table.get_key(record), encode_record(table, record)) for table, record in records
        ]
        cause = Cause(CauseKind.REQUEST, "test")
        self.history.on_batch(Batch(self.index, f"write {self.index}", kind, cause, changes), None, None)
        return self.index

    def delete(self, table: Table[Any], key: str) -> int:
        """Commit a batch that deletes a record. Return its index."""
        self.index += 1
        cause = Cause(CauseKind.REQUEST, "test")
        batch = Batch(self.index, f"write {self.index}", "test", cause, [EncodedChange(table.name, key, None)])
        self.history.on_batch(batch, None, None)
        return self.index
