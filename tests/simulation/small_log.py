"""A log of a few batches for tests of those who watch it: what is put is seen at once."""

from typing import Any

from simulation.loop import SimulatedLoop
from simulation.record_history import RecordHistory
from simulation.timeline import Timeline
from wharf.cluster.engines.port import Batch, EncodedChange
from wharf.cluster.state import Table
from wharf.cluster.state.codec import encode_record
from wharf.contract.model.log import Cause, CauseKind


class SmallLog:
    """`failures` are what the checks said."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(1)
        self.failures: list[str] = []
        self.witness = RecordHistory(Timeline(self.loop), lambda error: self.failures.append(str(error)))
        self.index = 0

    def put(self, *records: tuple[Table[Any], Any], kind: str = "test") -> int:
        """One batch; answers with its index."""
        self.index += 1
        changes = [
            EncodedChange(table.name, table.get_key(record), encode_record(table, record)) for table, record in records
        ]
        cause = Cause(CauseKind.REQUEST, "test")
        self.witness.on_batch(Batch(self.index, f"write {self.index}", kind, cause, changes), None, None)
        return self.index

    def drop(self, table: Table[Any], key: str) -> int:
        self.index += 1
        cause = Cause(CauseKind.REQUEST, "test")
        batch = Batch(self.index, f"write {self.index}", "test", cause, [EncodedChange(table.name, key, None)])
        self.witness.on_batch(batch, None, None)
        return self.index
