"""The canonical form of jobs: the defaults of the reference (jobs.md 2), and idempotence."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.builders import SECOND, a_check, a_group, a_job, a_service, a_task, some_job_settings
from tests.contract.model.submissions import jobs
from wharf.contract.model.decoding import convert_object
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.implied_constraints import add_implied_constraints
from wharf.contract.model.jobs.job import Job, Parameterized, Periodic
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.templates import Artifact, Template
from wharf.contract.model.jobs.validation import validate_job
from wharf.contract.model.jobs.volumes import VolumeRequest

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

SERVICE_RESTART = RestartPolicy(
    attempts=2, interval=30 * MINUTE, delay=15 * SECOND, mode="fail", render_templates=False
)
BATCH_RESTART = RestartPolicy(attempts=3, interval=24 * HOUR, delay=15 * SECOND, mode="fail", render_templates=False)
SERVICE_RESCHEDULE = ReschedulePolicy(
    attempts=0, interval=0, delay=30 * SECOND, delay_function="exponential", max_delay=HOUR, unlimited=True
)
BATCH_RESCHEDULE = ReschedulePolicy(
    attempts=1, interval=24 * HOUR, delay=5 * SECOND, delay_function="constant", max_delay=0, unlimited=False
)
FULL_UPDATE = UpdatePolicy(
    stagger=30 * SECOND, max_parallel=1, health_check="checks", min_healthy_time=10 * SECOND,
    healthy_deadline=5 * MINUTE, progress_deadline=10 * MINUTE, auto_revert=False, auto_promote=False, canary=0,
)  # fmt: skip
FULL_MIGRATE = MigratePolicy(
    max_parallel=1, health_check="checks", min_healthy_time=10 * SECOND, healthy_deadline=5 * MINUTE
)


def submitted(**fields: Any) -> Job:
    """Decode a job from JSON and return its canonical form."""
    return canonicalize_job(convert_object(Job, {"ID": "shop", **fields}).value, some_job_settings())


def first_group(job: Job) -> TaskGroup:
    return job.groups[0]


def one_group(**fields: Any) -> list[dict[str, Any]]:
    return [{"Name": "web", "Tasks": [{"Name": "t", "Driver": "d"}], **fields}]


@pytest.mark.parametrize(
    ("job_type", "restart", "reschedule", "update", "migrate"),
    [
        ("service", SERVICE_RESTART, SERVICE_RESCHEDULE, FULL_UPDATE, FULL_MIGRATE),
        ("batch", BATCH_RESTART, BATCH_RESCHEDULE, None, None),
        ("system", SERVICE_RESTART, None, FULL_UPDATE, None),
        ("sysbatch", BATCH_RESTART, None, None, None),
    ],
)
def test_default_policies_depend_on_the_job_type(
    job_type: str, restart: RestartPolicy, reschedule: ReschedulePolicy, update: UpdatePolicy, migrate: MigratePolicy
) -> None:
    group = first_group(submitted(Type=job_type, TaskGroups=one_group()))

    assert (group.restart_policy, group.reschedule_policy, group.update, group.migrate) == (
        restart, reschedule, update, migrate,
    )  # fmt: skip


@pytest.mark.parametrize("job_type", ["service", "batch", "system", "sysbatch"])
def test_a_job_built_in_code_gets_the_same_policies_as_a_decoded_one(job_type: str) -> None:
    read = submitted(Type=job_type, TaskGroups=one_group())
    built = canonicalize_job(
        a_job("shop", a_group("web", a_task("t", driver="d", config=None)), type=job_type), some_job_settings()
    )
    tasks = first_group(read).tasks

    assert msgspec.structs.replace(first_group(built), tasks=tasks) == first_group(read)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("name", "shop"),
        ("namespace", "default"),
        ("region", "global"),
        ("type", "service"),
        ("priority", 50),
        ("all_at_once", False),
        ("datacenters", ("*",)),
        ("node_pool", "default"),
        ("constraints", None),
        ("meta", None),
        ("stop", False),
        ("payload", None),
        ("version", 0),
    ],
)
def test_an_empty_job_gets_the_defaults(field: str, expected: object) -> None:
    assert expected == getattr(submitted(Meta={}, Constraints=[], Datacenters=[], Priority=0, Type=None), field)


def test_server_settings_provide_defaults() -> None:
    settings = some_job_settings(region="eu", node_pool="gpu", default_priority=40)

    job = canonicalize_job(a_job(), settings)

    assert (job.region, job.node_pool, job.priority) == ("eu", "gpu", 40)


def test_an_explicit_region_is_not_replaced() -> None:
    assert canonicalize_job(a_job(region="us"), some_job_settings(region="eu")).region == "us"


def test_groups_inherit_the_update_block_field_by_field() -> None:
    job = submitted(
        Update={"Canary": 1, "MaxParallel": 3}, TaskGroups=one_group(Update={"MaxParallel": 2, "AutoRevert": None})
    )

    assert msgspec.structs.replace(FULL_UPDATE, canary=1, max_parallel=2) == first_group(job).update


def test_the_job_keeps_only_two_fields_of_its_update_block() -> None:
    job = submitted(Update={"Canary": 1, "MaxParallel": 3}, TaskGroups=one_group())

    assert job.update == UpdatePolicy(
        stagger=30 * SECOND,
        max_parallel=3,
        health_check="",
        min_healthy_time=0,
        healthy_deadline=0,
        progress_deadline=0,
    )


def test_a_group_added_to_a_stored_job_gets_a_complete_update_block() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(submitted(TaskGroups=one_group())))
    stored["TaskGroups"].append({"Name": "new", "Tasks": []})

    assert submitted(**stored).groups[1].update == FULL_UPDATE


def test_an_explicit_zero_is_not_a_default() -> None:
    group = first_group(
        submitted(TaskGroups=one_group(Count=0, RestartPolicy={"Attempts": 0}, Update={"MaxParallel": 0}))
    )

    assert group.restart_policy is not None
    assert group.update is not None
    assert (group.count, group.restart_policy.attempts, group.update.max_parallel) == (0, 0, 0)


def test_groups_inherit_reschedule_and_migrate_from_the_job() -> None:
    group = first_group(
        submitted(Reschedule={"Delay": 60 * SECOND}, Migrate={"MaxParallel": 2}, TaskGroups=one_group())
    )

    assert group.reschedule_policy == msgspec.structs.replace(SERVICE_RESCHEDULE, delay=60 * SECOND)
    assert group.migrate == msgspec.structs.replace(FULL_MIGRATE, max_parallel=2)


def test_a_task_inherits_missing_restart_fields_from_its_group() -> None:
    tasks = [{"Name": "a", "RestartPolicy": {"Delay": SECOND}}, {"Name": "b"}]
    group = first_group(submitted(TaskGroups=one_group(RestartPolicy={"Attempts": 9}, Tasks=tasks)))

    assert [task.restart_policy for task in group.tasks or ()] == [
        msgspec.structs.replace(SERVICE_RESTART, attempts=9, delay=SECOND),
        msgspec.structs.replace(SERVICE_RESTART, attempts=9),
    ]


@pytest.mark.parametrize(
    ("group", "count", "low"),
    [
        ({}, 1, None),
        ({"Count": None}, 1, None),
        ({"Scaling": {"Min": 3, "Max": 9}}, 3, 3),
        ({"Count": 4, "Scaling": {"Max": 9}}, 4, 4),
        ({"Count": 4, "Scaling": {"Min": 2, "Max": 9}}, 4, 2),
        ({"Scaling": {"Max": 9}}, 1, 1),
    ],
)
def test_count_and_scaling_minimum_default_to_each_other(group: dict[str, Any], count: int, low: int | None) -> None:
    canonical = first_group(submitted(TaskGroups=one_group(**group)))

    assert (count, low) == (canonical.count, None if canonical.scaling is None else canonical.scaling.min)


def test_a_scaling_policy_gets_its_group_as_target() -> None:
    scaling = first_group(submitted(TaskGroups=one_group(Scaling={"Max": 9}))).scaling

    assert scaling is not None
    assert scaling.target == {"Namespace": "default", "Job": "shop", "Group": "web"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"MaxClientDisconnect": HOUR}, DisconnectPolicy(lost_after=HOUR)),
        ({"StopAfterClientDisconnect": HOUR}, DisconnectPolicy(stop_on_client_after=HOUR)),
        ({"PreventRescheduleOnLost": True}, DisconnectPolicy(replace=False)),
        ({"MaxClientDisconnect": HOUR, "Disconnect": {"LostAfter": 1}}, DisconnectPolicy(lost_after=1)),
        ({}, None),
    ],
)
def test_deprecated_disconnect_fields_are_converted_to_a_block(
    fields: dict[str, Any], expected: DisconnectPolicy | None
) -> None:
    group = first_group(submitted(TaskGroups=one_group(**fields)))

    assert group.disconnect == expected
    assert (
        group.stop_after_client_disconnect, group.max_client_disconnect, group.prevent_reschedule_on_lost,
    ) == (None, None, False)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (100, 0)),
        ({"Cores": 2}, (0, 2)),
        ({"CPU": 7}, (7, 0)),
        ({"CPU": 7, "Cores": 2}, (7, 2)),
        ({"Cores": 0}, (100, 0)),
    ],
)
def test_cores_replace_the_default_cpu(fields: dict[str, int], expected: tuple[int, int]) -> None:
    tasks = first_group(submitted(TaskGroups=one_group(Tasks=[{"Name": "t", "Resources": fields}]))).tasks or ()

    assert expected == (tasks[0].resources.cpu, tasks[0].resources.cores)


def test_an_empty_task_gets_the_defaults() -> None:
    task = (first_group(submitted(TaskGroups=one_group())).tasks or ())[0]

    assert task.identity is not None
    assert (
        task.resources.memory_mb, task.resources.memory_max_mb, task.kill_timeout, task.log_config.max_files,
        task.log_config.max_file_size_mb, task.log_config.disabled, task.identity.name,
    ) == (
        300, 0, 5 * SECOND, 10, 10, False, "default",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "of_group", "of_task"),
    [
        ("", "shop-web", "shop-web-t"),
        ("api", "api", "api"),
        ("${JOB}-${TASKGROUP}-x", "shop-web-x", "shop-web-x"),
        ("${BASE}-x", "shop-web-x", "shop-web-t-x"),
        ("${TASK}", "", "t"),
        ("${attr.x}", "${attr.x}", "${attr.x}"),
    ],
)
def test_variables_in_service_names_are_replaced(name: str, of_group: str, of_task: str) -> None:
    service = a_service(name)

    group = first_group(
        canonicalize_job(
            a_job("shop", a_group("web", a_task("t", services=(service,)), services=(service,))), some_job_settings()
        )
    )

    assert [of_group] == [found.name for found in group.services or ()]
    assert [of_task] == [found.name for task in group.tasks or () for found in task.services or ()]


def test_a_check_inherits_from_its_service() -> None:
    tasks = [{
        "Name": "t",
        "Services": [{
            "Name": "api", "Provider": "wharf", "PortLabel": "http", "OnUpdate": "ignore", "CheckRestart": {"Limit": 3},
            "Checks": [{"Type": "http"}, {"Name": "mine", "PortLabel": "admin", "CheckRestart": {"Grace": 5 * SECOND}}],
        }],
    }]  # fmt: skip
    services = (first_group(submitted(TaskGroups=one_group(Tasks=tasks))).tasks or ())[0].services or ()

    assert [
        (check.name, check.port_label, check.on_update, check.check_restart and check.check_restart.limit, check.check_restart and check.check_restart.grace)
        for check in services[0].checks or ()
    ] == [('service: "api" check', "http", "ignore", 3, SECOND), ("mine", "admin", "ignore", 3, 5 * SECOND)]  # fmt: skip
    assert services[0].task_name == "t"
    assert services[0].namespace == "default"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (Template(), ("restart", "", "0644", "{{", "}}", 5 * SECOND)),
        (Template(change_mode="signal"), ("signal", "SIGHUP", "0644", "{{", "}}", 5 * SECOND)),
        (
            Template(change_mode="signal", change_signal="sigusr1"),
            ("signal", "SIGUSR1", "0644", "{{", "}}", 5 * SECOND),
        ),
        (Template(change_mode="", perms="", left_delim="<<", splay=0), ("restart", "", "0644", "<<", "}}", 0)),
    ],
)
def test_templates_get_their_defaults(template: Template, expected: tuple[object, ...]) -> None:
    task = (
        first_group(
            canonicalize_job(a_job("shop", a_group("web", a_task(templates=(template,)))), some_job_settings())
        ).tasks
        or ()
    )[0]
    canonical = (task.templates or ())[0]

    assert expected == (
        canonical.change_mode,
        canonical.change_signal,
        canonical.perms,
        canonical.left_delim,
        canonical.right_delim,
        canonical.splay,
    )


@pytest.mark.parametrize(
    ("artifact", "expected"),
    [
        (Artifact(getter_source="https://host/a/b.zip"), "local/"),
        (Artifact(getter_source="https://host/a/b.zip?x=1", getter_mode="file"), "local/b.zip"),
        (Artifact(relative_dest="elsewhere"), "elsewhere"),
    ],
)
def test_artifacts_get_a_destination(artifact: Artifact, expected: str) -> None:
    task = (
        first_group(
            canonicalize_job(a_job("shop", a_group("web", a_task(artifacts=(artifact,)))), some_job_settings())
        ).tasks
        or ()
    )[0]

    assert expected == (task.artifacts or ())[0].relative_dest


def test_ports_belong_to_the_default_host_network() -> None:
    network = NetworkResource(dynamic_ports=(Port(label="http"),), reserved_ports=())
    group = first_group(canonicalize_job(a_job("shop", a_group(networks=(network,))), some_job_settings()))

    assert group.networks == (NetworkResource(dynamic_ports=(Port(label="http", host_network="default"),)),)


def test_volumes_of_an_unknown_type_are_dropped_and_others_get_their_name() -> None:
    volumes = {"data": VolumeRequest(type="host", source="d"), "odd": VolumeRequest(type="nfs")}

    group = first_group(canonicalize_job(a_job("shop", a_group(volumes=volumes)), some_job_settings()))

    assert group.volumes == {"data": VolumeRequest(name="data", type="host", source="d")}


def test_periodic_and_parameterized_blocks_get_their_defaults() -> None:
    job = canonicalize_job(
        a_job(
            periodic=Periodic(spec_type="", time_zone="", specs=()),
            parameterized_job=Parameterized(payload="", meta_required=()),
        ),
        some_job_settings(),
    )

    assert job.periodic == Periodic(
        enabled=True, spec="", specs=None, spec_type="cron", prohibit_overlap=False, time_zone="UTC"
    )
    assert job.parameterized_job == Parameterized(payload="optional", meta_required=None, meta_optional=None)


def test_tasks_inherit_vault_and_consul_namespaces_from_the_job() -> None:
    job = submitted(
        VaultNamespace="v", ConsulNamespace="c",
        TaskGroups=one_group(Tasks=[{"Name": "t", "Vault": {"Role": "r"}, "Consul": {"Cluster": "x"}}]),
    )  # fmt: skip
    group = first_group(job)
    task = (group.tasks or ())[0]

    assert group.consul is not None
    assert task.consul is not None
    assert task.vault is not None
    assert (group.consul.namespace, task.consul.namespace, task.vault.namespace) == ("c", "c", "v")


def test_a_canonical_job_is_returned_unchanged_without_copying_its_tasks() -> None:
    job = canonicalize_job(a_job("shop", a_group("web", a_task(services=()), services=None)), some_job_settings())

    assert canonicalize_job(job, some_job_settings()) is job


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_the_canonical_form_of_a_canonical_job_is_itself(submitted_job: dict[str, Any]) -> None:
    once = add_implied_constraints(canonicalize_job(convert_object(Job, submitted_job).value, some_job_settings()))

    assert add_implied_constraints(canonicalize_job(once, some_job_settings())) == once


def test_an_update_block_of_zeros_is_not_treated_as_missing() -> None:
    job = canonicalize_job(
        convert_object(Job, {"ID": "web", "Update": {"MaxParallel": 0, "Stagger": 0}}).value, some_job_settings()
    )

    assert job.update is not None
    assert (job.update.max_parallel, job.update.stagger) == (0, 0)


@settings(max_examples=150, deadline=None)
@given(jobs)
def test_resubmitting_a_stored_job_does_not_change_it(submitted_job: dict[str, Any]) -> None:
    stored = add_implied_constraints(canonicalize_job(convert_object(Job, submitted_job).value, some_job_settings()))
    shown = msgspec.json.decode(msgspec.json.encode(stored))

    assert add_implied_constraints(canonicalize_job(convert_object(Job, shown).value, some_job_settings())) == stored


@settings(max_examples=100, deadline=None)
@given(jobs)
def test_every_decodable_job_can_be_validated(submitted_job: dict[str, Any]) -> None:
    findings = validate_job(
        canonicalize_job(convert_object(Job, submitted_job).value, some_job_settings()), some_job_settings()
    )

    assert findings.is_valid == (findings.text == "")


def test_a_check_built_in_code_can_be_encoded_as_json() -> None:
    service = a_service(port_label="http", checks=(a_check(),))
    job = canonicalize_job(a_job("shop", a_group("web", services=(service,))), some_job_settings())

    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
