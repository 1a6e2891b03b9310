"""A job that has fewer allocations than it requests: `job status` and `job explain` name the command that helps."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, open_terminal, write_file


@pytest.mark.parametrize("namespace", ["default", "apps"])
def test_a_job_that_a_failed_deployment_holds_short_is_shown_with_the_command_that_helps(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, namespace: str
) -> None:
    with open_terminal(capsys, nodes=1) as terminal:
        if namespace != "default":
            terminal.run_ok("namespace", "apply", namespace)
        scope = ("--namespace", namespace)
        terminal.run(
            "job", "run", *scope, write_file(tmp_path, WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 60s"))
        )
        terminal.wait(3)
        deployment_id = json.loads(terminal.run_ok("deployment", "list", *scope, "--json"))[0]["ID"]
        terminal.run("deployment", "fail", *scope, "--detach", deployment_id)
        # The only node is drained until one allocation has stopped, and the drain is canceled.
        terminal.run("node", "drain", "--enable", "--detach", "--yes", "node-1")
        terminal.wait(60)
        terminal.run("node", "drain", "--disable", "node-1")
        terminal.wait(10)

        status = terminal.run_ok("job", "status", *scope, "web")
        explanation = terminal.run_ok("job", "explain", *scope, "web")
        commands = {found[1] for text in (status, explanation) if (found := re.search(r"`wharf (.*?)`", text))}
        scaled = [terminal.run(*command.split()) for command in commands]
        terminal.wait(30)
        after = terminal.run_ok("job", "status", *scope, "web")

    assert (
        "Fewer allocations than requested\napi has 1 of 2 allocations: web does not continue: the deployment of"
        in status
    )
    assert "; 1 allocation missing: `wharf job scale" in explanation
    assert [result.code for result in scaled] == [0]
    assert "Fewer allocations than requested" not in after
