"""Job records: wire names, and round trips through JSON and MessagePack."""

import msgspec
import pytest

from tests.builders import (
    a_batch_job,
    a_check,
    a_group,
    a_job,
    a_parameterized_job,
    a_periodic_job,
    a_service,
    a_task,
    admitted,
    some_resources,
)
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread, SpreadTarget
from wharf.contract.model.jobs.group_policies import DisconnectPolicy
from wharf.contract.model.jobs.groups import CSIPluginConfig, DispatchPayload, Lifecycle, TaskAction
from wharf.contract.model.jobs.identities import Consul, TaskSecret, Vault, WorkloadIdentity
from wharf.contract.model.jobs.job import UI, Job, JobStatus, Multiregion, MultiregionRegion, UILink, VersionTag
from wharf.contract.model.jobs.networks import CNI, DNS, NetworkResource, Port
from wharf.contract.model.jobs.resources import NUMA, RequestedDevice
from wharf.contract.model.jobs.services import CheckRestart, ServiceWeights
from wharf.contract.model.jobs.templates import Artifact, ChangeScript, Template, TemplateWait
from wharf.contract.model.jobs.volumes import MountOptions, VolumeMount, VolumeRequest
from wharf.contract.model.scaling import ScalingPolicy


def a_full_job() -> Job:
    """Return a job that uses every record of a specification."""
    constraint = Constraint(l_target="${attr.cpu.arch}", operand="=", r_target="arm64")
    affinity = Affinity(l_target="${node.class}", operand="=", r_target="big", weight=-20)
    service = a_service(
        port_label="http", checks=(a_check(header={"Host": ("a", "b")}, check_restart=CheckRestart(limit=1)),),
        tags=("t",), meta={"k": "v"}, weights=ServiceWeights(passing=2), identity=WorkloadIdentity(audience=("aud",)),
        connect={"Native": True},
    )  # fmt: skip
    task = a_task(
        "t", services=(service,), vault=Vault(role="r"), consul=Consul(partition="p"), constraints=(constraint,),
        templates=(Template(dest_path="local/x", wait=TemplateWait(min=1), change_script=ChangeScript(command="c"), uid=0),),
        affinities=(affinity,), dispatch_payload=DispatchPayload(file="f"), lifecycle=Lifecycle(hook="prestart"),
        resources=some_resources(
            networks=(NetworkResource(mbits=10),), numa=NUMA(affinity="prefer", devices=("gpu",)),
            devices=(RequestedDevice(name="gpu", count=2, constraints=(constraint,)),),
        ),
        artifacts=(Artifact(getter_source="s", getter_options={"a": "b"}),), volume_mounts=(VolumeMount(volume="v"),),
        scaling_policies=(ScalingPolicy(type="vertical_cpu"),), csi_plugin_config=CSIPluginConfig(id="i"),
        identity=WorkloadIdentity(), identities=(WorkloadIdentity(name="n", ttl=5),), secrets=(TaskSecret(name="s"),),
        actions=(TaskAction(name="a", command="c", args=("x",)),), schedule={"Cron": 1},
    )  # fmt: skip
    group = a_group(
        "g", task, disconnect=DisconnectPolicy(stop_on_client_after=9), consul=Consul(),
        scaling=ScalingPolicy(min=1, max=3, policy={"p": [1, {"q": None}]}), services=(service,), shutdown_delay=5,
        spreads=(Spread(attribute="${node.datacenter}", spread_target=(SpreadTarget(value="a", percent=7),)),),
        networks=(NetworkResource(mode="bridge", dns=DNS(servers=("1.1.1.1",)), cni=CNI(args={"a": "b"}), reserved_ports=(Port(label="http", value=80, to=-1),)),),
        volumes={"v": VolumeRequest(name="v", type="csi", mount_options=MountOptions(fs_type="ext4", mount_flags=("ro",)))},
    )  # fmt: skip
    return a_job(
        "full", group, meta={"m": "n"}, ui=UI(description="d", links=(UILink(label="l", url="u"),)), payload=b"\x00\xff",
        multiregion=Multiregion(regions=(MultiregionRegion(name="r"),)), version_tag=VersionTag(name="v", tagged_time=3),
        status=JobStatus.RUNNING, submitter_accessor_id="accessor", parent_id="p", dispatched=True, version=3, submit_time=4,
        create_index=1, modify_index=2, job_modify_index=2,
    )  # fmt: skip


@pytest.mark.parametrize("job", [a_full_job(), admitted(a_full_job()), admitted(a_batch_job())])
def test_a_job_survives_json_and_msgpack(job: Job) -> None:
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=Job) == job


def names_in(value: object) -> set[str]:
    if isinstance(value, dict):
        return {name for key, item in value.items() for name in (key, *names_in(item))}
    if isinstance(value, list):
        return {name for item in value for name in names_in(item)}
    return set()


# Spellings that the general rule could get wrong (jobs.md 2).
ODD_NAMES = [
    "ID",
    "ParentID",
    "NomadTokenID",
    "TaggedTime",
    "UI",
    "Url",
    "LTarget",
    "RTarget",
    "Operand",
    "CPU",
    "MemoryMB",
    "MemoryMaxMB",
    "DiskMB",
    "SecretsMB",
    "IOPS",
    "NUMA",
    "MBits",
    "DNS",
    "CNI",
    "FSType",
    "MountFlags",
    "SizeMB",
    "MaxFileSizeMB",
    "EmbeddedTmpl",
    "DestPath",
    "ErrMissingKey",
    "Uid",
    "Gid",
    "VaultGrace",
    "GetterSource",
    "RelativeDest",
    "TLSServerName",
    "TLSSkipVerify",
    "GRPCService",
    "GRPCUseTLS",
    "SELinuxLabel",
    "CSIPluginConfig",
    "TTL",
    "EnableTagOverride",
    "StopOnClientAfter",
    "ReschedulePolicy",
    "RestartPolicy",
    "ParameterizedJob",
    "MetaRequired",
    "TimeZone",
    "StopAfterClientDisconnect",
    "PreventRescheduleOnLost",
    "SpreadTarget",
    "JobModifyIndex",
    "DispatchIdempotencyToken",
    "AllAtOnce",
    "VaultNamespace",
    "Filepath",
    "PerAlloc",
    "HostNetwork",
]


def test_wire_names_equal_the_names_in_the_reference() -> None:
    jobs = [a_full_job(), a_periodic_job(), a_parameterized_job()]
    shown = {name for job in jobs for name in names_in(msgspec.json.decode(msgspec.json.encode(admitted(job))))}

    # What is dropped as empty is not expected: a port without a label, for example.
    assert set(ODD_NAMES) - shown == set()


def test_nil_lists_and_maps_are_null_and_networks_are_sparse() -> None:
    network = NetworkResource(dynamic_ports=(Port(label="p"),))
    shown = msgspec.json.decode(msgspec.json.encode(admitted(a_job("x", a_group(networks=(network,))))))

    assert shown["Constraints"] is None
    assert shown["Meta"] is None
    assert shown["TaskGroups"][0]["Networks"] == [{"DynamicPorts": [{"Label": "p", "HostNetwork": "default"}]}]


def test_the_payload_travels_as_base64() -> None:
    assert msgspec.to_builtins(a_full_job())["Payload"] == "AP8="


@pytest.mark.parametrize(
    ("job", "periodic", "active", "parameterized"),
    [
        (a_job(), False, False, False),
        (a_periodic_job(), True, True, False),
        (msgspec.structs.replace(a_periodic_job(), stop=True), True, False, False),
        (a_parameterized_job(), False, False, True),
        (msgspec.structs.replace(a_parameterized_job(), dispatched=True), False, False, False),
        (
            msgspec.structs.replace(a_periodic_job(), parameterized_job=a_parameterized_job().parameterized_job),
            True,
            False,
            True,
        ),
    ],
)
def test_periodic_and_parameterized_jobs_create_children(
    job: Job, periodic: bool, active: bool, parameterized: bool
) -> None:
    assert (job.is_periodic, job.is_active_periodic, job.is_parameterized) == (periodic, active, parameterized)


def test_a_group_is_found_by_its_name() -> None:
    job = a_job("x", a_group("a"), a_group("b"))

    assert job.find_group("b") == job.groups[1]
    assert job.find_group("c") is None


def test_a_group_of_a_job_with_many_groups_is_found_by_its_name() -> None:
    jobs = [a_job(f"x{number}", *(a_group(f"g{each}", count=number) for each in range(40))) for number in range(6)]

    for job in [*jobs, *jobs]:
        assert job.find_group("g39") is job.groups[39]
        assert job.find_group("g40") is None


def test_of_two_groups_with_one_name_the_first_is_found() -> None:
    job = a_job("x", *(a_group("same", count=number) for number in range(40)))

    assert job.find_group("same") is job.groups[0]
