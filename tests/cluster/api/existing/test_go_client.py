"""A program on Nomad's Go module `api` (go_client/main.go), which `make clients` builds, against `wharf dev`."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.agent.processes import RunningAgent

PROGRAM = Path(os.environ["WHARF_CLIENTS"]).resolve() / "go_client"


def act(agent: RunningAgent, action: str) -> Any:
    """Return what the program reports of an action. It must have printed nothing else, such as complaints about replies."""
    process = subprocess.run([PROGRAM, agent.address, action], capture_output=True, text=True, timeout=120, check=False)
    assert (0, "") == (process.returncode, process.stderr)
    return json.loads(process.stdout)


def test_a_job_is_validated_planned_registered_changed_scaled_stopped_and_purged(
    compatible_agent: RunningAgent,
) -> None:
    assert {
        "errors of validation": None,
        "diff": "Added",
        "planned": 2,
        "indexes rise": True,
        "allocations": 3,
        "running": 2,
        "versions": 3,
        "stopped": True,
        "purged": [404, "job not found"],
    } == act(compatible_agent, "jobs")


def test_evaluations_deployments_and_allocations_refer_to_each_other(compatible_agent: RunningAgent) -> None:
    assert {
        "evaluation": "rollout job-register",
        "allocations of evaluation": True,
        "deployment": "successful",
        "deployments": 1,
        "allocations of deployment": True,
        "allocation": "rollout running",
        "forced evaluation": "rollout job-register",
    } == act(compatible_agent, "evaluations")


def test_a_blocking_query_keeps_its_index_without_a_change_and_returns_after_one(
    compatible_agent: RunningAgent,
) -> None:
    assert {
        "index": True,
        "known leader": True,
        "waited": True,
        "after change": 2,
    } == act(compatible_agent, "blocking")


def test_a_node_is_drained_under_observation_and_made_eligible_again(compatible_agent: RunningAgent) -> None:
    assert {
        "status": "ready",
        "drain": "complete",
        "drain reported": True,
        "after drain": "ineligible",
        "eligible": "eligible",
        "ineligible": "ineligible",
        "leader": True,
        "memory": True,
    } == act(compatible_agent, "nodes")


def test_variables_are_written_only_at_their_index_and_deleted(compatible_agent: RunningAgent) -> None:
    assert {
        "items": {"colour": "green"},
        "listed": "app/settings",
        "index rises": True,
        "conflict": True,
        "outdated": True,
        "gone": True,
        "peek": None,
    } == act(compatible_agent, "variables")


def test_a_job_is_found_by_the_begin_and_by_a_part_of_its_name(compatible_agent: RunningAgent) -> None:
    assert {
        "prefix": ["sought"],
        "fuzzy": {"ID": "sought", "Scope": ["default", "sought"]},
    } == act(compatible_agent, "search")


def test_events_of_chosen_topics_arrive_with_their_objects(compatible_agent: RunningAgent) -> None:
    assert {"registered": "announced", "started": True} == act(compatible_agent, "events")


def test_files_and_logs_are_read_and_commands_run_in_a_task(compatible_agent: RunningAgent) -> None:
    assert {
        "cat": "hello\n",
        "part": "ell",
        "logs": "hello\n",
        "is folder": True,
        "output": "inside\n",
        "exit code": 3,
    } == act(compatible_agent, "files")


def test_refusals_have_the_statuses_and_texts_that_programs_look_for(compatible_agent: RunningAgent) -> None:
    assert {
        "missing": [404, "job not found"],
        "invalid": True,
        "disabled": [400, "ACL support disabled"],
        "outdated": True,
    } == act(compatible_agent, "errors")


def test_services_of_a_job_are_listed_with_their_tags_and_ports(compatible_agent: RunningAgent) -> None:
    assert {"job": "shop", "tags": ["blue"], "port": True, "listed": True} == act(compatible_agent, "services")


def test_lists_are_read_in_pages_and_filtered(compatible_agent: RunningAgent) -> None:
    assert {"sizes": [2, 1], "filtered": ["page-b"]} == act(compatible_agent, "pages")
