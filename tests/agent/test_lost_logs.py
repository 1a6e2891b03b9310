"""A log that is lost while its server runs: the engine `memory` loses everything when its store is killed."""

import os
import signal
import urllib.error
from pathlib import Path

from tests.agent.processes import RunningAgent, role_of, running
from tests.agent.test_processes import A_JOB
from tests.waiting import wait_until


def submits_job(agent: RunningAgent) -> bool:
    """Submit a job. Return whether the server accepted it."""
    try:
        agent.put("/v1/jobs", A_JOB)
    except urllib.error.HTTPError as error:
        with error:
            return False
    return True


def test_a_server_accepts_jobs_again_after_its_log_was_emptied(tmp_path: Path) -> None:
    file = tmp_path / "wharf.toml"
    file.write_text(
        f'name = "one"\ndata_dir = "{tmp_path}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n'
        '[client]\nenabled = true\n[state]\nengine = "memory"\n'
    )
    with running(tmp_path, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(lambda: "elected leader" in agent.err, what="the server leads")
        (store,) = [pid for pid in agent.children() if role_of(pid) == "store"]

        os.kill(store, signal.SIGKILL)

        founded = "bootstrapped cluster"
        wait_until(lambda: agent.err.count(founded) == 2, what="the cluster is bootstrapped again")
        wait_until(lambda: submits_job(agent), what="the server accepts jobs again")
        wait_until(lambda: agent.get("/v1/job/hello/allocations"), what="the job is placed")
