"""The endpoint that converts job files in HCL to JSON (jobs.md 1.1, hcl.md 1 and 10)."""

import json
from typing import Any

import pytest

from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.api.off_loop import needs_worker
from wharf.cluster.api.requests.request import Request
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME

SHOP = """variable "image" {
  type = string
}

job "shop" {
  group "web" {
    task "server" {
      driver = "docker"
      config {
        image = var.image
        args  = ["${NOMAD_PORT_http}"]
      }
      kill_timeout = "20s"
    }
  }
}
"""


async def parse(client: ApiClient, text: str, **fields: Any) -> Any:
    return await client.put("/v1/jobs/parse", {"JobHCL": text, **fields})


@in_virtual_time
async def test_a_job_file_becomes_a_job_with_null_for_missing_fields() -> None:
    async with ACluster() as cluster:
        result = await parse(ApiClient(await cluster.a_server()), SHOP, Variables='image = "web:1"\nunknown = 1\n')

        assert (result["ID"], result["Name"], result["Priority"], result["Update"]) == ("shop", "shop", None, None)
        (group,) = result["TaskGroups"]
        assert (group["Name"], group["Count"]) == ("web", None)
        task = group["Tasks"][0]
        assert (task["Config"], task["KillTimeout"]) == (
            {"image": "web:1", "args": ["${NOMAD_PORT_http}"]},
            20_000_000_000,
        )


@pytest.mark.parametrize(
    "text", ['{"job": {"shop": {"type": "batch"}}}', '\n {"job": [{"shop": [{"type": "batch"}]}]}']
)
def test_a_job_file_may_be_in_the_json_form_of_hcl(text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            result = await parse(ApiClient(await cluster.a_server()), text)

            assert (result["ID"], result["Type"]) == ("shop", "batch")

    run()


@in_virtual_time
async def test_values_of_variables_may_be_json() -> None:
    async with ACluster() as cluster:
        result = await parse(ApiClient(await cluster.a_server()), SHOP, Variables='{"image": "web:2"}')

        assert result["TaskGroups"][0]["Tasks"][0]["Config"]["image"] == "web:2"


@in_virtual_time
async def test_a_canonical_job_is_equal_to_the_registered_one() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        canonical = await parse(client, SHOP, Variables='image = "web:1"', Canonicalize=True)
        submitted = await parse(client, SHOP, Variables='image = "web:1"')
        await client.put("/v1/jobs", {"Job": submitted})
        await pass_time(1)  # The job has been evaluated.
        stored = await client.get("/v1/job/shop")

        changed = {name for name in stored if stored[name] != canonical[name]}
        assert changed == {"CreateIndex", "JobModifyIndex", "ModifyIndex", "Status", "SubmitTime"}


@in_virtual_time
async def test_a_parsed_job_registers_without_warnings() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        submitted = await parse(client, SHOP, Variables='image = "web:1"')
        result = await client.put("/v1/jobs", {"Job": submitted})

        assert result["Warnings"] == ""


@in_virtual_time
async def test_parse_and_plan_agree_after_a_registration() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        submitted = await parse(client, SHOP, Variables='image = "web:1"')
        await client.put("/v1/jobs", {"Job": submitted})
        plan = await client.put("/v1/job/shop/plan", {"Job": submitted, "Diff": True})

        assert plan["Diff"]["Type"] == "None"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Job spec is empty"),
        ({"JobHCL": " \n"}, "Job spec is empty"),
        (
            {"JobHCL": 'job "a" {\n  group "g" {\n    cuont = 2\n  }\n  datacenters = "dc1"\n}\n'},
            'job.hcl:3:5: no argument "cuont" is allowed in group\n'
            "    3 |     cuont = 2\n"
            "      |     ^^^^^\n"
            '   did you mean "count"?\n'
            'job.hcl:5:17: "datacenters" takes a list of texts, not "dc1"\n'
            '    5 |   datacenters = "dc1"\n'
            "      |                 ^^^^^\n"
            '   write datacenters = ["dc1"]',
        ),
        (
            {"JobHCL": SHOP},
            'job.hcl:1:10: the variable "image" has no value\n'
            '    1 | variable "image" {\n'
            "      |          ^^^^^^^\n"
            "   set it with --var image=..., in a values file, as WHARF_VAR_image in the environment, or with a default here",
        ),
        (
            {"JobHCL": SHOP, "Variables": "image = upper(x)\n"},
            "variables:1:9: a value holds no functions, but upper is one\n"
            "    1 | image = upper(x)\n"
            "      |         ^^^^^^^^\n"
            "   write the value itself; locals may call functions",
        ),
        (
            {"JobHCL": 'job "a" {\n  name = file("x")\n}\n'},
            "job.hcl:2:10: file: the function file reads files, and the server has none: filesystem function disabled\n"
            '    2 |   name = file("x")\n'
            "      |          ^^^^^^^^^\n"
            "   submit the job with the command line tool, which evaluates the file before it sends the job",
        ),
        (
            {"JobHCL": '{"ID": "shop"}'},
            'job.hcl:1:2: no argument "ID" is allowed at the top level\n'
            '    1 | {"ID": "shop"}\n'
            "      |  ^^^^\n"
            "   the JSON form of HCL starts with the key job; a document in the form of the API needs no parsing",
        ),
    ],
    ids=["nothing", "blank", "two-errors", "no-value", "values", "file", "api-json"],
)
def test_a_file_with_errors_is_refused_with_all_of_them(body: dict[str, Any], text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())

            assert await client.refusal("PUT", "/v1/jobs/parse", body or {"Canonicalize": True}) == (400, text)

    run()


@pytest.mark.parametrize(
    ("key", "suggestion"), [("HCL", "JobHCL"), ("JobHcl2", "JobHCL"), ("Spec", "JobHCL"), ("Variable", "Variables")]
)
def test_an_unknown_key_explains_a_missing_text(key: str, suggestion: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())

            assert await client.refusal("PUT", "/v1/jobs/parse", {key: 'job "a" {}'}) == (
                400,
                f"Job spec is empty; {key} is not a known field: did you mean {suggestion}?",
            )

    run()


@in_virtual_time
async def test_syntax_errors_of_the_file_hide_those_of_the_values() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        body = {"JobHCL": 'job "a" {', "Variables": "x ="}

        _, text = await client.refusal("PUT", "/v1/jobs/parse", body)

        assert [line for line in text.splitlines() if line.startswith(("job.hcl", "variables"))] == [
            "job.hcl:1:1: the block job has no closing brace"
        ]


@in_virtual_time
async def test_at_most_twenty_errors_are_reported() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        text = 'job "a" {\n' + "".join(f"  x{number} = 1\n" for number in range(25)) + "}\n"

        _, reply = await client.refusal("PUT", "/v1/jobs/parse", {"JobHCL": text})

        assert reply.count("job.hcl:") == 20
        assert reply.endswith("and 5 more errors")


@in_virtual_time
async def test_a_value_above_a_limit_of_jobs_is_reported_with_its_place() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        body = {"JobHCL": f'job "a" {{\n  group "{"g" * 300}" {{\n  }}\n}}\n', "Canonicalize": True}

        status, text = await client.refusal("PUT", "/v1/jobs/parse", body)

        assert (status, text.splitlines()[0]) == (
            400,
            "job.hcl:2:9: TaskGroups[0].Name: is 300 bytes long; ids and names have at most 256 bytes",
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 1_000_001, "job.hcl: the file has 1,000,001 bytes, more than 1,000,000"),
        ('job "a" {\n meta = { a = [for a in range(1000) : [for b in range(1000) : b]] }\n}\n',
         "job.hcl:2:9: the evaluation takes more than 1,000,000 steps"),
        ('job "a" {\n' + "group a {\n}\n" * 30_000 + "}\n", "job.hcl:1:1: the result is larger than 10 MB"),
        (f'job "a" {{\n meta = {{ a = {"[" * 120}{"]" * 120} }}\n}}\n', "job.hcl:2:113: nested more than 100 deep"),
    ],
    ids=["size", "steps", "result", "nesting"],
)  # fmt: skip
def test_a_file_above_a_limit_is_refused(text: str, message: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())

            status, reply = await client.refusal("PUT", "/v1/jobs/parse", {"JobHCL": text})

            assert (status, reply.splitlines()[0]) == (400, message)

    run()


@in_virtual_time
async def test_functions_may_draw_random_numbers() -> None:
    async with ACluster() as cluster:
        result = await parse(ApiClient(await cluster.a_server()), 'job "a" {\n name = uuidv4()\n}\n')

        assert len(result["Name"]) == 36


@pytest.mark.parametrize("canonicalize", [False, True])
def test_the_client_returns_the_json_of_a_job(canonicalize: bool) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = (await cluster.a_server()).client

            job = await client.jobs.parse(SHOP, variables='image = "web:1"', canonicalize=canonicalize)
            await client.jobs.register(job)

            stored = (await client.jobs.read("shop")).value
            assert [task.kill_timeout for group in stored.groups for task in group.tasks or ()] == [20_000_000_000]

    run()


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_the_method_may_be_put_or_post(method: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            reply = await ApiClient(await cluster.a_server()).raw(method, "/v1/jobs/parse", {"JobHCL": 'job "a" {}'})

            assert (reply.status, json.loads(reply.body)["ID"]) == (200, "a")

    run()


@in_virtual_time
async def test_the_reply_has_no_index() -> None:
    async with ACluster() as cluster:
        reply = await ApiClient(await cluster.a_server()).raw("PUT", "/v1/jobs/parse", {"JobHCL": 'job "a" {}'})

        assert "x-cluster-index" not in reply.headers


@in_virtual_time
async def test_a_caller_needs_the_permission_to_parse_jobs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        other = ApiClient(server, await a_token(server, 'namespace "default" { capabilities = ["list-jobs"] }'))
        parser = ApiClient(server, await a_token(server, 'namespace "default" { capabilities = ["parse-job"] }'))

        assert (await other.refusal("PUT", "/v1/jobs/parse", {"JobHCL": 'job "a" {}'}))[0] == 403
        assert (await parse(parser, 'job "a" {}'))["ID"] == "a"


@pytest.mark.parametrize("text", ['job "a" {}', SHOP])
def test_every_job_file_is_evaluated_outside_of_the_event_loop(text: str) -> None:
    body = json.dumps({"JobHCL": text}).encode()

    assert needs_worker(Request("r1", ENDPOINT_BY_NAME["job.parse"], {}, {}, {}, body))
