"""Each rule of the job specification (jobs.md 2), the path of its field, and the nesting of all problems."""

from typing import Any

import pytest

from tests.builders import (
    SECOND,
    a_batch_job,
    a_check,
    a_group,
    a_job,
    a_parameterized_job,
    a_periodic_job,
    a_service,
    a_system_job,
    a_task,
    admitted,
    some_job_settings,
    some_resources,
)
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Operand, Spread, SpreadTarget
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    EphemeralDisk,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import (
    CSIPluginConfig,
    DispatchPayload,
    Lifecycle,
    LogConfig,
    Task,
    TaskAction,
    TaskGroup,
)
from wharf.contract.model.jobs.identities import TaskSecret, Vault, WorkloadIdentity
from wharf.contract.model.jobs.job import UI, Job, JobType, Multiregion, Parameterized, Periodic, VersionTag
from wharf.contract.model.jobs.networks import CNI, NetworkResource, Port
from wharf.contract.model.jobs.resources import MAX_RESOURCE_AMOUNT, NUMA, RequestedDevice, Resources
from wharf.contract.model.jobs.services import CheckRestart, Service
from wharf.contract.model.jobs.steps import Need
from wharf.contract.model.jobs.templates import Artifact, ChangeScript, Template, TemplateWait
from wharf.contract.model.jobs.validation import format_warnings, list_submission_warnings, validate_job
from wharf.contract.model.jobs.validation.findings import Findings, ProblemSection, ValidationProblem
from wharf.contract.model.jobs.validation.group_policies import sum_reschedule_delays
from wharf.contract.model.jobs.volumes import MountOptions, VolumeMount, VolumeRequest
from wharf.contract.model.scaling import ScalingPolicy

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
GROUP = "TaskGroups[0]"
TASK = f"{GROUP}.Tasks[0]"
ARCH = "${attr.cpu.arch}"
TOO_LARGE = MAX_RESOURCE_AMOUNT + 1


def list_problems(job: Job, settings: JobSettings | None = None) -> list[tuple[str, str]]:
    findings = validate_job(canonicalize_job(job, some_job_settings()), settings or some_job_settings())
    return [(problem.path, problem.message) for problem in findings.problems]


def assert_only_problem(job: Job, path: str, message: str, settings: JobSettings | None = None) -> None:
    """Assert that there is exactly one problem, with this path and this text."""
    problems = list_problems(job, settings)

    assert [found for found, _ in problems] == [path]
    assert message in problems[0][1]


def with_group(job_type: str = "service", **fields: Any) -> Job:
    return a_job("shop", a_group("web", **fields), type=job_type)


def with_task(job_type: str = "service", **fields: Any) -> Job:
    return a_job("shop", a_group("web", a_task("t", **fields)), type=job_type)


@pytest.mark.parametrize("job", [a_job(), a_batch_job(), a_system_job(), a_periodic_job(), a_parameterized_job()])
def test_plain_jobs_are_valid(job: Job) -> None:
    findings = validate_job(admitted(job), some_job_settings())

    assert findings == Findings()
    assert (findings.is_valid, findings.text, findings.lines) == (True, "", ())


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"id": "", "name": "n"}, "ID", "Missing job ID"),
        ({"id": "a b"}, "ID", "Job ID contains a space"),
        ({"id": "a\0b", "name": "n"}, "ID", "null character"),
        ({"name": "a\0b"}, "Name", "null character"),
        ({"type": "x"}, "Type", 'Invalid job type: "x"'),
        ({"type": "_core"}, "Type", "job type cannot be core"),
        ({"priority": 101}, "Priority", "job priority must be between [1, 100]"),
        ({"priority": -1}, "Priority", "job priority must be between [1, 100]"),
        ({"datacenters": ("a", "")}, "Datacenters[1]", "Job datacenter must be non-empty string"),
        ({"payload": b"x"}, "Payload", "job can't be submitted with a payload, only dispatched"),
        ({"version": -1}, "Version", "negative"),
        ({"version": 2**53 + 1}, "Version", "must not be greater than 9007199254740992"),
        ({"multiregion": Multiregion()}, "Multiregion", "not supported"),
        ({"ui": UI(description="é" * 501)}, "UI.Description", "1000"),
        ({"version_tag": VersionTag(description="x" * 1_001)}, "VersionTag.Description", "1000"),
        ({"task_groups": ()}, "TaskGroups", "Missing job task groups"),
        ({"task_groups": (a_group(""),)}, f"{GROUP}.Name", "Job task group 1 missing name"),
        ({"task_groups": (a_group("a\0"),)}, f"{GROUP}.Name", "null character"),
        ({"task_groups": (a_group("g"), a_group("g"))}, "TaskGroups[1].Name", "Job task group 2 redefines 'g' from group 1"),
        ({"constraints": (Constraint(operand="x"),)}, "Constraints[0].Operand", 'Unknown constraint type "x"'),
        ({"affinities": (Affinity(l_target=ARCH, operand="=", r_target="a", weight=0),)}, "Affinities[0].Weight", "not 0"),
        ({"spreads": (Spread(attribute=""),)}, "Spreads[0].Attribute", "Missing spread attribute"),
        ({"periodic": Periodic(specs=("@daily",))}, "Periodic", 'Periodic can only be used with "batch" or "sysbatch" scheduler'),
        ({"parameterized_job": Parameterized()}, "ParameterizedJob", 'only be used with "batch" or "sysbatch"'),
        ({"type": "batch", "update": UpdatePolicy()}, "Update", 'Job type "batch" does not allow update block'),
        ({"type": "sysbatch", "update": UpdatePolicy()}, "Update", 'Job type "sysbatch" does not allow update block'),
        ({"update": UpdatePolicy(max_parallel=-1)}, "Update.MaxParallel", "less than zero"),
        ({"update": UpdatePolicy(stagger=0)}, "Update.Stagger", "greater than zero"),
    ],
)  # fmt: skip
def test_rules_of_the_job(fields: dict[str, Any], path: str, message: str) -> None:
    assert_only_problem(Job(**{"id": "shop", "task_groups": (a_group(),), **fields}), path, message)


def test_a_dispatched_job_may_have_a_payload() -> None:
    assert list_problems(a_job(payload=b"x", dispatched=True)) == []


def test_the_maximum_priority_is_a_setting_with_an_upper_limit() -> None:
    settings = some_job_settings(max_priority=40_000)

    assert list_problems(a_job(priority=32_766), settings) == []
    assert_only_problem(a_job(priority=32_767), "Priority", "[1, 32766]", settings)


@pytest.mark.parametrize(
    ("fields", "arrays", "path", "message"),
    [
        ({"all_at_once": True}, [GroupArray(size=2)], "AllAtOnce", "AllAtOnce cannot be used with Array"),
        ({}, [GroupArray(size=60_000), GroupArray(size=40_001)], "TaskGroups[0].Array", "100001 elements together; a job has at most 100000"),
        ({}, [GroupArray(items=("x" * 4_096,) * 129)], "TaskGroups", "528384 bytes long together; the limit is 524288"),
    ],
)  # fmt: skip
def test_rules_of_all_arrays_of_a_job(
    fields: dict[str, Any], arrays: list[GroupArray], path: str, message: str
) -> None:
    groups = tuple(a_group(f"g{number}", array=array) for number, array in enumerate(arrays))

    assert_only_problem(a_job("shop", *groups, type="batch", **fields), path, message)


def test_an_array_may_have_many_elements() -> None:
    for array in (GroupArray(size=100_000), GroupArray(items=("", "", "x")), GroupArray(size=1, max_running=100_000)):
        assert list_problems(a_job("shop", a_group("g", array=array), type="batch")) == []


def test_steps_without_an_array_do_not_count_as_its_elements() -> None:
    build = a_group("build", array=GroupArray(size=1))
    sweep = a_group("sweep", array=GroupArray(size=100_000), depends=(Need(on="build"),))

    assert list_problems(a_job("shop", build, sweep, type="batch")) == []


def test_a_size_that_no_array_may_have_is_reported_once() -> None:
    build = a_group("build", array=GroupArray(size=1))
    sweep = a_group("sweep", array=GroupArray(size=200_000), depends=(Need(on="build"),))

    assert_only_problem(a_job("shop", build, sweep, type="batch"), "TaskGroups[1].Array.Size", "got 200000")


@pytest.mark.parametrize(("limit", "valid"), [(5, True), (4, False), (0, True)])
def test_the_total_count_of_a_job_is_limited(limit: int, valid: bool) -> None:
    job = a_job("shop", a_group("a", count=2), a_group("b", count=3))
    expected = [] if valid else [("TaskGroups", f"total count was greater than configured job_max_count: 5 > {limit}")]

    assert list_problems(job, some_job_settings(max_count=limit)) == expected


@pytest.mark.parametrize(
    ("job_type", "fields", "path", "message"),
    [
        ("service", {"count": -1}, "Count", "Task group count can't be negative"),
        ("system", {"count": 2}, "Count", "Count cannot exceed 1 with system scheduler"),
        ("service", {"tasks": ()}, "Tasks", "Missing tasks for task group"),
        ("service", {"tasks": (a_task(""),)}, "Tasks[0].Name", "Task 1 missing name"),
        ("service", {"tasks": (a_task("é" * 121),)}, "Tasks[0].Name", "242 bytes long; a task name has at most 240 bytes"),
        ("service", {"tasks": (a_task("t"), a_task("t"))}, "Tasks[1].Name", "Task 2 redefines 't' from task 1"),
        ("service", {"tasks": (a_task("a", leader=True), a_task("b", leader=True))}, "Tasks[1].Leader", "Only one task"),
        ("service", {"tasks": (a_task(lifecycle=Lifecycle(hook="prestart")),)}, "Tasks", "no main task"),
        ("service", {"shutdown_delay": -1}, "ShutdownDelay", "positive"),
        ("batch", {"max_run_duration": 0}, "MaxRunDuration", "greater than zero"),
        ("service", {"max_run_duration": 1}, "MaxRunDuration", "batch and sysbatch"),
        ("system", {"affinities": (Affinity(),)}, "Affinities", "System jobs may not have an affinity block"),
        ("system", {"spreads": (Spread(),)}, "Spreads", "System jobs may not have a spread block"),
        # arrays
        ("service", {"array": GroupArray(size=2)}, "Array", "only be used with batch jobs, not with service jobs"),
        ("sysbatch", {"array": GroupArray(size=2)}, "Array", "not with sysbatch jobs"),
        ("batch", {"array": GroupArray()}, "Array.Size", "Size must be between 1 and 100000; got 0"),
        ("batch", {"array": GroupArray(size=-1)}, "Array.Size", "got -1"),
        ("batch", {"array": GroupArray(size=100_001)}, "Array.Size", "got 100001"),
        ("batch", {"array": GroupArray(size=2, items=("a", "b"))}, "Array.Size", "Size and Items cannot be used together"),
        ("batch", {"array": GroupArray(items=("a", "é" * 2_049))}, "Array.Items[1]", "4098 bytes long; an item has at most 4096 bytes"),
        ("batch", {"array": GroupArray(items=("a\0",))}, "Array.Items[0]", "null character"),
        ("batch", {"array": GroupArray(items=("a",) * 50_001)}, "Array.Items", "50001 items; the limit is 50000"),
        ("batch", {"array": GroupArray(size=2, max_running=-1)}, "Array.MaxRunning", "between 0 and 100000; got -1"),
        ("batch", {"array": GroupArray(size=2), "count": 2}, "Count", "Count must be 1 for a group with Array; got 2"),
        ("batch", {"array": GroupArray(size=2), "scaling": ScalingPolicy(min=1, max=2)}, "Scaling", "Scaling cannot be used with Array"),
        ("batch", {"array": GroupArray(size=2), "disconnect": DisconnectPolicy(lost_after=HOUR)}, "Disconnect", "Disconnect cannot be used with Array"),
        # policies
        ("service", {"restart_policy": RestartPolicy(mode="x")}, "RestartPolicy.Mode", 'Unsupported restart mode: "x"'),
        ("service", {"ephemeral_disk": EphemeralDisk(size_mb=TOO_LARGE)}, "EphemeralDisk.SizeMB", "maximum DiskMB value is 1000000000; got 1000000001"),
        ("service", {"ephemeral_disk": EphemeralDisk(size_mb=9), "tasks": (a_task(log_config=LogConfig(max_files=2, max_file_size_mb=2)),)}, "EphemeralDisk.SizeMB", "minimum DiskMB value is 10; got 9"),
        ("system", {"reschedule_policy": ReschedulePolicy()}, "ReschedulePolicy", 'Job type "system" does not allow reschedule block'),
        ("sysbatch", {"reschedule_policy": ReschedulePolicy()}, "ReschedulePolicy", "does not allow"),
        ("service", {"reschedule_policy": ReschedulePolicy(delay_function="x")}, "ReschedulePolicy.DelayFunction", '"x"'),
        ("service", {"reschedule_policy": ReschedulePolicy(delay=SECOND)}, "ReschedulePolicy.Delay", "less than 5s"),
        ("service", {"reschedule_policy": ReschedulePolicy(max_delay=10 * SECOND)}, "ReschedulePolicy.MaxDelay", "less than Delay"),
        ("service", {"reschedule_policy": ReschedulePolicy(attempts=1, interval=HOUR)}, "ReschedulePolicy.Attempts", "ambiguous"),
        ("batch", {"reschedule_policy": ReschedulePolicy(attempts=1, unlimited=False, interval=SECOND)}, "ReschedulePolicy.Interval", "less than 15s; got 1s"),
        ("batch", {"reschedule_policy": ReschedulePolicy(attempts=9, unlimited=False, interval=HOUR)}, "ReschedulePolicy.Interval", "9 attempts do not fit"),
        ("batch", {"update": UpdatePolicy()}, "Update", 'Job type "batch" does not allow update block'),
        ("service", {"update": UpdatePolicy(health_check="x")}, "Update.HealthCheck", '"x"'),
        ("service", {"update": UpdatePolicy(max_parallel=-1)}, "Update.MaxParallel", "less than zero"),
        ("service", {"update": UpdatePolicy(canary=-1)}, "Update.Canary", "less than zero"),
        ("service", {"update": UpdatePolicy(auto_promote=True)}, "Update.AutoPromote", "Canary count"),
        ("service", {"update": UpdatePolicy(min_healthy_time=-1)}, "Update.MinHealthyTime", "less than zero"),
        ("service", {"update": UpdatePolicy(min_healthy_time=5 * MINUTE)}, "Update.MinHealthyTime", "5m0s >= 5m0s"),
        ("service", {"update": UpdatePolicy(healthy_deadline=0)}, "Update.HealthyDeadline", "greater than zero"),
        ("service", {"update": UpdatePolicy(progress_deadline=5 * MINUTE)}, "Update.HealthyDeadline", "progress deadline"),
        ("service", {"update": UpdatePolicy(progress_deadline=-1)}, "Update.ProgressDeadline", "zero or greater"),
        ("service", {"update": UpdatePolicy(stagger=0)}, "Update.Stagger", "greater than zero"),
        ("batch", {"migrate": MigratePolicy()}, "Migrate", 'Job type "batch" does not allow migrate block'),
        ("service", {"migrate": MigratePolicy(max_parallel=-1)}, "Migrate.MaxParallel", ">= 0"),
        ("service", {"migrate": MigratePolicy(health_check="manual")}, "Migrate.HealthCheck", '"manual"'),
        ("service", {"migrate": MigratePolicy(min_healthy_time=-1)}, "Migrate.MinHealthyTime", "negative"),
        ("service", {"migrate": MigratePolicy(min_healthy_time=6 * MINUTE)}, "Migrate.MinHealthyTime", "less than"),
        ("service", {"disconnect": DisconnectPolicy(lost_after=-1)}, "Disconnect.LostAfter", "negative"),
        ("service", {"disconnect": DisconnectPolicy(lost_after=1, stop_on_client_after=1)}, "Disconnect.StopOnClientAfter", "together"),
        ("service", {"disconnect": DisconnectPolicy(stop_on_client_after=-1)}, "Disconnect.StopOnClientAfter", "negative"),
        ("system", {"disconnect": DisconnectPolicy(stop_on_client_after=1)}, "Disconnect.StopOnClientAfter", "service and batch"),
        ("service", {"disconnect": DisconnectPolicy(reconcile="x")}, "Disconnect.Reconcile", '"x"'),
        ("service", {"scaling": ScalingPolicy(min=1)}, "Scaling.Max", "Scaling policy invalid: maximum count must be specified and non-negative"),
        ("service", {"scaling": ScalingPolicy(min=-1, max=2)}, "Scaling.Min", "non-negative"),
        ("service", {"scaling": ScalingPolicy(min=3, max=2)}, "Scaling.Min", "less than minimum"),
        ("service", {"scaling": ScalingPolicy(min=2, max=3)}, "Scaling.Min", "1 < 2"),
        ("service", {"scaling": ScalingPolicy(min=1, max=3), "count": 4}, "Scaling.Max", "4 > 3"),
        ("service", {"scaling": ScalingPolicy(max=3, type="vertical_cpu")}, "Scaling.Type", "not supported"),
        # networks
        ("service", {"networks": (NetworkResource(mode="x"),)}, "Networks[0].Mode", '"x"'),
        ("service", {"networks": (NetworkResource(mode="cni/"),)}, "Networks[0].Mode", '"cni/"'),
        ("service", {"networks": (NetworkResource(hostname="-x"),)}, "Networks[0].Hostname", "DNS name"),
        ("service", {"networks": (NetworkResource(cni=CNI(args={"a": "b;c"})),)}, "Networks[0].CNI.Args[a]", '";"'),
        ("service", {"networks": (NetworkResource(cni=CNI(args={"a": "b"})), NetworkResource(cni=CNI(args={"a": "c"})))}, "Networks[1].CNI.Args[a]", "duplicate"),
        ("service", {"networks": (NetworkResource(dynamic_ports=(Port(),)),)}, "Networks[0].DynamicPorts[0].Label", "Missing port label"),
        ("service", {"networks": (NetworkResource(dynamic_ports=(Port(label="a"), Port(label="a"))),)}, "Networks[0].DynamicPorts[1].Label", "already in use"),
        ("service", {"networks": (NetworkResource(reserved_ports=(Port(label="a", value=65_536),)),)}, "Networks[0].ReservedPorts[0].Value", "65535"),
        ("service", {"networks": (NetworkResource(reserved_ports=(Port(label="a", value=-1),)),)}, "Networks[0].ReservedPorts[0].Value", "negative"),
        ("service", {"networks": (NetworkResource(dynamic_ports=(Port(label="a", to=-2),)),)}, "Networks[0].DynamicPorts[0].To", "-2"),
        ("service", {"networks": (NetworkResource(reserved_ports=(Port(label="a", value=80), Port(label="b", value=80))),)}, "Networks[0].ReservedPorts[1].Value", "already reserved"),
        ("service", {"networks": (NetworkResource(mode="bridge", reserved_ports=(Port(label="a", value=80, ignore_collision=True),)),)}, "Networks[0].ReservedPorts[0].IgnoreCollision", '"host"'),
    ],
)  # fmt: skip
def test_rules_of_a_group(job_type: str, fields: dict[str, Any], path: str, message: str) -> None:
    group = TaskGroup(name="web", **{"tasks": (a_task(),), **fields})

    assert_only_problem(Job(id="shop", type=job_type, task_groups=(group,)), f"{GROUP}.{path}", message)


@pytest.mark.parametrize(
    "fields",
    [
        {"networks": (NetworkResource(reserved_ports=(Port(label="a", value=80), Port(label="b", value=80, host_network="x"))),)},
        {"networks": (NetworkResource(reserved_ports=(Port(label="a", value=80), Port(label="b", value=80, ignore_collision=True))),)},
        {"networks": (NetworkResource(mode="cni/mynet", hostname="${attr.unique.hostname}", dynamic_ports=(Port(label="a", to=-1),)),)},
        {"update": UpdatePolicy(max_parallel=0, progress_deadline=0)},
        {"update": UpdatePolicy(health_check="manual", canary=1, auto_promote=True)},
        {"migrate": MigratePolicy(max_parallel=0, health_check="")},
        {"reschedule_policy": ReschedulePolicy(unlimited=False, attempts=0, delay=0)},
        {"reschedule_policy": ReschedulePolicy(unlimited=False, attempts=3, interval=HOUR, delay_function="fibonacci")},
        {"count": 0, "scaling": ScalingPolicy(min=0, max=0)},
        {"spreads": (Spread(attribute="${node.datacenter}", weight=100, spread_target=(SpreadTarget(value="a", percent=100),)),)},
        {"disconnect": DisconnectPolicy(lost_after=HOUR, reconcile="keep_original", replace=False)},
    ],
)  # fmt: skip
def test_valid_groups(fields: dict[str, Any]) -> None:
    assert list_problems(with_group(**fields)) == []


@pytest.mark.parametrize(
    ("policy", "paths"),
    [
        (RestartPolicy(interval=SECOND), ["Interval"]),
        (RestartPolicy(attempts=-1), ["Attempts"]),
        (RestartPolicy(attempts=0, mode="delay"), ["Mode"]),
        (RestartPolicy(attempts=0, mode="fail"), []),
        (RestartPolicy(delay=-1), ["Delay"]),
        (RestartPolicy(attempts=10, delay=MINUTE, interval=10 * MINUTE), []),
        (RestartPolicy(attempts=10, delay=MINUTE, interval=9 * MINUTE), ["Attempts"]),
    ],
)
def test_restarts_must_fit_their_interval(policy: RestartPolicy, paths: list[str]) -> None:
    assert [path for path, _ in list_problems(with_task(restart_policy=policy))] == [
        f"{TASK}.RestartPolicy.{path}" for path in paths
    ]


@pytest.mark.parametrize(
    ("function", "attempts", "max_delay", "span"),
    [
        ("constant", 4, 0, 40),
        ("exponential", 4, 3_600, 10 + 20 + 40 + 80),
        ("exponential", 4, 30, 10 + 20 + 30 + 30),
        ("fibonacci", 5, 3_600, 10 + 10 + 20 + 30 + 50),
        ("fibonacci", 5, 25, 10 + 10 + 20 + 25 + 25),
        ("exponential", 2_000_000_000, 60, 10 + 20 + 40 + 60 * (2_000_000_000 - 3)),
    ],
)
def test_sum_of_reschedule_delays(function: str, attempts: int, max_delay: int, span: int) -> None:
    policy = ReschedulePolicy(
        attempts=attempts, unlimited=False, delay=10 * SECOND, delay_function=function, max_delay=max_delay * SECOND
    )

    assert sum_reschedule_delays(policy) == span * SECOND


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"driver": ""}, "Driver", "Missing task driver"),
        ({"kill_timeout": -1}, "KillTimeout", "positive"),
        ({"kill_timeout": HOUR}, "KillTimeout", "longer than the group's ProgressDeadline (10m0s)"),
        ({"shutdown_delay": -1}, "ShutdownDelay", "positive"),
        ({"resources": Resources(cpu=-1)}, "Resources.CPU", "minimum CPU value is 1; got -1"),
        ({"resources": Resources(cpu=0)}, "Resources.CPU", "minimum CPU value is 1; got 0"),
        ({"resources": Resources(cpu=1, cores=1)}, "Resources.CPU", "not both"),
        ({"resources": Resources(cores=-1)}, "Resources.Cores", "minimum Cores value is 0; got -1"),
        ({"resources": Resources(memory_mb=1)}, "Resources.MemoryMB", "minimum MemoryMB value is 10; got 1"),
        ({"resources": Resources(cpu=TOO_LARGE)}, "Resources.CPU", "maximum CPU value is 1000000000; got 1000000001"),
        ({"resources": Resources(cpu=0, cores=TOO_LARGE)}, "Resources.Cores", "maximum Cores value is 1000000000"),
        ({"resources": Resources(memory_mb=TOO_LARGE)}, "Resources.MemoryMB", "maximum MemoryMB value is 1000000000"),
        ({"resources": Resources(memory_max_mb=TOO_LARGE)}, "Resources.MemoryMaxMB", "maximum MemoryMaxMB value is 1000000000"),
        ({"resources": Resources(devices=(RequestedDevice(name="gpu", count=TOO_LARGE),))}, "Resources.Devices[0].Count", "maximum Count value is 1000000000"),
        ({"resources": Resources(memory_max_mb=299)}, "Resources.MemoryMaxMB", "larger than MemoryMB"),
        ({"resources": Resources(memory_max_mb=-2)}, "Resources.MemoryMaxMB", "larger than MemoryMB"),
        ({"resources": Resources(secrets_mb=301)}, "Resources.SecretsMB", "between 0 and MemoryMB (300); got 301"),
        ({"resources": Resources(devices=(RequestedDevice(name=""),))}, "Resources.Devices[0].Name", "device name"),
        ({"resources": Resources(devices=(RequestedDevice(name="a/b/c/d"),))}, "Resources.Devices[0].Name", "a/b/c/d"),
        ({"resources": Resources(devices=(RequestedDevice(name="gpu", count=0),))}, "Resources.Devices[0].Count", "at least one"),
        ({"resources": Resources(devices=(RequestedDevice(name="gpu", constraints=(Constraint(operand="distinct_hosts"),)),))}, "Resources.Devices[0].Constraints[0].Operand", "not allowed"),
        ({"resources": Resources(numa=NUMA(affinity="x"))}, "Resources.NUMA.Affinity", '"x"'),
        ({"resources": Resources(numa=NUMA(devices=("gpu",)))}, "Resources.NUMA.Devices[0]", "not requested"),
        ({"constraints": (Constraint(operand="distinct_hosts"),)}, "Constraints[0].Operand", "not allowed"),
        ({"constraints": (Constraint(operand="distinct_property", l_target=ARCH),)}, "Constraints[0].Operand", "not allowed"),
        ({"log_config": LogConfig(max_files=0)}, "LogConfig.MaxFiles", "minimum number of files is 1; got 0"),
        ({"log_config": LogConfig(max_file_size_mb=0)}, "LogConfig.MaxFileSizeMB", "minimum file size is 1MB; got 0"),
        ({"log_config": LogConfig(max_file_size_mb=30)}, "LogConfig", "300 MB) must be less than"),
        ({"dispatch_payload": DispatchPayload()}, "DispatchPayload.File", "must be specified"),
        ({"dispatch_payload": DispatchPayload(file="../x")}, "DispatchPayload.File", "escapes"),
        ({"volume_mounts": (VolumeMount(volume="x"),)}, "VolumeMounts[0].Volume", 'undefined volume "x"'),
        ({"vault": Vault()}, "Vault", "Vault is not supported"),
        ({"scaling_policies": (ScalingPolicy(),)}, "ScalingPolicies", "not supported"),
        ({"driver": "raw_exec", "config": {"command": "x"}, "templates": (Template(embedded_tmpl="x", dest_path="/etc/passwd"),)}, "Templates[0].DestPath", "outside of the task's folder"),
        ({"driver": "docker", "config": {"image": "x", "ports": ["web"]}}, "Config.ports[0]", 'Port label "web" does not exist'),
        ({"driver": "docker", "config": {"image": "x", "ports": ["80:80"]}}, "Config.ports[0]", 'Port label "80:80" does not exist'),
        ({"actions": (TaskAction(name="a b", command="c"),)}, "Actions[0].Name", "a b"),
        ({"actions": (TaskAction(name="", command="c"),)}, "Actions[0].Name", "invalid action name"),
        ({"actions": (TaskAction(name="a", command="c"), TaskAction(name="a", command="c"))}, "Actions[1].Name", "twice"),
        ({"actions": (TaskAction(name="a"),)}, "Actions[0].Command", "Missing"),
        ({"csi_plugin_config": CSIPluginConfig(id="i", type="node")}, "CSIPluginConfig", "CSI storage plugins are not supported"),
        # templates and artifacts
        ({"templates": (Template(dest_path="x"),)}, "Templates[0]", "source path or have an embedded template"),
        ({"templates": (Template(embedded_tmpl="x"),)}, "Templates[0].DestPath", "Must specify a destination"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a/../../b"),)}, "Templates[0].DestPath", "escapes"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a"), Template(source_path="x", dest_path="a"))}, "Templates[1].DestPath", "Template 2 has same destination as template 1"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", change_mode="x"),)}, "Templates[0].ChangeMode", '"x"'),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", change_mode="signal", envvars=True),)}, "Templates[0].ChangeMode", "env var"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", change_mode="script"),)}, "Templates[0].ChangeScript", "must specify"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", change_mode="script", change_script=ChangeScript()),)}, "Templates[0].ChangeScript.Command", "must specify"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", splay=-1),)}, "Templates[0].Splay", "positive"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", perms="0888"),)}, "Templates[0].Perms", "octal"),
        ({"templates": (Template(embedded_tmpl="x", dest_path="a", wait=TemplateWait(min=2, max=1)),)}, "Templates[0].Wait.Min", "less than"),
        ({"artifacts": (Artifact(),)}, "Artifacts[0].GetterSource", "source must be specified"),
        ({"artifacts": (Artifact(getter_source="s", getter_mode="x"),)}, "Artifacts[0].GetterMode", '"x"'),
        ({"artifacts": (Artifact(getter_source="s", relative_dest="/../x"),)}, "Artifacts[0].RelativeDest", "escapes"),
        ({"artifacts": (Artifact(getter_source="s", getter_options={"checksum": ""}),)}, "Artifacts[0].GetterOptions.checksum", "empty"),
        ({"artifacts": (Artifact(getter_source="s", getter_options={"checksum": "abc"}),)}, "Artifacts[0].GetterOptions.checksum", "type:value"),
        ({"artifacts": (Artifact(getter_source="s", getter_options={"checksum": "crc:1"}),)}, "Artifacts[0].GetterOptions.checksum", "unsupported"),
        ({"artifacts": (Artifact(getter_source="s", getter_options={"checksum": "md5:12"}),)}, "Artifacts[0].GetterOptions.checksum", "invalid md5"),
        # identities and secrets
        ({"identity": WorkloadIdentity(ttl=1)}, "Identity.TTL", "default identity"),
        ({"identity": WorkloadIdentity(filepath="x")}, "Identity.Filepath", "file parameter"),
        ({"identity": WorkloadIdentity(change_mode="x")}, "Identity.ChangeMode", '"x"'),
        ({"identity": WorkloadIdentity(change_mode="signal")}, "Identity.ChangeSignal", "must be specified"),
        ({"identity": WorkloadIdentity(change_signal="SIGHUP")}, "Identity.ChangeSignal", "only use"),
        ({"identities": (WorkloadIdentity(name="a b"),)}, "Identities[0].Name", "a b"),
        ({"identities": (WorkloadIdentity(name="a", ttl=-1),)}, "Identities[0].TTL", ">= 0"),
        ({"identities": (WorkloadIdentity(name="a"), WorkloadIdentity(name="a"))}, "Identities[1].Name", "twice"),
        ({"secrets": (TaskSecret(name="a-b", provider="vault", path="p"),)}, "Secrets[0].Name", "a-b"),
        ({"secrets": (TaskSecret(name="a", provider="vault", path="p"), TaskSecret(name="a", provider="x", path="p"))}, "Secrets[1].Name", "twice"),
        ({"secrets": (TaskSecret(name="a", path="p"),)}, "Secrets[0].Provider", "Missing"),
        ({"secrets": (TaskSecret(name="a", provider="vault"),)}, "Secrets[0].Path", "Missing"),
        ({"secrets": (TaskSecret(name="a", provider="vault", path="p", env={"a": "b"}),)}, "Secrets[0].Env", "env"),
        ({"secrets": (TaskSecret(name="a", provider="mine", path="p", config={"a": 1}),)}, "Secrets[0].Config", "config"),
    ],
)  # fmt: skip
def test_rules_of_a_task(fields: dict[str, Any], path: str, message: str) -> None:
    assert_only_problem(with_task(**fields), f"{TASK}.{path}", message)


@pytest.mark.parametrize("lifecycle", [Lifecycle(hook="during"), Lifecycle(sidecar=True)])
def test_a_lifecycle_has_a_known_hook(lifecycle: Lifecycle) -> None:
    group = a_group("web", a_task("main"), a_task("side", lifecycle=lifecycle))

    assert_only_problem(a_job("shop", group), f"{GROUP}.Tasks[1].Lifecycle.Hook", "hook")


@pytest.mark.parametrize("name", ["alloc", "a/b", "a\\b", "a\0b"])
def test_a_task_name_must_be_a_valid_folder_name(name: str) -> None:
    assert [path for path, _ in list_problems(a_job("shop", a_group("web", a_task(name))))] == [f"{TASK}.Name"]


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": Resources(cpu=0, cores=2)},
        {"resources": Resources(memory_max_mb=-1)},
        {"resources": Resources(devices=(RequestedDevice(name="nvidia/gpu/a100", count=2),), numa=NUMA(affinity="require", devices=("nvidia/gpu/a100",)))},
        {"driver": "mock", "templates": (Template(embedded_tmpl="x", dest_path="/local/a/../b", wait=TemplateWait(min=1)),)},
        {"artifacts": (Artifact(getter_source="s", getter_options={"checksum": "md5:" + "a" * 32}),)},
        {"artifacts": (Artifact(getter_source="s", getter_options={"checksum": "${meta.sum}"}),)},
        {"identities": (WorkloadIdentity(name="vault_x", audience=("a",), ttl=HOUR, file=True, filepath="p"),)},
        {"secrets": (TaskSecret(name="a", provider="mine", path="p", env={"a": "b"}),)},
        {"actions": (TaskAction(name="a", command="c"),)},
    ],
)  # fmt: skip
def test_valid_tasks(fields: dict[str, Any]) -> None:
    assert list_problems(with_task(**fields)) == []


def test_the_kill_timeout_of_a_batch_task_is_not_limited_by_a_deployment() -> None:
    assert list_problems(with_task("batch", kill_timeout=HOUR)) == []


GOOD_CONSTRAINTS = [
    ("=", "x"), ("==", "x"), ("is", "x"), ("!=", "x"), ("not", "x"), ("<", "1"), ("<=", "1"), (">", "1"), (">=", "1"),
    ("regexp", "^a+$"), ("version", ">= 1.2, < 2"), ("semver", "> 1.2.3-rc1"), ("set_contains", "a,b"),
    ("set_contains_all", "a"), ("set_contains_any", "a"), ("is_set", ""), ("is_not_set", ""), ("distinct_hosts", ""),
    ("distinct_hosts", "false"), ("distinct_property", ""), ("distinct_property", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("operand", "right"), GOOD_CONSTRAINTS)
def test_every_operand_of_a_constraint_is_accepted(operand: str, right: str) -> None:
    assert list_problems(a_job(constraints=(Constraint(l_target=ARCH, operand=operand, r_target=right),))) == []


def test_the_table_of_valid_constraints_covers_every_operand() -> None:
    assert {operand for operand, _ in GOOD_CONSTRAINTS} == {str(operand) for operand in Operand}


@pytest.mark.parametrize(
    ("left", "operand", "right", "path", "message"),
    [
        (ARCH, "", "x", "Operand", "Missing constraint operand"),
        ("", "=", "x", "LTarget", "No LTarget provided"),
        ("${x}", "=", "x", "LTarget", 'unsupported attribute "${x}"'),
        ("$attr.x", "=", "x", "LTarget", 'unsupported attribute "$attr.x"'),
        ("${attr.x", "=", "x", "LTarget", "unsupported attribute"),
        (ARCH, "=", "", "RTarget", 'Operator "=" requires an RTarget'),
        (ARCH, "<", "", "RTarget", "requires an RTarget"),
        (ARCH, "set_contains_any", "", "RTarget", "requires an RTarget"),
        (ARCH, "is_set", "x", "RTarget", "does not support an RTarget"),
        (ARCH, "regexp", "(", "RTarget", "Regular expression failed to compile: "),
        (ARCH, "version", "a.b", "RTarget", "Version constraint is invalid: "),
        (ARCH, "semver", "~> 1", "RTarget", "Semver constraint is invalid: "),
        ("", "distinct_hosts", "maybe", "RTarget", "neither true nor false"),
        (ARCH, "distinct_property", "0", "RTarget", "at least 1"),
        (ARCH, "distinct_property", "x", "RTarget", "at least 1"),
        ("", "distinct_property", "1", "LTarget", "No LTarget provided"),
    ],
)
def test_rules_of_a_constraint(left: str, operand: str, right: str, path: str, message: str) -> None:
    constraint = Constraint(l_target=left, operand=operand, r_target=right)

    assert_only_problem(with_group(constraints=(constraint,)), f"{GROUP}.Constraints[0].{path}", message)


@pytest.mark.parametrize("left", ["literal", "${node.unique.id}", "${node.pool}", "${meta.rack}", "${device.model}"])
def test_valid_left_sides_of_constraints(left: str) -> None:
    assert list_problems(a_job(constraints=(Constraint(l_target=left, operand="=", r_target="x"),))) == []


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        (Affinity(l_target=ARCH, operand="", r_target="x"), "Operand"),
        (Affinity(l_target=ARCH, operand="is_set"), "Operand"),
        (Affinity(l_target=ARCH, operand="distinct_hosts"), "Operand"),
        (Affinity(l_target=ARCH, operand="regexp", r_target="("), "RTarget"),
        (Affinity(l_target="", operand="=", r_target="x"), "LTarget"),
        (Affinity(l_target=ARCH, operand="=", r_target="x", weight=0), "Weight"),
        (Affinity(l_target=ARCH, operand="=", r_target="x", weight=101), "Weight"),
        (Affinity(l_target=ARCH, operand="=", r_target="x", weight=-101), "Weight"),
    ],
)
def test_rules_of_an_affinity(affinity: Affinity, path: str) -> None:
    assert [found for found, _ in list_problems(with_task(affinities=(affinity,)))] == [f"{TASK}.Affinities[0].{path}"]


def test_sysbatch_jobs_may_have_affinities_and_spreads() -> None:
    affinity = Affinity(l_target=ARCH, operand="=", r_target="x", weight=-100)

    assert list_problems(with_group("sysbatch", affinities=(affinity,), spreads=(Spread(attribute=ARCH),))) == []


@pytest.mark.parametrize(
    ("spread", "path"),
    [
        (Spread(attribute=ARCH, weight=0), "Weight"),
        (Spread(attribute=ARCH, weight=101), "Weight"),
        (Spread(attribute=ARCH, spread_target=(SpreadTarget(value="a"), SpreadTarget(value="a"))), "SpreadTarget[1].Value"),
        (Spread(attribute=ARCH, spread_target=(SpreadTarget(value="a", percent=-1),)), "SpreadTarget[0].Percent"),
        (Spread(attribute=ARCH, spread_target=(SpreadTarget(value="a", percent=60), SpreadTarget(value="b", percent=41))), "SpreadTarget"),
    ],
)  # fmt: skip
def test_rules_of_a_spread(spread: Spread, path: str) -> None:
    assert [found for found, _ in list_problems(with_group(spreads=(spread,)))] == [f"{GROUP}.Spreads[0].{path}"]


WEB_NETWORK = (NetworkResource(dynamic_ports=(Port(label="http"), Port(label="admin"))),)


def with_service(service: Service, *, of_task: bool = False) -> Job:
    task = a_task("t", services=(service,) if of_task else None)
    return a_job("shop", a_group("web", task, networks=WEB_NETWORK, services=None if of_task else (service,)))


@pytest.mark.parametrize(
    ("service", "path", "message"),
    [
        (a_service("a_b"), "Name", "RFC 1123"),
        (a_service("-a"), "Name", "RFC 1123"),
        (a_service("x" * 64), "Name", "63"),
        (a_service(provider="x"), "Provider", '"x"'),
        (a_service(on_update="x"), "OnUpdate", '"x"'),
        (a_service(port_label="nope"), "PortLabel", 'Port label "nope" does not exist'),
        (a_service(address_mode="driver"), "AddressMode", "not allowed in a group"),
        (a_service(address_mode="x"), "AddressMode", '"x"'),
        (a_service(address="1.2.3.4", address_mode="host"), "Address", "auto"),
        (a_service(task_name="x"), "TaskName", '"x"'),
        (a_service(connect={"Native": True}), "Connect", "cannot include Connect blocks"),
        (a_service(provider="consul", connect={"Native": True}), "Connect", "cannot include Connect blocks"),
        (a_service(identity=WorkloadIdentity()), "Identity.Audience", "aud"),
        (a_service(check_restart=CheckRestart(limit=-1)), "CheckRestart.Limit", "positive"),
        (a_service(check_restart=CheckRestart(grace=-1)), "CheckRestart.Grace", "positive"),
    ],
)
def test_rules_of_a_service(service: Service, path: str, message: str) -> None:
    assert_only_problem(with_service(service), f"{GROUP}.Services[0].{path}", message)


@pytest.mark.parametrize("mode", ["alloc", "alloc_ipv6"])
def test_a_task_service_cannot_use_the_address_of_the_allocation(mode: str) -> None:
    assert_only_problem(
        with_service(a_service(address_mode=mode), of_task=True),
        f"{TASK}.Services[0].AddressMode",
        "not allowed in a task",
    )


@pytest.mark.parametrize(
    ("service", "of_task"),
    [
        (a_service(port_label="http", address_mode="alloc"), False),
        (a_service(provider="nomad", task_name="t"), False),
        (a_service("${NODE}-x"), False),
        (a_service(port_label="8080", address_mode="driver"), True),
        (Service(name="s", provider="consul", address="1.2.3.4"), False),
    ],
)
def test_valid_services(service: Service, of_task: bool) -> None:
    assert list_problems(with_service(service, of_task=of_task)) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "grpc", "grpc_service": "shop", "tls_server_name": "x"},
        {"type": "script", "command": "/bin/true", "task_name": "t", "on_update": "ignore_warnings"},
        {"success_before_passing": 2, "failures_before_critical": 3},
        {"check_restart": CheckRestart(limit=1, ignore_warnings=True)},
    ],
)
def test_wharf_provider_supports_more_than_the_nomad_provider(fields: dict[str, Any]) -> None:
    service = a_service(provider="wharf", port_label="http", checks=(a_check(**fields),))

    assert list_problems(with_service(service)) == []


@pytest.mark.parametrize(
    ("provider", "fields", "path", "message"),
    [
        ("nomad", {"type": "grpc"}, "Type", '"grpc"'),
        ("wharf", {"type": ""}, "Type", "Invalid check type"),
        ("wharf", {"type": "script", "task_name": "t"}, "Command", "script"),
        ("wharf", {"type": "script", "command": "/bin/true"}, "TaskName", "needs a task"),
        ("wharf", {"path": ""}, "Path", "must have http path"),
        ("wharf", {"path": "http://host/x"}, "Path", "relative"),
        ("wharf", {"method": "FETCH"}, "Method", "FETCH"),
        ("wharf", {"interval": 0}, "Interval", "greater than zero"),
        ("wharf", {"interval": SECOND // 2}, "Interval", "(500ms) cannot be lower than 1s"),
        ("wharf", {"timeout": 0}, "Timeout", "greater than zero"),
        ("wharf", {"initial_status": "x"}, "InitialStatus", '"x"'),
        ("wharf", {"address_mode": "driver"}, "AddressMode", "driver"),
        ("consul", {"address_mode": "auto"}, "AddressMode", "auto"),
        ("wharf", {"port_label": "nope"}, "PortLabel", "does not exist"),
        ("nomad", {"on_update": "ignore_warnings"}, "OnUpdate", "Consul"),
        ("wharf", {"on_update": "x"}, "OnUpdate", '"x"'),
        ("wharf", {"task_name": "x"}, "TaskName", '"x"'),
        (
            "nomad",
            {"check_restart": CheckRestart(limit=1, ignore_warnings=True)},
            "CheckRestart.IgnoreWarnings",
            "Consul",
        ),
        ("wharf", {"check_restart": CheckRestart(limit=1), "on_update": "ignore"}, "CheckRestart", "not compatible"),
        ("wharf", {"check_restart": CheckRestart(grace=-1)}, "CheckRestart.Grace", "positive"),
        ("wharf", {"expose": True}, "Expose", "Consul"),
        ("nomad", {"tls_server_name": "x"}, "TLSServerName", "Consul"),
        ("nomad", {"success_before_passing": 1}, "SuccessBeforePassing", "Consul"),
        ("nomad", {"failures_before_critical": 1}, "FailuresBeforeCritical", "Consul"),
        ("wharf", {"failures_before_warning": 1}, "FailuresBeforeWarning", "Consul"),
    ],
)
def test_rules_of_a_check(provider: str, fields: dict[str, Any], path: str, message: str) -> None:
    service = a_service(provider=provider, port_label="http", checks=(a_check(**fields),))

    assert_only_problem(with_service(service), f"{GROUP}.Services[0].Checks[0].{path}", message)


def test_a_check_over_the_network_needs_a_port() -> None:
    assert_only_problem(
        with_service(a_service(checks=(a_check(),))), f"{GROUP}.Services[0].Checks[0].PortLabel", "requires a port"
    )


def test_check_names_of_a_task_service_are_unique() -> None:
    service = a_service(port_label="http", checks=(a_check(name="c"), a_check(name="c")))

    assert_only_problem(
        with_service(service, of_task=True), f"{TASK}.Services[0].Checks[1].Name", "Duplicate check name"
    )
    assert list_problems(with_service(service)) == []


def test_services_of_a_group_are_unique_under_all_names_of_the_catalog() -> None:
    tasks = (a_task("t", services=(a_service("b", provider="consul"), a_service("c", provider="wharf"))),)
    group = a_group("web", *tasks, services=(a_service("a"), a_service("a"), a_service("d", provider="nomad")))

    assert [path for path, _ in list_problems(a_job("shop", group))] == [f"{GROUP}.Services[1].Name"]


@pytest.mark.parametrize(
    ("request_", "group", "job_type", "path", "message"),
    [
        (VolumeRequest(type="host"), {}, "service", "Source", "empty source"),
        (VolumeRequest(type="host", source="s", per_alloc=True), {}, "system", "PerAlloc", "system jobs"),
        (VolumeRequest(type="host", source="s", per_alloc=True), {}, "sysbatch", "PerAlloc", "sysbatch jobs"),
        (VolumeRequest(type="host", source="s", per_alloc=True), {"update": UpdatePolicy(canary=1)}, "service", "PerAlloc", "canaries"),
        (VolumeRequest(type="host", source="s", per_alloc=True, sticky=True), {}, "service", "PerAlloc", "sticky"),
        (VolumeRequest(type="host", source="s", mount_options=MountOptions(fs_type="x")), {}, "service", "MountOptions", "host volumes"),
        (VolumeRequest(type="host", source="s", access_mode="multi-node-reader-only"), {}, "service", "AccessMode", "multi-node"),
        (VolumeRequest(type="host", source="s", access_mode="single-node-reader-only"), {}, "service", "ReadOnly", "read-only"),
        (VolumeRequest(type="csi", source="s"), {}, "service", "Type", "CSI storage plugins are not supported"),
    ],
)  # fmt: skip
def test_rules_of_a_volume(
    request_: VolumeRequest, group: dict[str, Any], job_type: str, path: str, message: str
) -> None:
    assert_only_problem(with_group(job_type, volumes={"v": request_}, **group), f"{GROUP}.Volumes.v.{path}", message)


@pytest.mark.parametrize(
    ("request_", "count"),
    [
        (VolumeRequest(type="host", source="s", access_mode="single-node-reader-only", read_only=True), 3),
    ],
)
def test_valid_volumes(request_: VolumeRequest, count: int) -> None:
    assert list_problems(with_group(volumes={"v": request_}, count=count)) == []


@pytest.mark.parametrize(
    ("mount", "path"),
    [(VolumeMount(volume="v", propagation_mode="x"), "PropagationMode"), (VolumeMount(volume="v", selinux_label="x"), "SELinuxLabel")],
)  # fmt: skip
def test_rules_of_a_mount(mount: VolumeMount, path: str) -> None:
    group = a_group("web", a_task(volume_mounts=(mount,)), volumes={"v": VolumeRequest(type="host", source="s")})

    assert [found for found, _ in list_problems(a_job("shop", group))] == [f"{TASK}.VolumeMounts[0].{path}"]


@pytest.mark.parametrize(
    ("periodic", "path", "message"),
    [
        (Periodic(specs=("x",)), "Periodic.Specs[0]", 'Invalid cron spec "x": expected 5 to 7 fields, got 1'),
        (Periodic(spec="60 * * * *"), "Periodic.Spec", 'Invalid cron spec "60 * * * *": '),
        (Periodic(spec="@daily", specs=("@daily",)), "Periodic.Spec", "Only cron or crons may be used"),
        (Periodic(), "Periodic.Specs", "Must specify a spec"),
        (Periodic(specs=("@daily",) * 21), "Periodic.Specs", "A job can have 20 cron specs at most; this one has 21"),
        (Periodic(specs=("@daily",), spec_type="x"), "Periodic.SpecType", '"x"'),
        (Periodic(specs=("@daily",), missed="twice"), "Periodic.Missed", '"twice"'),
        (Periodic(specs=("@daily",), time_zone="Nowhere"), "Periodic.TimeZone", 'unknown time zone "Nowhere"'),
    ],
)
def test_rules_of_a_periodic_block(periodic: Periodic, path: str, message: str) -> None:
    assert_only_problem(a_batch_job(periodic=periodic), path, message)


def test_a_job_can_have_twenty_schedules() -> None:
    assert list_problems(a_batch_job(periodic=Periodic(specs=tuple(f"{n} 0 * * *" for n in range(20))))) == []


def test_a_disabled_periodic_block_is_not_validated() -> None:
    assert list_problems(a_batch_job(periodic=Periodic(enabled=False, spec="x", specs=("y",)))) == []


@pytest.mark.parametrize(
    ("parameterized", "path", "message"),
    [
        (Parameterized(payload="x"), "ParameterizedJob.Payload", 'Unknown payload requirement: "x"'),
        (Parameterized(meta_required=("a", "b"), meta_optional=("b",)), "ParameterizedJob.MetaOptional", "['b']"),
    ],
)
def test_rules_of_a_parameterized_job(parameterized: Parameterized, path: str, message: str) -> None:
    assert_only_problem(a_batch_job(parameterized_job=parameterized), path, message)


def test_all_problems_are_reported_at_once_nested_like_the_parts_of_the_job() -> None:
    bad = a_task("t", driver="", resources=Resources(cpu=-1, memory_mb=1))
    findings = validate_job(
        canonicalize_job(a_job("a b", a_group("web", a_task("ok"), bad, count=-1)), some_job_settings()),
        some_job_settings(),
    )

    assert [problem.path for problem in findings.problems] == [
        "ID", f"{GROUP}.Count", f"{GROUP}.Tasks[1].Driver", f"{GROUP}.Tasks[1].Resources.CPU", f"{GROUP}.Tasks[1].Resources.MemoryMB",
    ]  # fmt: skip
    assert findings.text == (
        "2 errors occurred:\n"
        '\t* Job ID contains a space (ID): write "a-b"\n'
        "\t* Task group web validation failed: 2 errors occurred:\n"
        "\t* Task group count can't be negative (TaskGroups[0].Count)\n"
        "\t* Task t validation failed: 3 errors occurred:\n"
        "\t* Missing task driver (TaskGroups[0].Tasks[1].Driver): set one, such as docker, exec or raw_exec\n"
        "\t* minimum CPU value is 1; got -1 (TaskGroups[0].Tasks[1].Resources.CPU)\n"
        "\t* minimum MemoryMB value is 10; got 1 (TaskGroups[0].Tasks[1].Resources.MemoryMB)"
        "\n\n\n\n\n\n"
    )
    assert len(findings.lines) == 2


def test_a_problem_includes_its_fix() -> None:
    (problem,) = validate_job(canonicalize_job(a_job(type="x"), some_job_settings()), some_job_settings()).problems

    assert str(problem) == 'Invalid job type: "x" (Type): use one of "service", "batch", "system", "sysbatch"'


def test_a_section_without_problems_is_not_shown() -> None:
    findings = validate_job(
        canonicalize_job(a_job("shop", a_group("good"), a_group("bad", count=-1)), some_job_settings()),
        some_job_settings(),
    )

    assert [entry.title for entry in findings.entries if isinstance(entry, ProblemSection)] == [
        "Task group bad validation failed"
    ]


def test_the_number_of_problems_of_a_job_is_limited() -> None:
    tasks = tuple(a_task(f"t{n}", driver="") for n in range(1_000))

    assert len(list_problems(a_job("shop", a_group("web", *tasks)))) == 20


@pytest.mark.parametrize(
    ("job", "path"),
    [
        (with_group(update=UpdatePolicy(max_parallel=2)), f"{GROUP}.Update.MaxParallel"),
        (a_job("s", a_group("a", update=UpdatePolicy(canary=1, auto_promote=True)), a_group("b")), "TaskGroups[1].Update.AutoPromote"),
        (a_batch_job(periodic=Periodic(spec="@daily")), "Periodic.Spec"),
        (with_group(networks=(NetworkResource(mbits=1),)), f"{GROUP}.Networks[0].MBits"),
        (with_task(resources=some_resources(iops=1)), f"{TASK}.Resources.IOPS"),
        (with_task(resources=some_resources(networks=WEB_NETWORK)), f"{TASK}.Resources.Networks"),
        (with_task(resources=some_resources(memory_max_mb=500)), f"{TASK}.Resources.MemoryMaxMB"),
        (with_task(constraints=(Constraint(l_target="attr.kernel.name", operand="=", r_target="linux"),)), f"{TASK}.Constraints[0].LTarget"),
        (with_task(templates=(Template(embedded_tmpl="x", dest_path="x", vault_grace=1),)), f"{TASK}.Templates[0].VaultGrace"),
        (with_task(identities=(WorkloadIdentity(name="x", ttl=1),)), f"{TASK}.Identities[0].Audience"),
        (with_task(identities=(WorkloadIdentity(name="x", audience=("a",)),)), f"{TASK}.Identities[0].TTL"),
        (with_task(identity=WorkloadIdentity(audience=("a",))), f"{TASK}.Identity.Audience"),
        (with_task(schedule={"Cron": 1}), f"{TASK}.Schedule"),
        (a_batch_job(periodic=Periodic(specs=("0 0 30 2 *",))), "Periodic.Specs[0]"),
    ],
)  # fmt: skip
def test_probable_mistakes_cause_warnings(job: Job, path: str) -> None:
    findings = validate_job(canonicalize_job(job, some_job_settings()), some_job_settings())

    assert findings.is_valid
    assert [warning.path for warning in findings.warnings] == [path]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["/usr/bin/server", "--port", "$WHARF_PORT_http"], "Config.args[1]"),
        (["$NOMAD_TASK_DIR/server"], "Config.command"),
        (["/usr/bin/server", "--port=${WHARF_PORT_http}"], ""),
        (["/bin/sh", "-c", "exec server $WHARF_PORT_http"], ""),
        (["busybox", "sh", "-c", "exec httpd -p $WHARF_PORT_http"], ""),
    ],
)
def test_a_variable_that_only_a_shell_would_replace_causes_a_warning_if_no_shell_runs(
    words: list[str], path: str
) -> None:
    task = a_task(driver="raw_exec", config={"command": words[0], "args": words[1:]})
    findings = validate_job(
        canonicalize_job(a_job("shop", a_group("web", task)), some_job_settings()), some_job_settings()
    )

    assert [warning.path for warning in findings.warnings] == ([f"{TASK}.{path}"] if path else [])


def test_memory_max_causes_no_warning_if_oversubscription_is_enabled() -> None:
    job = canonicalize_job(with_task(resources=some_resources(memory_max_mb=500)), some_job_settings())

    assert validate_job(job, some_job_settings(memory_oversubscription=True)).warnings == ()


def test_deprecated_disconnect_fields_of_a_submitted_job_cause_warnings() -> None:
    group = a_group("web", stop_after_client_disconnect=1, max_client_disconnect=1, prevent_reschedule_on_lost=True)

    assert [warning.path for warning in list_submission_warnings(a_job("shop", a_group("a"), group))] == [
        "TaskGroups[1].StopAfterClientDisconnect", "TaskGroups[1].MaxClientDisconnect", "TaskGroups[1].PreventRescheduleOnLost",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("warnings", "text"),
    [
        ((), ""),
        (("a",), "1 warning:\n\n* a"),
        ((ValidationProblem("P", "a", "b"), "c"), "2 warnings:\n\n* a (P): b\n* c"),
    ],
)
def test_warnings_are_formatted_as_one_text(warnings: tuple[object, ...], text: str) -> None:
    assert format_warnings(warnings) == text


def test_a_misspelled_value_of_a_node_in_a_constraint_has_a_correction() -> None:
    job = a_job(
        "shop", a_group("web", constraints=(Constraint(l_target="${node.datacentr}", r_target="dc1", operand="="),))
    )

    (problem,) = validate_job(canonicalize_job(job, some_job_settings()), some_job_settings()).problems

    assert problem.fix == 'did you mean "${node.datacenter}"?'


@pytest.mark.parametrize(
    ("provider", "check_type", "fix"),
    [
        ("nomad", "htpp", 'did you mean "http"?'),
        ("nomad", "grpc", 'write provider = "wharf" in the service, which has such checks'),
        ("nomad", "ping", 'use one of "http", "tcp"'),
    ],
)
def test_the_fix_of_a_check_type_names_the_one_that_was_meant(provider: str, check_type: str, fix: str) -> None:
    service = a_service(provider=provider, port_label="http", checks=(a_check(type=check_type),))
    job = canonicalize_job(with_service(service), some_job_settings())

    fixes = [each.fix for each in validate_job(job, some_job_settings()).problems if each.path.endswith("Type")]

    assert [fix] == fixes


def test_job_types_match_their_wire_values() -> None:
    assert [str(word) for word in JobType] == ["service", "batch", "system", "sysbatch", "_core"]


def test_at_most_twenty_problems_of_a_whole_job_are_reported() -> None:
    groups = [a_group(f"g{number}", a_task(kill_timeout=-1)) for number in range(30)]

    findings = validate_job(canonicalize_job(a_job("shop", *groups), some_job_settings()), some_job_settings())

    assert len(findings.problems) == 20


@pytest.mark.parametrize(
    ("driver", "config", "warnings"),
    [
        ("raw_exec", {"comand": "x"}, ["TaskGroups[0].Tasks[0].Config.comand: did you mean"]),
        (
            "docker",
            {"GPU": 1},
            ["TaskGroups[0].Tasks[0].Config.GPU: `wharf job explain-field docker` lists the options"],
        ),
        (
            "docker",
            {"mount": [{"target": "/a"}, {"sourc": "b"}]},
            ["TaskGroups[0].Tasks[0].Config.mount[1].sourc: did"],
        ),
        ("docker", {"auth": {"user name": "x"}}, ["TaskGroups[0].Tasks[0].Config.auth[user name]: did you mean"]),
        ("docker", {"labels": {"any": "x"}, "mount": "text"}, []),
        ("a-plug-in", {"comand": "x"}, []),
    ],
)
def test_options_that_a_driver_does_not_have_are_warnings(
    driver: str, config: dict[str, object], warnings: list[str]
) -> None:
    job = a_job("shop", a_group("a", Task(name="main", driver=driver, config=config)))

    found = [f"{warning.path}: {warning.fix}" for warning in list_submission_warnings(job)]

    assert len(found) == len(warnings)
    assert all(text.startswith(expected) for text, expected in zip(found, warnings, strict=True))
