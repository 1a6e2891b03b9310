"""A node that remembers 120,000 ended allocations is back in work soon after a kill of its agent, and after a freeze.

`RETURNING_ALLOCATIONS=5000` reduces the number of allocations. The results are in docs/faults.md.
"""

import os
from typing import Final

import pytest

from benchmarks import returning_node

pytestmark = pytest.mark.faults

ALLOCATIONS: Final = int(os.environ.get("RETURNING_ALLOCATIONS", "120000"))
MAX_RETURN_S: Final = 10.0
"""The requirement: a new task runs within this time on a machine whose cores do nothing else."""
MARGIN_FACTOR: Final = 1.5
"""How much longer it may take here. Server and node share the cores with other programs; the node took 4.6 to 5.4 s on two cores
that were busy. Without the list of unknown ends, the reports alone took two minutes, so the margin hides no such loss."""


def test_a_node_that_remembers_many_allocations_is_back_in_work_within_ten_seconds() -> None:
    """Measured is the time from the kill of the agent, or from the end of the freeze in which servers declared the node down,
    until a task of a job that is registered at this moment runs.
    """
    took_s = {name: figure.value for name, figure in returning_node.measure(ALLOCATIONS).items()}

    print(took_s)
    assert len(took_s) == 2
    assert max(took_s.values()) < MAX_RETURN_S * MARGIN_FACTOR, took_s
