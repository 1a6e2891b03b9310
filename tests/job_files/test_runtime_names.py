"""Notes about misspelled names in references that nodes replace: values of nodes, variables of tasks, ports and metadata."""

from pathlib import Path

import pytest

from tests.job_files.hcl.job_texts import PORTS
from wharf.contract.model.allocations.allocation import NetworkStatus
from wharf.contract.model.allocations.resources import (
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
)
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node
from wharf.contract.wire.nodes.messages import AssignedAllocation
from wharf.job_files.hcl.parsing import evaluate_hcl_job
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.job_files.runtime_names import TaskNames, find_mistake
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat
from wharf.languages.suggestions import NameSearch
from wharf.node.agent.fingerprint.machine import probe_machine
from wharf.node.tasks.environment import TaskHost, build_environment
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import build_reference_values

NAMES = TaskNames(frozenset({"http", "db-x"}), frozenset({"owner", "a-b"}), frozenset({"PORT"}))


def list_notes(value: str, *, group: str = "", template: str = "") -> list[str]:
    """Return the notes about an environment variable of a task in HCL."""
    text = (
        f'job "j" {{\nmeta {{\nowner = "x"\n}}\ngroup "g" {{\n{group}network {{\nport "http" {{}}\n}}\n'
        f'task "t" {{\ndriver = "mock"\n{template}env {{\nPORT = 1\nA = {value}\n}}\n}}\n}}\n}}\n'
    )
    return evaluate_hcl_job(parse_document(text, "job.hcl"), VariableInputs(), PORTS, checks_tasks=True).warnings


@pytest.mark.parametrize(
    ("reference", "problem", "fix"),
    [
        ("node.datacentr", 'a node has no value "node.datacentr"', 'did you mean "node.datacenter"?'),
        ("node.size", 'a node has no value "node.size"',
         "the names are node.class, node.datacenter, node.pool, node.region, node.unique.id, node.unique.name"),
        ("attr.kernel.nme", '"attr.kernel.nme" is not a well-known attribute of nodes', 'did you mean "attr.kernel.name"?'),
        ("NOMAD_PORT_htpp", 'the group has no port "htpp"', 'did you mean "NOMAD_PORT_http"?'),
        ("WHARF_HOST_IP_htpp", 'the group has no port "htpp"', 'did you mean "WHARF_HOST_IP_http"?'),
        ("NOMAD_ADDR_x", 'the group has no port "x"', "its ports are db-x, http"),
        ("NOMAD_META_onwer", 'the task has no meta value "onwer"', 'did you mean "NOMAD_META_owner"?'),
        ("NOMAD_META_x", 'the task has no meta value "x"', "add it to meta of the job, group or task"),
        ("NOMAD_ALOC_ID", 'a task has no variable "NOMAD_ALOC_ID"', 'did you mean "NOMAD_ALLOC_ID"?'),
        ('env["PROT"]', 'the task sets no variable "PROT"', 'did you mean "PORT"?'),
        ('env["NOMAD_PORT_htpp"]', 'the group has no port "htpp"', 'did you mean "NOMAD_PORT_http"?'),
        ("attr[-1]", 'a node knows no value "attr[-1]"', "write ${attr.NAME}"),
        ('meta["rack"]', 'a node knows no value "meta["rack"]"', "write ${meta.rack}"),
        ("env[0]", 'a node knows no value "env[0]"', 'write ${env["NAME"]}'),
    ],
)  # fmt: skip
def test_a_misspelled_name_has_a_correction(reference: str, problem: str, fix: str) -> None:
    assert (problem, fix) == find_mistake(reference, NAMES, NameSearch())


@pytest.mark.parametrize(
    "reference",
    [
        "node.unique.name", "node.region", "attr.custom.rack", "attr.driver.docker.volumes", "meta.anything", "NOMAD_ALLOC_ID",
        "NOMAD_PORT_http", "NOMAD_PORT_db_x", "NOMAD_HOST_IP_db-x", "WHARF_ALLOC_ADDR_http", "NOMAD_META_owner",
        "NOMAD_META_OWNER", "NOMAD_META_a_b", "NOMAD_META_A_B", "NOMAD_TOKEN_other", 'env["HOME"]', "HOME", "PORT",
        "NOMAD_UPSTREAM_ADDR_x", "device.model", "NOMAD_SOMETHING_ELSE",
    ],
)  # fmt: skip
def test_a_name_that_a_node_may_know_is_no_mistake(reference: str) -> None:
    assert find_mistake(reference, NAMES, NameSearch()) is None


def test_no_variable_of_a_task_and_no_attribute_of_this_machine_is_a_mistake(tmp_path: Path) -> None:
    job = Job(
        id="j",
        name="j",
        parent_id="p",
        meta={"owner": "x", "a-b": "c"},
        task_groups=(TaskGroup(name="g", array=GroupArray(size=2)),),
    )
    ports = tuple(AllocatedPort(label=label, value=80) for label in ("http", "db-x"))
    resources = AllocatedResources(shared=AllocatedSharedResources(ports=ports))
    allocation = AssignedAllocation(id="a", name="j.g[0]", task_group="g", allocated_resources=resources)
    host = TaskHost("dc1", "global", "10.0.0.1")
    node = Node(id="n", attributes=probe_machine(tmp_path).attributes)
    values = build_reference_values(node, region="global")

    variables = build_environment(
        allocation, job, Task(name="t"), TaskFolders(tmp_path, tmp_path), host, values,
        agent_environment={}, network=NetworkStatus(address="10.1.1.1"),
    )  # fmt: skip

    assert {"NOMAD_ALLOC_ADDR_http", "WHARF_META_A_B", "WHARF_ARRAY_ITEM"} <= variables.keys()
    assert [name for name in (*variables, *values.values) if find_mistake(name, NAMES, NameSearch()) is not None] == []


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ('"${node.datacentr}"', ["job.hcl:13:8"]),
        ('"a ${NOMAD_PORT_htpp} ${NOMAD_PORT_http} ${NOMAD_PORT_htpp}"', ["job.hcl:13:10", "job.hcl:13:48"]),
        ("NOMAD_PORT_htpp", ["job.hcl:13:5"]),
        ("attr[-1]", ["job.hcl:13:5"]),
        ('"${env["PROT"]} ${PROT}"', ["job.hcl:13:23", "job.hcl:13:8"]),
        ('join("-", ["${NOMAD_META_x}"])', ["job.hcl:13:19"]),
        ('"$${NOMAD_PORT_htpp}"', ["job.hcl:13:9"]),
        ('"$$${NOMAD_PORT_htpp}"', []),
        ('"${NOMAD_PORT_http}"', []),
    ],
)
def test_each_mistake_has_one_note_at_its_place(value: str, places: list[str]) -> None:
    assert places == [note.partition(": ")[0] for note in list_notes(value)]


def test_variables_of_templates_may_have_any_name() -> None:
    template = 'template {\ndata = "a"\ndestination = "secrets/a"\nenv = true\n}\n'

    assert [] == list_notes('"${env["PROT"]}"', template=template)


def test_a_template_is_not_searched() -> None:
    template = 'template {\ndata = "${NOMAD_PORT_htpp}"\ndestination = "local/${NOMAD_META_x}"\n}\n'

    (note,) = list_notes("1", template=template)
    assert note.startswith('job.hcl:13:24: the task has no meta value "x"')


def test_a_service_of_a_group_and_a_comparison_are_searched() -> None:
    group = (
        'service {\nname = "x"\nport = "http"\ntags = ["${NOMAD_ADDR_htpp}"]\n}\n'
        'constraint {\nattribute = "${attr.cpu.arhc}"\nvalue = "a"\n}\n'
    )

    assert ["job.hcl:12:16", "job.hcl:9:12"] == sorted(note.partition(": ")[0] for note in list_notes("1", group=group))


def test_files_in_yaml_without_variables_have_the_same_notes() -> None:
    text = (
        "ID: j\nType: batch\nParameterizedJob: {MetaOptional: [a]}\nTaskGroups:\n- Name: g\n  Networks: [{DynamicPorts: [{Label: http}]}]\n"
        "  Tasks:\n  - Name: t\n    Driver: mock\n    Env:\n      A: ${NOMAD_META_a} ${NOMAD_PORT_htpp} $${NOMAD_PORT_htpp}\n"
    )

    parsed = parse_markup_job(text, "job.yaml", MarkupFormat.YAML, VariableInputs(), PORTS)

    assert ['job.yaml:11:28: the group has no port "htpp"; did you mean "NOMAD_PORT_http"?'] == parsed.warnings


def test_notes_are_limited() -> None:
    assert 20 == len(list_notes('"' + " ".join(f"${{NOMAD_PORT_htpp{number}}}" for number in range(30)) + '"'))


def test_searches_for_similar_names_are_limited_for_all_references_of_a_file() -> None:
    names = TaskNames(environment=frozenset(f"VARIABLE_{number:04}" for number in range(1_000)))
    search = NameSearch()

    findings = [find_mistake(f"VARIABEL_{number:04}", names, search) for number in range(120)]

    assert [finding is not None for finding in findings] == [True] * 100 + [False] * 20
