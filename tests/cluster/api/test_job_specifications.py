"""Requests with a job specification: register, plan and validate (jobs.md 1.1, 1.2, 5 and 6)."""

import json
from typing import Any

import msgspec
import pytest

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job, a_task
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import store as store_records
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOBS, NAMESPACES, NODES
from wharf.contract.model.jobs.job import Multiregion
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import DriverInfo, NodeHostVolume
from wharf.contract.model.scaling import ScalingPolicy

SERVER: Any = {"Name": "server", "Driver": "raw_exec", "Config": {"command": "/bin/sh"}}
SHOP: Any = {"ID": "shop", "TaskGroups": [{"Name": "web", "Tasks": [SERVER]}]}


async def with_namespace(server: OneServer, name: str) -> None:
    namespace = Namespace(name=name, create_index=WRITE_INDEX)
    await server.server.writer.commit(Write("test", Cause(CauseKind.REQUEST), [NAMESPACES.build_put(namespace)]))
    await server.server.writer.catch_up()


# -- register


@in_virtual_time
async def test_a_registration_returns_evaluation_indexes_and_warnings() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        result = await ApiClient(server).put("/v1/jobs", {"Job": SHOP})

        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None
        assert result == {
            "EvalID": result["EvalID"],
            "EvalCreateIndex": job.create_index,
            "JobModifyIndex": job.job_modify_index,
            "Warnings": "",
            "Index": job.create_index,
            "LastContact": 0,
            "KnownLeader": False,
            "NextToken": "",
        }
        assert len(result["EvalID"]) == 36


@in_virtual_time
async def test_a_periodic_registration_returns_the_next_five_launches_and_no_evaluation() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        result = await client.put("/v1/jobs", {"Job": a_periodic_job("nightly")})
        planned = await client.put("/v1/job/nightly/plan", {"Job": a_periodic_job("nightly")})

        assert result["EvalID"] == ""
        times = result["NextPeriodicLaunches"]
        assert [time[10:] for time in times] == ["T03:00:00Z"] * 5
        assert (planned["NextPeriodicLaunch"], planned["NextPeriodicLaunches"]) == (times[0], times)


@in_virtual_time
async def test_only_periodic_jobs_have_a_list_of_launches_which_may_be_empty() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        job = a_periodic_job("never", spec="0 0 31 2 *")

        without_launch = [await client.put(f"/v1/{path}", {"Job": job}) for path in ("jobs", "job/never/plan")]
        second = await client.put("/v1/jobs", {"Job": a_parameterized_job("convert")})

        assert [each["NextPeriodicLaunches"] for each in without_launch] == [[], []]
        assert "NextPeriodicLaunches" not in second


@in_virtual_time
async def test_the_namespace_of_the_query_overrides_that_of_the_body_and_that_of_the_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = ApiClient(server)
        for name in ("a", "b", "c"):
            await with_namespace(server, name)

        await client.put("/v1/jobs", {"Job": {**SHOP, "Namespace": "c"}, "Namespace": "b"}, namespace="a")
        await client.put("/v1/jobs", {"Job": {**SHOP, "Namespace": "c"}, "Namespace": "b"})
        await client.put("/v1/jobs", {"Job": {**SHOP, "Namespace": "c"}})
        await client.put("/v1/jobs", {"Job": SHOP})

        assert [job.namespace for job in server.replica.iter_all(JOBS)] == ["a", "b", "c", "default"]


@in_virtual_time
async def test_a_source_is_stored_and_read_by_its_version() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        source = {"Source": "job {}", "Format": "hcl2", "VariableFlags": {"a": "b"}, "Variables": "c = 1"}

        result = await client.put("/v1/jobs", {"Job": SHOP, "Submission": source})
        read = await client.get("/v1/job/shop/submission", version=0)

        target_id = {"Namespace": "default", "JobID": "shop", "Version": 0, "JobModifyIndex": result["JobModifyIndex"]}
        assert {**source, **target_id}.items() <= read.items()


@in_virtual_time
async def test_sensitive_fields_are_stored_with_a_source_and_hidden_in_differences() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        source = {"Source": "job {}", "Format": "hcl2", "SensitiveFields": ["/Meta/key"]}
        await client.put("/v1/jobs", {"Job": {**SHOP, "Meta": {"key": "old-secret", "b": "1"}}, "Submission": source})
        new = {**SHOP, "Meta": {"key": "new-secret", "b": "2"}}

        plan = await client.put("/v1/job/shop/plan", {"Job": new, "Diff": True})
        removal = await client.put("/v1/job/shop/plan", {"Job": SHOP, "Diff": True})
        other = await client.put("/v1/job/shop/plan", {"Job": new, "Diff": True, "SensitiveFields": ["/Meta/b"]})
        await client.put("/v1/jobs", {"Job": new})
        versions = await client.get("/v1/job/shop/versions", diffs="true")

        assert (await client.get("/v1/job/shop/submission", version=0))["SensitiveFields"] == ["/Meta/key"]
        assert list_texts(plan["Diff"]) == [("Meta[b]", "1", "2"), ("Meta[key]", "(hidden)", "(hidden)")]
        assert list_texts(removal["Diff"]) == [("Meta[b]", "1", ""), ("Meta[key]", "(hidden)", "")]
        assert list_texts(other["Diff"]) == [
            ("Meta[b]", "(hidden)", "(hidden)"), ("Meta[key]", "(hidden)", "(hidden)"),
        ]  # fmt: skip
        assert [list_texts(diff) for diff in versions["Diffs"]] == [list_texts(plan["Diff"])]


def list_texts(diff: Any) -> list[tuple[str, str, str]]:
    """Return the names of the changed fields of a job itself, with their texts."""
    return [(field["Name"], field["Old"], field["New"]) for field in diff["Fields"] or ()]


@in_virtual_time
async def test_a_version_that_is_reverted_to_has_its_sensitive_fields_again() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        source = {"Source": "job {}", "Format": "hcl2", "SensitiveFields": ["/Meta/key"]}
        await client.put("/v1/jobs", {"Job": {**SHOP, "Meta": {"key": "secret"}}, "Submission": source})
        await client.put("/v1/jobs", {"Job": SHOP})

        await client.put("/v1/job/shop/revert", {"JobID": "shop", "JobVersion": 0})

        assert (await client.get("/v1/job/shop/submission", version=2))["SensitiveFields"] == ["/Meta/key"]


@in_virtual_time
async def test_the_sensitive_fields_of_a_source_that_is_too_large_are_stored_without_it() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        source = {"Source": "x" * 2_000_000, "Format": "hcl2", "SensitiveFields": ["/Meta/key"]}
        await client.put("/v1/jobs", {"Job": {**SHOP, "Meta": {"key": "old-secret"}}, "Submission": source})
        plan = await client.put("/v1/job/shop/plan", {"Job": SHOP, "Diff": True})

        assert list_texts(plan["Diff"]) == [("Meta[key]", "(hidden)", "")]
        assert await client.refusal("GET", "/v1/job/shop/submission", version=0) == (404, "job source not found")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", {"Submission": {"SensitiveFields": ["Meta.key"]}}, "Submission.SensitiveFields[0]"),
        ("/v1/job/shop/plan", {"SensitiveFields": ["/Meta", "x"]}, "SensitiveFields[1]"),
    ],
)
@in_virtual_time
async def test_a_sensitive_field_that_is_no_pointer_is_refused(path: str, body: dict[str, Any], field: str) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        refusal = await ApiClient(server).refusal("PUT", path, {"Job": SHOP, **body})

        assert refusal == (400, f"{field}: expected a JSON pointer such as /TaskGroups/0/Tasks/0/Env/PASSWORD")
        assert list(server.replica.iter_all(JOBS)) == []


@in_virtual_time
async def test_a_job_with_the_mark_of_a_hidden_value_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        status, text = await ApiClient(server).refusal(
            "PUT", "/v1/jobs", {"Job": {**SHOP, "Meta": {"url": "pg://(hidden)"}}}
        )

        assert status == 400
        assert "The value has (hidden), which outputs have in place of a secret (Meta.url): write the value" in text
        assert list(server.replica.iter_all(JOBS)) == []


@in_virtual_time
async def test_reading_a_source_requires_a_version() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        await client.put("/v1/jobs", {"Job": SHOP})
        path = "/v1/job/shop/submission"

        assert await client.refusal("GET", path) == (400, "Unable to parse job submission version parameter")
        status, text = await client.refusal("GET", path, version="x")
        assert (status, text.startswith("Unable to parse job submission version parameter")) == (400, True)
        assert await client.refusal("GET", path, version=0) == (404, "job source not found")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Request body is empty"),
        ({}, "Job must be specified"),
        (b"null", "Job must be specified"),
        ({"Job": None}, "Job must be specified"),
        ({"Job": {}}, "Job.ID: Job ID hasn't been provided"),
        ({"Job": SHOP, "EvalPriority": 101}, "Eval priority must be between 1 and 100 inclusively"),
        ({"Job": SHOP, "EvalPriority": -1}, "Eval priority must be between 1 and 100 inclusively"),
        ({"Job": SHOP, "EnforceIndex": True, "JobModifyIndex": 9}, "Enforcing job modify index 9: job does not exist"),
        (
            {"Job": {**SHOP, "Region": "moon"}},
            "No path to region: this region is global; send the request with `region=moon`",
        ),
    ],
)
def test_an_invalid_registration_is_a_400(body: Any, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())

            assert await client.refusal("PUT", "/v1/jobs", body) == (400, text)

    run()


@in_virtual_time
async def test_a_job_that_violates_rules_is_a_400_that_lists_all_violations() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        job = {**SHOP, "ID": "", "Priority": 900, "Type": "_core", "Payload": "eA=="}

        status, text = await client.refusal("PUT", "/v1/jobs", {"Job": job})

        assert status == 400
        assert not text.endswith("\n")
        for line in (
            "Missing job ID",
            "priority must be between [1, 90]",
            "cannot be core",
            "submitted with a payload",
        ):
            assert line in text


@in_virtual_time
async def test_an_invalid_duration_is_a_400_that_names_the_expected_format() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        job = {**SHOP, "TaskGroups": [{"Name": "web", "ShutdownDelay": "30s"}]}

        status, text = await client.refusal("PUT", "/v1/jobs", {"Job": job})

        assert (status, text.split(":")[0]) == (400, "Job.TaskGroups[0].ShutdownDelay")
        assert "30000000000" in text


@in_virtual_time
async def test_a_multiregion_job_is_refused_with_an_explanation() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        status, text = await client.refusal("PUT", "/v1/jobs", {"Job": a_job(multiregion=Multiregion())})

        assert status == 400
        assert "Multiregion jobs are not supported (Multiregion): submit the job to each region" in text


@in_virtual_time
async def test_the_path_and_the_job_must_agree() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        assert await client.refusal("PUT", "/v1/job/store", {"Job": SHOP}) == (400, "Job ID does not match name")
        assert await client.refusal("PUT", "/v1/job/store/plan", {"Job": SHOP}) == (400, "Job ID does not match")
        assert (await client.put("/v1/job/shop", {"Job": SHOP}))["EvalID"] != ""


@in_virtual_time
async def test_counts_and_resources_are_preserved_on_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job("shop", a_group(count=7))})

        repeated = {"Job": {**SHOP, "Priority": 60}, "PreserveCounts": True, "PreserveResources": True}
        await client.put("/v1/jobs", repeated)

        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None
        (group,) = job.groups
        (task,) = group.tasks or ()
        assert (group.count, task.resources.memory_mb, job.priority) == (7, 64, 60)


# -- further rights


@in_virtual_time
async def test_host_volumes_and_policy_overrides_need_their_own_rights() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        rules = 'namespace "default" { policy = "write" }\nhost_volume "cache" { policy = "read" }'
        client = ApiClient(server, await a_token(server, rules))

        def job(source: str, *, read_only: bool) -> dict[str, Any]:
            volume = VolumeRequest(type="host", source=source, read_only=read_only)
            return {"Job": a_job("shop", a_group(volumes={"v": volume}))}

        denied = (403, "Permission denied")
        for path in ("/v1/jobs", "/v1/job/shop/plan"):
            assert await client.refusal("PUT", path, job("cache", read_only=False)) == denied
            assert await client.refusal("PUT", path, job("data", read_only=True)) == denied
            assert await client.refusal("PUT", path, {"Job": SHOP, "PolicyOverride": True}) == denied
            await client.put(path, job("cache", read_only=True))


@in_virtual_time
async def test_the_job_shows_the_accessor_of_the_token_that_submitted_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        client = ApiClient(server, await a_token(server, 'namespace "default" { policy = "write" }'))

        await client.put("/v1/jobs", {"Job": SHOP})

        result = (await client.get("/v1/job/shop"))["NomadTokenID"]
        assert len(result) == 36


# -- plan


@in_virtual_time
async def test_a_plan_returns_differences_placements_and_the_index_to_register_with() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        client = ApiClient(server)
        stored = await client.put("/v1/jobs", {"Job": a_job("shop", a_group(count=1))})

        reply = await client.raw("PUT", "/v1/job/shop/plan", {"Job": a_job("shop", a_group(count=2)), "Diff": True})

        result = json.loads(reply.body)
        assert result["JobModifyIndex"] == result["Index"] == stored["JobModifyIndex"]
        assert reply.headers["x-cluster-index"] == str(result["Index"])
        assert result["Diff"]["Type"] == "Edited"
        assert result["Annotations"]["DesiredTGUpdates"]["web"]["Place"] >= 1
        assert (result["FailedTGAllocs"], result["CreatedEvals"], result["NextPeriodicLaunch"]) == (None, None, None)


@in_virtual_time
async def test_a_plan_stores_nothing_and_fails_like_a_registration() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        client = ApiClient(server)
        invalid = {"Job": {**SHOP, "Priority": 900}}

        planned = await client.refusal("PUT", "/v1/job/shop/plan", invalid)
        registered = await client.refusal("PUT", "/v1/jobs", invalid)
        await client.put("/v1/job/shop/plan", {"Job": SHOP, "Diff": True})

        assert planned == registered
        assert server.replica.get(JOBS, "default", "shop") is None
        assert await client.refusal("PUT", "/v1/job/shop/plan", {}) == (400, "Job must be specified")


# -- validate


@in_virtual_time
async def test_a_validation_returns_the_errors_of_a_job_as_a_success() -> None:
    async with ACluster() as cluster:
        reply = await ApiClient(await cluster.a_server()).raw("PUT", "/v1/validate/job", {"Job": {}})

        result = json.loads(reply.body)
        assert (reply.status, result["DriverConfigValidated"]) == (200, True)
        assert "x-cluster-index" not in reply.headers
        assert [line.split(" (")[0] for line in result["ValidationErrors"]][:2] == [
            "Missing job ID",
            "Missing job name",
        ]
        assert result["Error"].startswith(f"{len(result['ValidationErrors'])} errors occurred:\n\t* Missing job ID")


@in_virtual_time
async def test_a_valid_job_has_no_errors_and_its_warnings_are_returned() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        result = await client.put("/v1/validate/job", {"Job": {**SHOP, "Colour": "red"}})

        assert (result["ValidationErrors"], result["Error"]) == (None, "")
        assert "Job.Colour is not a known field" in result["Warnings"]


@in_virtual_time
async def test_a_validation_without_a_job_is_a_400() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        assert await client.refusal("PUT", "/v1/validate/job") == (400, "Request body is empty")
        assert await client.refusal("PUT", "/v1/validate/job", {}) == (400, "Job must be specified")


# -- unknown names


@in_virtual_time
async def test_unknown_fields_and_options_of_drivers_are_warnings_of_registrations_plans_and_validations() -> None:
    task = {"Name": "server", "Driver": "raw_exec", "Config": {"command": "x", "arg": []}, "Resources": {"Memory": 1}}
    job = {"ID": "shop", "TaskGroups": [{"Name": "web", "Cuont": 2, "Tasks": [task]}]}
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        for path in ("/v1/jobs", "/v1/job/shop/plan", "/v1/validate/job"):
            warnings = (await client.put(path, {"Job": job}))["Warnings"]

            assert "Job.TaskGroups[0].Cuont is not a known field: did you mean Count?" in warnings
            assert "Job.TaskGroups[0].Tasks[0].Resources.Memory is not a known field" in warnings
            assert (
                'unknown key "arg" for driver raw_exec (TaskGroups[0].Tasks[0].Config.arg): did you mean "args"?'
            ) in warnings


@in_virtual_time
@pytest.mark.parametrize(("fields", "warned"), [({}, False), ({"Provider": ""}, False), ({"Provider": "consul"}, True)])
async def test_a_service_of_nomad_without_a_provider_or_with_consul_is_placed_and_registered(
    fields: dict[str, str], warned: bool
) -> None:
    service = {"Name": "web", "PortLabel": "http", **fields}
    network = {"DynamicPorts": [{"Label": "http"}]}
    implied = {"LTarget": "${attr.consul.version}", "Operand": "semver", "RTarget": ">= 1.8.0"}
    group = {
        "Name": "web",
        "Networks": [network],
        "Services": [service],
        "Constraints": [implied],
        "Tasks": [{"Name": "server", "Driver": "mock"}],
    }
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        reply = await client.put("/v1/jobs", {"Job": {"ID": "shop", "TaskGroups": [group]}})
        stored = (await client.get("/v1/job/shop"))["TaskGroups"][0]

    assert "nomad" == stored["Services"][0]["Provider"]
    assert ["${attr.wharf.service_discovery}"] == [each["LTarget"] for each in stored["Constraints"]]
    assert warned == ("Wharf has no Consul" in reply["Warnings"])


@in_virtual_time
@pytest.mark.parametrize(
    ("driver", "error", "warning"),
    [
        ("dcoker", 'no node has the driver "dcoker" (TaskGroups[0].Tasks[0].Driver): did you mean "docker"?', ""),
        ("podman", "", 'no node has the driver "podman" (TaskGroups[0].Tasks[0].Driver)'),
        ("exec2", "", 'no node has the driver "exec2" (TaskGroups[0].Tasks[0].Driver)'),
        ("dockers", "", ""),
        ("docker", "", 'no node has the driver "docker" ready (TaskGroups[0].Tasks[0].Driver)'),
        ("mock_driver", "", ""),
    ],
)
async def test_a_validation_reports_a_driver_that_neither_wharf_nor_a_node_has(
    driver: str, error: str, warning: str
) -> None:
    group = {"Name": "web", "Tasks": [{"Name": "server", "Driver": driver, "Config": {"image": "x"}}]}
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_records(server, NODES.build_put(a_node(drivers={"dockers": DriverInfo(), "docker": DriverInfo()})))
        client = ApiClient(server)

        reply = await client.put("/v1/validate/job", {"Job": {"ID": "shop", "TaskGroups": [group]}})

        assert (error != "", warning != "") == (bool(reply["Error"]), "no node has" in reply["Warnings"])
        assert error in reply["Error"]
        assert warning in reply["Warnings"]


@in_virtual_time
async def test_a_validation_warns_of_a_volume_that_no_node_has_and_refuses_csi() -> None:
    volumes = {"data": {"Type": "host", "Source": "data"}, "other": {"Type": "host", "Source": "other"}}
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await store_records(server, NODES.build_put(a_node(host_volumes={"other": NodeHostVolume(name="other")})))
        client = ApiClient(server)

        async def validate(**fields: Any) -> Any:
            group = {"Name": "web", "Tasks": [{"Name": "server", "Driver": "mock"}], **fields}
            return await client.put("/v1/validate/job", {"Job": {"ID": "shop", "TaskGroups": [group]}})

        host = await validate(Volumes=volumes)
        csi = await validate(Volumes={"data": {"Type": "csi", "Source": "data"}})

    assert 'no node has the volume "data"' in host["Warnings"]
    assert '"other"' not in host["Warnings"]
    assert "CSI storage plugins are not supported" in csi["Error"]


@in_virtual_time
async def test_a_template_with_an_unknown_function_refuses_registrations_and_validations() -> None:
    template = {"DestPath": "local/a", "EmbeddedTmpl": '\n[[ key "a" ]]', "LeftDelim": "[[", "RightDelim": "]]"}
    task = {"Name": "server", "Driver": "mock", "Templates": [template]}
    job = {"ID": "shop", "TaskGroups": [{"Name": "web", "Tasks": [task]}]}
    message = "template, line 2, column 4: key is not a function: Wharf has no Consul"
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        status, text = await client.refusal("PUT", "/v1/jobs", {"Job": job})

        assert (400, True) == (status, message in text)
        assert message in (await client.put("/v1/validate/job", {"Job": job}))["Error"]


@in_virtual_time
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"command": "sh", "args": "x"},
            '"args" for driver raw_exec takes a list of texts, not "x" (TaskGroups[0].Tasks[0].Config.args): write ["x"]',
        ),
        (
            {"comand": "sh"},
            'needs the option "command" (TaskGroups[0].Tasks[0].Config.comand): write command instead of "comand"',
        ),
        (
            None,
            'needs the option "command" (TaskGroups[0].Tasks[0].Config): add command to its config, such as "/bin/sh"',
        ),
    ],
)
async def test_a_wrong_or_missing_option_refuses_registrations_plans_and_validations(config: Any, message: str) -> None:
    task = {"Name": "server", "Driver": "raw_exec", "Config": config}
    job = {"ID": "shop", "TaskGroups": [{"Name": "web", "Tasks": [task]}]}
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        for path in ("/v1/jobs", "/v1/job/shop/plan"):
            status, text = await client.refusal("PUT", path, {"Job": job})

            assert (400, True) == (status, message in text)
        assert message in (await client.put("/v1/validate/job", {"Job": job}))["Error"]


# -- other limits


@in_virtual_time
async def test_a_large_source_is_dropped_with_a_warning() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = {"Job": SHOP, "Submission": {"Source": "x" * 2_000_000, "Format": "json"}}

        result = await ApiClient(server).put("/v1/jobs", body)

        assert "job source size of 2.0 MB exceeds maximum of 900.0 kB and will be discarded" in result["Warnings"]
        assert server.replica.count_records(JOB_SUBMISSIONS) == 0


@in_virtual_time
async def test_scaling_blocks_of_system_jobs_are_a_400_for_registrations_and_plans() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        job = a_job("shop", a_group("web", a_task(), scaling=ScalingPolicy(max=3)), type="system")
        text = "Task groups with job type system do not support scaling blocks"

        for path in ("/v1/jobs", "/v1/job/shop/plan"):
            assert await client.refusal("PUT", path, msgspec.to_builtins({"Job": job})) == (400, text)
