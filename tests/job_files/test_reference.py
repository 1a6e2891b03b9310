"""The reference of job files: it describes every field, agrees with the code, and its examples are valid."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.job_files.sample_jobs import (
    SCHEMA,
    build_job_with_example,
    canonicalize,
    find_problems,
    iterate_block_places,
    to_api_json,
)
from wharf.contract.model.drivers import DRIVER_CONFIGS
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.volumes import NO_PLUGINS_TEXT
from wharf.job_files.hcl.block_types import ArgumentKind
from wharf.job_files.hcl.parsing import parse_hcl_job
from wharf.job_files.reference import spellings
from wharf.job_files.reference.__main__ import render_files
from wharf.job_files.reference.defaults import find_defaults, iterate_record_types, list_field_types
from wharf.job_files.reference.docstrings import (
    DocstringError,
    parse_field_docstring,
    read_field_texts,
)
from wharf.job_files.reference.document import MissingDescription, build_definition
from wharf.job_files.reference.examples import EXAMPLES
from wharf.job_files.reference.pages import FOLDER, build_example_lines, build_pages, get_prose
from wharf.job_files.reference.rendering import render_hcl
from wharf.languages.hcl.bodies import SyntaxBody
from wharf.languages.hcl.calls import FunctionPorts
from wharf.languages.hcl.documents import parse_document
from wharf.languages.hcl.variables import VariableInputs
from wharf.node.drivers.mock import DURATION_KEYS
from wharf.node.drivers.raw_exec import MAX_OOM_SCORE, parse_oom_score
from wharf.node.fake_node import DEFAULT_SILENT_AFTER_S
from wharf.node.tasks.templates.rendering import MAX_OWNER_ID

ROOT = Path(__file__).parents[2]
DEFINITIONS: dict[str, Any] = SCHEMA["$defs"]
FIELDS = [(block, name) for block, definition in DEFINITIONS.items() for name in definition["properties"]]
FILE_ONLY = {"variables", "locals"}


def collect_record_types() -> dict[str, type[msgspec.Struct]]:
    """Return all record classes of a job and of the options of drivers, by name."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[type[msgspec.Struct]] = [Job, *DRIVER_CONFIGS.values()]
    for record_type in waiting:
        if record_type.__name__ not in found:
            found[record_type.__name__] = record_type
            for field_type in list_field_types(record_type).values():
                waiting.extend(iterate_record_types(field_type))
    return found


RECORDS = collect_record_types()
JOB_RECORDS = [name for name, each in RECORDS.items() if "model.drivers" not in each.__module__]


class NoRandomness:
    """The random port for files without functions that need one."""

    def draw_bytes(self, count: int) -> bytes:
        raise AssertionError(f"{count} random bytes requested")


def get_entry(block: str, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = DEFINITIONS[block]["properties"][name]
    return entry


def test_the_generated_schema_and_pages_are_up_to_date() -> None:
    outdated = [
        name
        for name, text in render_files().items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text("utf-8") != text
    ]
    surplus = {str(path.relative_to(ROOT)) for path in (ROOT / FOLDER).glob("*.md")} - set(render_files())

    assert (outdated, surplus) == ([], set()), "run `python -m wharf.job_files.reference`"


@pytest.mark.parametrize("block", DEFINITIONS)
def test_every_field_has_a_description_of_one_sentence_or_more(block: str) -> None:
    short = [
        name
        for name, entry in DEFINITIONS[block]["properties"].items()
        if len(get_prose(entry)) < 15 or not get_prose(entry).split("\n\n")[0].endswith(".")
    ]

    assert short == []
    assert DEFINITIONS[block]["description"].endswith(".")


def test_the_schema_describes_every_field_of_every_record() -> None:
    described = {(block, name) for block, name in FIELDS if name not in FILE_ONLY}

    assert described == {(name, field) for name, each in RECORDS.items() for field in list_field_types(each)}


@pytest.mark.parametrize("block", DEFINITIONS)
def test_every_field_that_users_write_has_an_example(block: str) -> None:
    without = [
        name
        for name, entry in DEFINITIONS[block]["properties"].items()
        if "x-block" not in entry
        and "x-set-by" not in entry
        and name not in FILE_ONLY
        and entry["x-type"] != "true or false"
        and "examples" not in entry
    ]

    assert without in ([], ["Payload"], ["VersionTag"])


class Undescribed(msgspec.Struct):
    """A record for a test."""

    first: int = 0
    """The first field."""
    second: int = 0


def test_a_field_without_a_docstring_is_an_error_that_names_it() -> None:
    with pytest.raises(MissingDescription, match=r"Undescribed\.second has no description: write a docstring"):
        build_definition(Undescribed)


def test_a_docstring_with_an_unknown_fact_is_an_error_that_names_it() -> None:
    with pytest.raises(DocstringError, match="unknown fact 'Hint: x'"):
        parse_field_docstring("A field.\n\nUnit: s\nHint: x", is_duration=False)


# -- HCL


def test_every_argument_of_the_table_of_hcl_leads_to_a_described_field() -> None:
    missing = []
    for place in spellings.iterate_block_places():
        described = {name.lower() for name in DEFINITIONS[place.record_type.__name__]["properties"]}
        missing += [
            f"{'.'.join(place.path)}.{argument.name}"
            for argument in place.block.arguments
            if argument.field.lower() not in described
        ]
        missing += [
            f"{'.'.join(place.path)}.{inner.name}"
            for inner in place.block.blocks
            if inner.field and inner.field.lower() not in described
        ]

    # Vault's policies are accepted and dropped.
    assert {path.rpartition(".")[2] for path in missing} == {"policies"}


def test_fields_are_durations_where_the_table_of_hcl_has_durations() -> None:
    different = []
    for place in spellings.iterate_block_places():
        by_name = {name.lower(): entry for name, entry in DEFINITIONS[place.record_type.__name__]["properties"].items()}
        for argument in place.block.arguments:
            entry = by_name.get(argument.field.lower())
            is_duration = argument.kind is ArgumentKind.DURATION
            if entry is not None and (entry["x-type"] == "duration") != is_duration:
                different.append(f"{'.'.join(place.path)}.{argument.name}")

    assert different == []


def test_fields_that_hcl_cannot_write_are_known() -> None:
    without = {
        f"{block}.{name}"
        for block, name in FIELDS
        if "x-hcl" not in get_entry(block, name) and "x-set-by" not in get_entry(block, name)
    }

    assert without == {
        "Job.ConsulNamespace", "Job.Payload", "Job.Stop", "Job.VaultNamespace", "Job.Version", "Job.VersionTag",
        "Periodic.SpecType", "Service.Namespace",
        "VersionTag.Description", "VersionTag.Name", "VersionTag.TaggedTime",
    }  # fmt: skip


@pytest.mark.parametrize("block", [name for name in EXAMPLES if name not in ("VersionTag", "Multiregion")])
def test_the_example_of_a_block_is_the_same_job_in_yaml_and_in_hcl(block: str) -> None:
    job = build_job_with_example(block)
    hcl = "\n".join(render_hcl(SCHEMA, "Job", job))

    parsed = parse_hcl_job(hcl, "example.hcl", VariableInputs(), FunctionPorts(NoRandomness()))

    assert canonicalize(parsed.document) == canonicalize(to_api_json(job))


EXPECTED_PROBLEMS = {
    "Multiregion": ["Multiregion jobs are not supported"],
    "Vault": ["Vault is not supported"],
    "CSIPluginConfig": [NO_PLUGINS_TEXT],
}
"""Blocks that exist only for jobs of Nomad."""


@pytest.mark.parametrize("block", EXAMPLES)
def test_the_example_of_a_block_is_valid(block: str) -> None:
    findings = find_problems(to_api_json(build_job_with_example(block)))

    assert [problem.message for problem in findings.problems] == EXPECTED_PROBLEMS.get(block, [])


@pytest.mark.parametrize("block", DEFINITIONS)
def test_the_examples_of_fields_are_single_lines(block: str) -> None:
    for name, entry in DEFINITIONS[block]["properties"].items():
        lines = build_example_lines(name, entry)

        assert lines is None or not any("\n" in line or "`" in line for line in lines), name


@pytest.mark.parametrize("block", DEFINITIONS)
def test_the_examples_of_fields_in_hcl_have_the_right_syntax(block: str) -> None:
    for name, entry in DEFINITIONS[block]["properties"].items():
        _, hcl_line = build_example_lines(name, entry) or ("", "")

        assert isinstance(parse_document(f"{hcl_line}\n").tree, SyntaxBody), (
            name
        )  # Another syntax raises `DocumentErrors`.


# -- defaults

CANONICAL_DEFAULTS = {
    "Artifact.RelativeDest": "local/", "DNS.Searches": None, "DNS.Options": None, "Job.ID": "job-id", "Job.Name": "job-id",
    "Job.NodePool": "pool-of-namespace", "Job.Priority": 50, "Job.Region": "here", "Resources.CPU": 100,
    "ScalingPolicy.Min": 1, "ScalingPolicy.Type": "horizontal", "Service.Name": "job-id--",
    "Service.Namespace": "default", "Service.Provider": "nomad",
    "Lock.Policy": "queue", "Need.When": "succeeded",
    "ServiceCheck.Name": 'service: "job-id--" check', "ServiceCheck.OnUpdate": "require_healthy", "TaskGroup.Count": 1,
    "VolumeRequest.Name": "name",
}  # fmt: skip
"""What canonicalization fills in for fields whose default depends on other values. Their descriptions say how."""
SET_BY_THE_SAMPLE = {"CNI.Args", "DNS.Servers", "MountOptions.FSType", "VolumeRequest.Type", "Job.Type"}


@pytest.mark.parametrize("block", [name for name in JOB_RECORDS if not name.startswith(("Multiregion", "VersionTag"))])
def test_a_default_in_the_text_is_what_canonicalization_fills_in(block: str) -> None:
    texts = read_field_texts(RECORDS[block])
    for field in msgspec.structs.fields(RECORDS[block]):
        name, text = f"{block}.{field.encode_name}", texts[field.name]
        values = list(find_defaults(RECORDS[block])[field.encode_name].values())
        if "Default" not in text.facts or name in SET_BY_THE_SAMPLE or "x-block" in get_entry(block, field.encode_name):
            continue
        # Nothing is filled in, so the server or the node decides what the empty value means, as the text says.
        expected = CANONICAL_DEFAULTS.get(name)

        assert all(value == expected if expected is not None else not value or value == -1 for value in values), name


def test_defaults_that_differ_between_job_types_name_the_types() -> None:
    assert get_entry("RestartPolicy", "Attempts")["x-default"] == (
        "2 for `service` and `system` jobs, 3 for `batch` and `sysbatch` jobs"
    )
    assert get_entry("ReschedulePolicy", "Delay")["x-default"] == "30s for `service` jobs, 5s for `batch` jobs"
    assert get_entry("Resources", "MemoryMB")["x-default"] == "300"
    assert get_entry("Task", "KillTimeout")["default"] == "5s"


def test_the_options_of_drivers_have_the_defaults_of_their_classes() -> None:
    assert get_entry("DockerConfig", "image_pull_timeout")["x-default"] == "5m"
    assert get_entry("DockerConfig", "cpu_cfs_period")["default"] == 100_000
    assert get_entry("DeviceConfig", "cgroup_permissions")["default"] == "rwm"
    assert get_entry("MockConfig", "go_silent_after")["x-default"] == f"{DEFAULT_SILENT_AFTER_S:g}s"
    durations = {
        name for name, entry in DEFINITIONS["MockConfig"]["properties"].items() if entry["x-type"] == "duration"
    }
    assert durations == {*DURATION_KEYS, "go_silent", "go_silent_after"}


# -- limits

_RANGE = re.compile(r"(-?[\d,]+) to ([\d,]+)\b(?! \w)")
_MINIMUM = re.compile(r"(at least|more than) (-?\d+)(s?)(?=$|[;,])")
CHECKED_BY_NODES = {"Template.Uid", "Template.Gid"}


def list_numeric_limits() -> list[tuple[str, str, int | None, int | None]]:
    """Return the smallest and the largest value of each field whose limits begin with numbers."""
    found: list[tuple[str, str, int | None, int | None]] = []
    for block, name in FIELDS:
        if block not in JOB_RECORDS or f"{block}.{name}" in CHECKED_BY_NODES:
            continue
        limits = get_entry(block, name).get("x-limits", "")
        if get_entry(block, name)["x-type"] not in ("whole number", "duration"):
            continue
        if match := _RANGE.match(limits):
            found.append((block, name, *(int(number.replace(",", "")) for number in match.groups())))
        elif match := _MINIMUM.match(limits):
            unit = 1_000_000_000 if match[3] else 1
            found.append((block, name, int(match[2]) * unit + (match[1] == "more than"), None))
    return found


WITH_OTHER_FIELDS: dict[str, dict[str, object]] = {
    "ReschedulePolicy.Interval": {"Attempts": 1, "Delay": 5_000_000_000},
    "DisconnectPolicy.StopOnClientAfter": {"LostAfter": 0},
}
"""Values of other fields with which the limits of a field hold alone."""
OF_BATCH_JOBS = {"TaskGroup.MaxRunDuration"}


def list_outcomes(block: str, name: str, value: object) -> set[bool]:
    """Return whether the server accepts a value of a field, for each place of the block."""
    outcomes = set()
    for place in iterate_block_places(block):
        place.block.update({**WITH_OTHER_FIELDS.get(f"{block}.{name}", {}), name: value})
        if f"{block}.{name}" in OF_BATCH_JOBS:
            place.job["Type"] = "batch"
        paths = {problem.path for problem in find_problems(place.job).problems}
        outcomes.add(f"{place.path}.{name}".lstrip(".") not in paths)
    return outcomes


@pytest.mark.parametrize(("block", "name", "low", "high"), list_numeric_limits())
def test_the_server_accepts_values_at_the_limits_of_a_field_and_refuses_others(
    block: str, name: str, low: int | None, high: int | None
) -> None:
    for limit, beyond in ((low, -1), (high, 1)):
        if limit is not None:
            assert True in list_outcomes(block, name, limit), f"{limit} is refused"
            # Deprecated networks of tasks, and identities of services, are not checked.
            assert False in list_outcomes(block, name, limit + beyond), f"{limit + beyond} is accepted"


def test_limits_that_nodes_check_are_those_of_the_node() -> None:
    assert get_entry("Template", "Uid")["x-limits"] == f"0 to {MAX_OWNER_ID:,}"
    assert get_entry("RawExecConfig", "oom_score_adj")["x-limits"] == f"0 to {MAX_OOM_SCORE:,}"
    assert parse_oom_score({"oom_score_adj": MAX_OOM_SCORE}) == MAX_OOM_SCORE


# -- values

UNCHECKED_VALUES = {
    "VolumeRequest.Type",  # A request of another type is dropped.
    "Job.Status",
    "Vault.ChangeMode", "CSIPluginConfig.Type",  # The block is refused, whatever it contains.
    "VolumeRequest.AttachmentMode", "MountConfig.type", "ExecConfig.pid_mode", "ExecConfig.ipc_mode",
}  # fmt: skip
VALUE_FIELDS = [
    (block, name)
    for block, name in FIELDS
    if "x-values" in get_entry(block, name)
    and "anyOf" in get_entry(block, name)
    and f"{block}.{name}" not in UNCHECKED_VALUES
]
UNSUPPORTED_VALUES = {
    "ServiceCheck.AddressMode": {"driver"},
    "VolumeRequest.AccessMode": {"multi-node-reader-only", "multi-node-single-writer", "multi-node-multi-writer"},
}
"""Values that only services in Consul or CSI volumes may have."""


@pytest.mark.parametrize(("block", "name"), VALUE_FIELDS)
def test_the_server_knows_exactly_the_listed_values_of_a_field(block: str, name: str) -> None:
    suggested: set[str] = set()
    outcomes = set()
    for place in iterate_block_places(block):
        place.block[name] = "nonsense"
        fixes = [
            problem.fix
            for problem in find_problems(place.job).problems
            if problem.path == f"{place.path}.{name}".lstrip(".")
        ]
        outcomes.add(bool(fixes))
        suggested |= {word for fix in fixes for word in re.findall(r'"([^"]*)"', fix)}

    listed = set(get_entry(block, name)["x-values"]) - UNSUPPORTED_VALUES.get(f"{block}.{name}", set())
    # The suggestion for HTTP methods names none.
    assert True in outcomes, "unknown values are accepted"
    assert suggested == listed or (name == "Method" and not suggested)


# -- pages


def test_every_link_of_the_pages_leads_to_a_page() -> None:
    broken = []
    for page, text in build_pages(SCHEMA).items():
        targets = filter(None, re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", text))
        broken += [f"{page}: {target}" for target in targets if not (ROOT / FOLDER / target).resolve().is_file()]

    assert broken == []


def test_every_link_inside_a_page_leads_to_a_heading() -> None:
    broken = []
    for page, text in build_pages(SCHEMA).items():
        headings = {
            re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        broken += [f"{page}: {anchor}" for anchor in re.findall(r"\]\(#([^)]+)\)", text) if anchor not in headings]

    assert broken == []


def test_every_block_and_every_driver_has_a_place_in_the_index() -> None:
    pages = build_pages(SCHEMA)

    assert [name for name in pages if name != "README.md" and f"]({name})" not in pages["README.md"]] == []


def test_a_field_of_an_unknown_record_has_no_type() -> None:
    assert spellings.find_record_type(Job, "TaskGroups") is RECORDS["TaskGroup"]
    assert spellings.find_record_type(Job, "Nothing") is None
