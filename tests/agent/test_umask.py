"""An agent with a umask that keeps others out, as under systemd, still runs tasks as other users."""

import os
from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.forked_command import run_wharf
from tests.waiting import wait_until

JOB = """
ID: id
Type: batch
TaskGroups:
  - Name: g
    Tasks:
      - Name: t
        Driver: exec
        Config: {command: /bin/sh, args: ["-c", "id -u; touch $NOMAD_TASK_DIR/a $NOMAD_ALLOC_DIR/data/b"]}
        Resources: {CPU: 20, MemoryMB: 20}
"""


@pytest.mark.needs("namespaces")
def test_a_sandboxed_task_runs_under_the_umask_of_the_service(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with running(tmp_path / "agent", "dev", "--port", "0") as agent:
            agent.wait_ready()
            (tmp_path / "id.yaml").write_text(JOB)
            environment = {"WHARF_ADDR": agent.address}
            submitted = run_wharf(tmp_path, "job", "run", "id.yaml", environment=environment)

            def read_states() -> list[str]:
                return [each["ClientStatus"] for each in agent.get("/v1/job/id/allocations")]  # type: ignore[attr-defined]

            wait_until(lambda: set(read_states()) & {"complete", "failed"}, what="the task has ended")
            logs = run_wharf(tmp_path, "job", "logs", "id", environment=environment)
            assert (submitted.returncode, read_states()) == (0, ["complete"]), submitted.stdout + submitted.stderr
    finally:
        os.umask(before)

    assert "65534" in logs.stdout
