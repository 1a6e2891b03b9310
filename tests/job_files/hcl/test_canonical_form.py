"""The canonical form of jobs from files: what `Canonicalize` and a registration fill in (hcl.md 10.3)."""

from typing import Any

import msgspec
import pytest

from tests.job_files.hcl.job_texts import parse_body
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import HOUR, MINUTE, SECOND

SETTINGS = JobSettings(
    region="global",
    node_pool="default",
    default_priority=50,
    max_priority=100,
    max_count=0,
    memory_oversubscription=False,
    max_source_bytes=1_000_000,
    versions_kept=6,
)
TASK = "TaskGroups.0.Tasks.0"


def read_canonical(body: str) -> Any:
    """Return the canonical form of a job with this body."""
    decoded = convert_object(Job, parse_body(body))
    assert decoded.unknown_fields == ()
    return msgspec.to_builtins(canonicalize_job(decoded.value, SETTINGS))


def find_value(document: Any, path: str) -> Any:
    """Return the part of a document at a path, such as `TaskGroups.0.Count`."""
    for step in path.split("."):
        document = document[int(step)] if isinstance(document, list | tuple) else document[step]
    return document


def in_group(body: str, kind: str = "service") -> str:
    return f'type = "{kind}"\ngroup "g" {{\n{body}\n}}'


def in_task(body: str) -> str:
    return in_group(f'task "t" {{\n{body}\n}}')


SERVICE_UPDATE = {
    "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND, "HealthyDeadline": 5 * MINUTE,
    "ProgressDeadline": 10 * MINUTE, "Stagger": 30 * SECOND, "Canary": 0, "AutoRevert": False, "AutoPromote": False,
}  # fmt: skip
SERVICE_RESTART = {
    "Attempts": 2, "Interval": 30 * MINUTE, "Delay": 15 * SECOND, "Mode": "fail", "RenderTemplates": False,
}  # fmt: skip
BATCH_RESTART = {**SERVICE_RESTART, "Attempts": 3, "Interval": 24 * HOUR}


@pytest.mark.parametrize(
    ("body", "path", "value"),
    [
        ("", "Namespace", "default"),
        ("", "Region", "global"),
        ("", "Type", "service"),
        ("", "Priority", 50),
        ("", "AllAtOnce", False),
        ("", "Stop", False),
        ("", "Stable", False),
        ("", "Datacenters", ("*",)),
        ("", "NodePool", "default"),
        (in_group(""), "TaskGroups.0.Update", SERVICE_UPDATE),
        (in_group("", "system"), "TaskGroups.0.Update", SERVICE_UPDATE),
        (in_group("", "batch"), "TaskGroups.0.Update", None),
        ('update {\n canary = 2\n stagger = "1s"\n}\n' + in_group("update { canary = 1 }"), "TaskGroups.0.Update",
         {**SERVICE_UPDATE, "Canary": 1, "Stagger": SECOND}),
        (in_group(""), "TaskGroups.0.Count", 1),
        (in_group("scaling {\n min = 3\n max = 5\n}"), "TaskGroups.0.Count", 3),
        (in_group("count = 2\nscaling { max = 5 }"), "TaskGroups.0.Scaling.Min", 2),
        (in_group("scaling { max = 5 }"), "TaskGroups.0.Scaling.Enabled", True),
        (in_group(""), "TaskGroups.0.EphemeralDisk", {"SizeMB": 300, "Sticky": False, "Migrate": False}),
        (in_group(""), "TaskGroups.0.RestartPolicy", SERVICE_RESTART),
        (in_group("", "system"), "TaskGroups.0.RestartPolicy", SERVICE_RESTART),
        (in_group("", "batch"), "TaskGroups.0.RestartPolicy", BATCH_RESTART),
        (in_group("", "sysbatch"), "TaskGroups.0.RestartPolicy", BATCH_RESTART),
        (in_group('restart { attempts = 9 }\ntask "t" {}'), f"{TASK}.RestartPolicy", {**SERVICE_RESTART, "Attempts": 9}),
        (in_group('restart { attempts = 9 }\ntask "t" {\n restart { mode = "delay" }\n}'), f"{TASK}.RestartPolicy",
         {**SERVICE_RESTART, "Attempts": 9, "Mode": "delay"}),
        (in_group(""), "TaskGroups.0.ReschedulePolicy",
         {"Unlimited": True, "Delay": 30 * SECOND, "DelayFunction": "exponential", "MaxDelay": HOUR, "Attempts": 0, "Interval": 0}),
        (in_group("", "batch"), "TaskGroups.0.ReschedulePolicy",
         {"Unlimited": False, "Delay": 5 * SECOND, "DelayFunction": "constant", "MaxDelay": 0, "Attempts": 1, "Interval": 24 * HOUR}),
        (in_group("", "system"), "TaskGroups.0.ReschedulePolicy", None),
        (in_group("", "sysbatch"), "TaskGroups.0.ReschedulePolicy", None),
        ("reschedule { attempts = 7 }\n" + in_group("reschedule { unlimited = false }"), "TaskGroups.0.ReschedulePolicy.Attempts", 7),
        (in_group(""), "TaskGroups.0.Migrate",
         {"MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10 * SECOND, "HealthyDeadline": 5 * MINUTE}),
        (in_group("", "batch"), "TaskGroups.0.Migrate", None),
        ("migrate { max_parallel = 4 }\n" + in_group(""), "TaskGroups.0.Migrate.MaxParallel", 4),
        (in_group("max_client_disconnect = \"1h\""), "TaskGroups.0.Disconnect",
         {"LostAfter": HOUR, "StopOnClientAfter": None, "Replace": True, "Reconcile": "best_score"}),
        (in_group("disconnect {}"), "TaskGroups.0.Disconnect",
         {"LostAfter": 0, "StopOnClientAfter": None, "Replace": True, "Reconcile": "best_score"}),
        (in_task(""), f"{TASK}.Resources.CPU", 100),
        (in_task("resources { cores = 2 }"), f"{TASK}.Resources.CPU", 0),
        (in_task(""), f"{TASK}.Resources.Cores", 0),
        (in_task("resources {}"), f"{TASK}.Resources.MemoryMB", 300),
        (in_task(""), f"{TASK}.KillTimeout", 5 * SECOND),
        (in_task(""), f"{TASK}.LogConfig", {"MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": False}),
        (in_task("logs { enabled = false }"), f"{TASK}.LogConfig.Disabled", True),
        (in_task("logs { enabled = true }"), f"{TASK}.LogConfig.Disabled", False),
        (in_task("logs {\n enabled = true\n disabled = true\n}"), f"{TASK}.LogConfig.Disabled", True),
        (in_group("service {}"), "TaskGroups.0.Services.0.Name", "j-g"),
        (in_task("service {}"), f"{TASK}.Services.0.Name", "j-g-t"),
        (in_task("service {}"), f"{TASK}.Services.0.AddressMode", "auto"),
        (in_task("service {}"), f"{TASK}.Services.0.OnUpdate", "require_healthy"),
        (in_task("service {}"), f"{TASK}.Services.0.Provider", "nomad"),
        (in_task("service {\n provider = \"consul\"\n}"), f"{TASK}.Services.0.Provider", "nomad"),
        (in_task("service {\n provider = \"wharf\"\n}"), f"{TASK}.Services.0.Provider", "wharf"),
        (in_task("service {\n check { type = \"script\" }\n}"), f"{TASK}.Services.0.Provider", "wharf"),
        (in_task("service {\n check { type = \"http\" }\n}"), f"{TASK}.Services.0.Provider", "nomad"),
        (in_task("service {\n check { success_before_passing = 2 }\n}"), f"{TASK}.Services.0.Provider", "wharf"),
        (in_task("service {\n on_update = \"ignore_warnings\"\n check {}\n}"), f"{TASK}.Services.0.Provider", "wharf"),
        (in_task("service {}"), f"{TASK}.Services.0.Cluster", "default"),
        (in_task("service {\n meta {}\n canary_meta {}\n}"), f"{TASK}.Services.0.Meta", None),
        (in_task("service {\n weights { passing = 3 }\n}"), f"{TASK}.Services.0.Weights", {"Passing": 3, "Warning": 1}),
        (in_task("service {\n check_restart { limit = 2 }\n check {\n check_restart { limit = 3 }\n }\n}"),
         f"{TASK}.Services.0.Checks.0.CheckRestart", {"Limit": 3, "Grace": SECOND, "IgnoreWarnings": False}),
        (in_task("service {\n check_restart {\n limit = 2\n ignore_warnings = true\n }\n check {\n check_restart { grace = \"5s\" }\n }\n}"),
         f"{TASK}.Services.0.Checks.0.CheckRestart", {"Limit": 2, "Grace": 5 * SECOND, "IgnoreWarnings": True}),
        (in_task("service {\n on_update = \"ignore\"\n check {}\n}"), f"{TASK}.Services.0.Checks.0.OnUpdate", "ignore"),
        (in_task("service {\n check { failures_before_critical = -3 }\n}"), f"{TASK}.Services.0.Checks.0.FailuresBeforeCritical", 0),
        (in_task("template {}"), f"{TASK}.Templates.0.LeftDelim", "{{"),
        (in_task("template {}"), f"{TASK}.Templates.0.ChangeSignal", ""),
        (in_task('template { change_mode = "signal" }'), f"{TASK}.Templates.0.ChangeSignal", "SIGHUP"),
        (in_task('template { change_signal = "sigusr1" }'), f"{TASK}.Templates.0.ChangeSignal", "SIGUSR1"),
        (in_task("template {}"), f"{TASK}.Templates.0.VaultGrace", 0),
        (in_task("artifact {}"), f"{TASK}.Artifacts.0.GetterMode", "any"),
        (in_task("artifact {}"), f"{TASK}.Artifacts.0.RelativeDest", "local/"),
        (in_task('artifact {\n source = "http://h/a.tgz"\n mode = "file"\n}'), f"{TASK}.Artifacts.0.RelativeDest", "local/a.tgz"),
        (in_task("artifact {\n options {}\n}"), f"{TASK}.Artifacts.0.GetterOptions", None),
        (in_task("volume_mount {}"), f"{TASK}.VolumeMounts.0",
         {"Volume": "", "Destination": "", "ReadOnly": False, "PropagationMode": "private", "SELinuxLabel": ""}),
        ("periodic {}", "Periodic.Enabled", True),
        ("periodic {}", "Periodic.TimeZone", "UTC"),
        ("periodic {}", "Periodic.Spec", ""),
        ("parameterized {}", "ParameterizedJob.Payload", "optional"),
        ("spread {}", "Spreads.0.Weight", 50),
        ("affinity {}", "Affinities.0.Weight", 50),
        (in_task('resources {\n device "gpu" {}\n numa {}\n}'), f"{TASK}.Resources.Devices.0.Count", 1),
        (in_task("resources {\n numa {}\n}"), f"{TASK}.Resources.NUMA.Affinity", "none"),
        (in_task("csi_plugin {}"), f"{TASK}.CSIPluginConfig",
         {"ID": "", "Type": "", "MountDir": "/csi", "StagePublishBaseDir": "/local/csi", "HealthTimeout": 30 * SECOND}),
        ('multiregion {\n region "a" {}\n}', "Multiregion.Regions.0.Count", 1),
        (in_task("vault {}"), f"{TASK}.Vault.Cluster", "default"),
        (in_task("vault {}"), f"{TASK}.Vault.ChangeSignal", "SIGHUP"),
        (in_task("consul {}"), f"{TASK}.Consul.Cluster", "default"),
    ],
)  # fmt: skip
def test_the_canonical_form_has_all_defaults(body: str, path: str, value: object) -> None:
    assert find_value(read_canonical(body), path) == value


def test_a_lifecycle_that_sets_nothing_is_removed() -> None:
    job = read_canonical(in_task('lifecycle {\nhook = ""\n}'))

    assert find_value(job, f"{TASK}.Lifecycle") is None
