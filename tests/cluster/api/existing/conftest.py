"""These tests need a client that `make clients` installs in a separate folder. Without it they are not collected."""

import os
from collections.abc import Iterator

import pytest

from tests.agent.processes import RunningAgent, running

collect_ignore_glob = [] if os.environ.get("WHARF_CLIENTS") else ["test_*.py"]


@pytest.fixture(scope="module")
def compatible_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """Run `wharf dev` with Nomad's names of headers."""
    folder = tmp_path_factory.mktemp("dev")
    (folder / "compat.toml").write_text("[compat]\nnomad = true\n")
    with running(folder, "dev", "--port", "0", "--config", "compat.toml") as agent:
        agent.wait_ready()
        yield agent
