"""`wharf import nomad`: what is copied from a Nomad cluster, in which order, and what the report says about the rest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.nomad_stand_in import TOKEN, StandIn, build_namespace, fill, serving_nomad
from tests.cli.terminal import CommandResult, Terminal, open_terminal
from tests.kit.certificates import make_certificates

READER = 'namespace "default" { policy = "read" }'


@pytest.fixture
def nomad() -> Iterator[StandIn]:
    with serving_nomad() as stand_in:
        yield stand_in


def run_import(terminal: Terminal, nomad: StandIn, *words: str) -> CommandResult:
    return terminal.run("import", "nomad", "--address", nomad.address, *words)


def read_report(terminal: Terminal, nomad: StandIn, *words: str) -> dict[str, dict[str, str]]:
    """Run the import and return the action of each record, by kind and name."""
    report = json.loads(run_import(terminal, nomad, "--json", *words).out)
    found: dict[str, dict[str, str]] = {}
    for record in report["Records"]:
        found.setdefault(record["Kind"], {})[record["Name"]] = record["Action"]
    return found


def read_json(terminal: Terminal, *words: str) -> Any:
    return json.loads(terminal.run_ok(*words))


def read_job(terminal: Terminal, job_id: str, namespace: str = "default") -> Any:
    return read_json(terminal, "job", "inspect", "--namespace", namespace, job_id)["Job"]


def test_an_import_copies_each_kind_of_record(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)

    result = run_import(terminal, nomad)

    assert (result.code, result.err) == (0, "")
    assert result.lines[-1] == "imported: 4 created, 1 replaced"
    assert read_json(terminal, "namespace", "inspect", "shop")["Meta"] == {"team": "web"}
    assert read_json(terminal, "node", "pool", "info", "gpu", "--json")["Meta"] == {"a": "b"}
    assert read_json(terminal, "operator", "scheduler", "get-config", "--json")["SchedulerAlgorithm"] == "spread"
    assert terminal.run_ok("var", "get", "--item", "password", "--namespace", "shop", "nomad/jobs/web").strip() == (
        "correct-horse"
    )
    assert read_job(terminal, "web", "shop")["NodePool"] == "gpu"


def test_a_second_import_changes_nothing_and_reports_that(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    run_import(terminal, nomad)
    index = read_job(terminal, "web", "shop")["ModifyIndex"]

    second = run_import(terminal, nomad)

    assert (second.code, second.lines[-1]) == (0, "nothing changed: 6 the same in Wharf")
    assert read_job(terminal, "web", "shop")["ModifyIndex"] == index


def test_a_plan_writes_nothing(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)

    result = run_import(terminal, nomad, "--plan")

    assert (result.code, result.lines[-1]) == (0, "plan: 4 to create, 1 to replace; nothing was written")
    assert "jobs: shop/web" in result.out
    assert terminal.run_ok("namespace", "list", "-t", "{{range .}}{{.Name}} {{end}}").split() == ["default"]


def test_an_import_only_reads_from_nomad(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    run_import(terminal, nomad)

    assert {method for method, _ in nomad.requests} == {"GET"}


def test_values_of_variables_and_tokens_are_never_printed(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    nomad.tokens = {TOKEN}

    outputs = [
        run_import(terminal, nomad, "--token", TOKEN, *words) for words in (("--plan", "--verbose"), ("--json",), ())
    ]

    printed = "".join(result.out + result.err for result in outputs)
    assert "shop/nomad/jobs/web" in printed
    assert ("correct-horse" in printed, TOKEN in printed) == (False, False)


def test_lists_of_several_pages_are_read_to_the_end(terminal: Terminal, nomad: StandIn) -> None:
    for number in range(5):
        nomad.add_job(f"job-{number}")

    assert len(read_report(terminal, nomad)["jobs"]) == 5


def test_a_list_that_returns_the_same_page_again_ends_with_an_error(terminal: Terminal, nomad: StandIn) -> None:
    for number in range(5):
        nomad.add_job(f"job-{number}")
    nomad.page_size = 0

    result = run_import(terminal, nomad)

    assert "jobs: not read: Nomad replied with status 200: /v1/jobs returned the same page twice" in result.out
    assert result.code == 1


def test_a_job_that_is_stopped_in_nomad_stays_stopped(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_job("web", Stop=True, Status="dead")
    run_import(terminal, nomad)
    terminal.wait(5)

    job = read_job(terminal, "web")

    assert (job["Stop"], job["Status"]) == (True, "dead")
    assert run_import(terminal, nomad).lines[-1] == "nothing changed: 1 the same in Wharf"


def test_a_batch_job_that_has_ended_is_not_run_again(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_job("report", Type="batch", Status="dead")

    result = run_import(terminal, nomad)

    assert "jobs: default/report: has ended in Nomad, so it is imported as stopped" in result.out
    assert read_job(terminal, "report")["Stop"] is True


def test_a_periodic_job_is_imported_without_its_launches(terminal: Terminal, nomad: StandIn) -> None:
    periodic = {"Enabled": True, "Spec": "0 3 * * *", "SpecType": "cron", "ProhibitOverlap": False, "TimeZone": "UTC"}
    nomad.add_job("nightly", Type="batch", Periodic=periodic)
    nomad.add_job("nightly/periodic-1700000000", Type="batch", ParentID="nightly", Status="dead")

    result = run_import(terminal, nomad)

    assert "child jobs (1): launches of periodic and parameterized jobs; their parents are imported" in result.out
    assert terminal.run_ok("job", "status", "-t", "{{range .}}{{.ID}} {{end}}").split() == ["nightly"]


def test_all_jobs_are_imported_as_stopped_on_request(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_job("web")
    run_import(terminal, nomad, "--stopped")

    assert read_job(terminal, "web")["Stop"] is True
    assert run_import(terminal, nomad, "--stopped").lines[-1] == "nothing changed: 1 the same in Wharf"


def test_a_job_keeps_the_text_from_which_it_was_submitted(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_job("web")
    nomad.records["/v1/job/web/submission?namespace=default"] = {
        "Source": 'job "web" {}', "Format": "hcl2", "VariableFlags": None, "Variables": "", "Namespace": "default",
        "JobID": "web", "Version": 3, "JobModifyIndex": 25,
    }  # fmt: skip
    run_import(terminal, nomad)

    found = terminal.run_ok("operator", "api", "/v1/job/web/submission?version=0")

    assert json.loads(found)["Source"] == 'job "web" {}'


def test_a_record_that_differs_in_wharf_stays_without_overwrite(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    terminal.run_ok("namespace", "apply", "--description", "ours", "shop")

    result = run_import(terminal, nomad)

    assert (
        "namespaces: shop: Wharf has another one, which stays; --overwrite replaces it" in result.out,
        read_json(terminal, "namespace", "inspect", "shop")["Description"],
    ) == (True, "ours")


def test_overwrite_replaces_records_that_differ_and_keeps_the_weight_of_a_namespace(
    terminal: Terminal, nomad: StandIn
) -> None:
    fill(nomad)
    terminal.run_ok("namespace", "apply", "--description", "ours", "--weight", "7", "shop")
    run_import(terminal, nomad)
    nomad.records["/v1/job/web?namespace=shop"]["Priority"] = 70

    report = read_report(terminal, nomad, "--overwrite")
    namespace = read_json(terminal, "namespace", "inspect", "shop")

    assert (report["namespaces"]["shop"], report["jobs"]) == ("replace", {"shop/web": "replace"})
    assert (namespace["Description"], namespace["Weight"]) == ("the shop", 7)
    assert read_job(terminal, "web", "shop")["Priority"] == 70


def test_scheduler_settings_that_an_operator_of_wharf_changed_stay(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    terminal.run_ok("operator", "scheduler", "set-config", "--memory-oversubscription", "true")

    assert read_report(terminal, nomad)["scheduler settings"] == {"configuration": "keep"}


def test_switches_that_stop_a_cluster_are_not_imported(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    nomad.records["/v1/operator/scheduler/configuration"]["SchedulerConfig"]["PauseEvalBroker"] = True

    result = run_import(terminal, nomad)

    assert "PauseEvalBroker is set in Nomad and not imported" in result.out
    assert read_json(terminal, "operator", "scheduler", "get-config", "--json")["PauseEvalBroker"] is False


def test_policies_and_roles_are_skipped_while_access_control_is_off(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_policy("reader", READER)
    nomad.lists["/v1/acl/roles"] = [{"ID": "1", "Name": "team", "Description": "", "Policies": [{"Name": "reader"}]}]

    result = run_import(terminal, nomad)

    assert (
        "policies: reader: access control is off in Wharf; turn it on (documentation page Access control)" in result.out
    )
    assert "roles: team: access control is off in Wharf" in result.out


def test_policies_come_before_roles_and_tokens_are_only_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, nomad: StandIn
) -> None:
    nomad.add_policy("reader", READER)
    nomad.lists["/v1/acl/roles"] = [{"ID": "1", "Name": "team", "Description": "", "Policies": [{"Name": "reader"}]}]
    nomad.lists["/v1/acl/tokens"] = [{"AccessorID": "1", "Name": "mine", "Type": "management"}]
    with open_terminal(capsys, access=True) as terminal:
        monkeypatch.setenv("WHARF_TOKEN", terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        result = run_import(terminal, nomad)
        policies = terminal.run_ok("acl", "role", "info", "team", "-t", "{{range .Policies}}{{.Name}}{{end}}").strip()
        second = run_import(terminal, nomad)

    assert (result.lines[-1], policies) == ("imported: 2 created, 0 replaced", "reader")
    assert "tokens (1): their secrets are not copied; create tokens with `wharf acl token create`" in result.out
    assert second.lines[-1] == "nothing changed: 2 the same in Wharf"


def test_a_token_that_may_not_read_a_kind_is_reported_and_the_others_are_imported(
    terminal: Terminal, nomad: StandIn
) -> None:
    fill(nomad)
    nomad.errors["/v1/vars"] = (403, "Permission denied")

    result = run_import(terminal, nomad)

    assert result.lines[-1] == "imported: 3 created, 1 replaced"
    assert "variables: not read: permission denied: the token may not read them: use a management token" in result.out
    assert (result.code, result.err) == (
        1,
        "wharf: Nomad did not return variables: see above, and repeat the import, which writes what is missing\n",
    )


def test_kinds_that_this_nomad_does_not_have_are_no_failure(terminal: Terminal, nomad: StandIn) -> None:
    nomad.errors["/v1/acl/policies"] = (400, "ACL support disabled")

    result = run_import(terminal, nomad)

    assert "quotas: this edition or version of Nomad does not have them" in result.out
    assert "policies: access control is off in Nomad" in result.out
    assert (result.code, result.lines[-1]) == (0, "nothing changed: 0 the same in Wharf")


def test_a_job_that_wharf_cannot_run_is_skipped_with_the_reason(terminal: Terminal, nomad: StandIn) -> None:
    nomad.add_job("web", TaskGroups=[])
    nomad.add_job("good")

    result = run_import(terminal, nomad)

    assert "jobs: default/web: " in result.out
    assert "task group" in result.out.lower()
    assert result.lines[-1] == "imported: 1 created, 0 replaced"


def test_fields_without_a_counterpart_are_named(terminal: Terminal, nomad: StandIn) -> None:
    nomad.lists["/v1/namespaces"] = [build_namespace("shop", Future={"a": 1}, Empty=None)]

    result = run_import(terminal, nomad)

    assert "namespaces: shop: imported without Future: Wharf does not have these fields" in result.out


def test_a_job_in_a_namespace_that_does_not_exist_is_imported_once_it_exists(
    terminal: Terminal, nomad: StandIn
) -> None:
    nomad.add_job("web", namespace="late")
    first = run_import(terminal, nomad)
    nomad.lists["/v1/namespaces"] = [build_namespace("late")]

    second = run_import(terminal, nomad)

    assert 'jobs: late/web: job "web" is in nonexistent namespace "late"' in first.out
    assert second.lines[-1] == "imported: 2 created, 0 replaced"


def test_a_refused_change_does_not_stop_the_others_and_the_next_import_writes_it(
    terminal: Terminal, nomad: StandIn
) -> None:
    nomad.lists["/v1/namespaces"] = [build_namespace("bad", Description="x" * 300), build_namespace("good")]

    first = run_import(terminal, nomad)
    nomad.lists["/v1/namespaces"][0]["Description"] = "short"
    second = run_import(terminal, nomad)

    assert (first.code, first.lines[-1]) == (1, "imported: 1 created, 0 replaced")
    assert "namespaces: bad: " in first.out
    assert "wharf: changes that Wharf refused: 1; correct what their reasons name, and repeat the import" in first.err
    assert (second.code, second.lines[-1]) == (0, "imported: 1 created, 0 replaced")


def test_a_server_of_wharf_that_is_lost_leaves_a_state_from_which_the_next_import_goes_on(
    terminal: Terminal, nomad: StandIn
) -> None:
    fill(nomad)
    terminal.lost_path = "/v1/var/"

    first = run_import(terminal, nomad)
    terminal.lost_path = ""
    second = run_import(terminal, nomad)

    assert "changes that are not written: 2; repeat the import, which writes what is missing" in first.err
    assert (second.code, second.lines[-1]) == (0, "imported: 2 created, 0 replaced")


def test_an_unreachable_nomad_is_an_error_that_says_what_to_set(terminal: Terminal) -> None:
    result = terminal.run("import", "nomad", "--address", "http://127.0.0.1:1")

    assert result.err.startswith("wharf: ")
    assert result.err.endswith(
        "set --address or NOMAD_ADDR to a server of Nomad that this machine can reach; nothing was imported\n"
    )


def test_a_server_that_is_not_nomad_is_named(terminal: Terminal, nomad: StandIn) -> None:
    del nomad.records["/v1/status/leader"]

    error = run_import(terminal, nomad).err
    assert "this is not a Nomad server: GET /v1/status/leader was answered with status 404; set --address" in error


def test_a_nomad_cluster_without_a_leader_is_reported(terminal: Terminal, nomad: StandIn) -> None:
    nomad.records["/v1/status/leader"] = ""

    assert "the Nomad cluster has no leader now" in run_import(terminal, nomad).err


def test_https_at_a_server_without_it_is_explained(terminal: Terminal, nomad: StandIn) -> None:
    result = terminal.run("import", "nomad", "--address", nomad.address.replace("http:", "https:"))

    assert "http://HOST:PORT" in result.err


def test_the_settings_of_nomad_come_from_its_variables_and_do_not_reach_wharf(
    terminal: Terminal, nomad: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(nomad)
    nomad.tokens = {TOKEN}
    monkeypatch.setenv("NOMAD_ADDR", nomad.address)
    monkeypatch.setenv("NOMAD_TOKEN", TOKEN)
    monkeypatch.setenv("WHARF_TOKEN", "11111111-1111-4111-8111-111111111111")

    result = terminal.run("import", "nomad", "--plan")

    assert (result.code, result.err) == (0, "")
    assert {settings.token for settings in terminal.used_settings} == {"11111111-1111-4111-8111-111111111111"}
    assert {settings.addresses for settings in terminal.used_settings} == {("http://127.0.0.1:4646",)}


def test_one_address_for_both_clusters_is_refused(terminal: Terminal, nomad: StandIn) -> None:
    result = run_import(terminal, nomad, "--to", nomad.address)

    assert "is the address of both clusters: set --address or NOMAD_ADDR to Nomad" in result.err
    assert nomad.requests == []


def test_an_import_without_an_address_of_nomad_is_refused(terminal: Terminal) -> None:
    assert "set --address or NOMAD_ADDR to the URL of a Nomad server" in terminal.run("import", "nomad").err


def test_nomad_is_reached_with_https_if_its_authority_is_named(terminal: Terminal, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    with serving_nomad(certificates.build_server_context()) as nomad:
        nomad.add_job("web")
        trusted = run_import(terminal, nomad, "--ca-cert", certificates.authority_file, "--plan")
        untrusted = run_import(terminal, nomad, "--plan")
        unchecked = run_import(terminal, nomad, "--tls-skip-verify", "--plan")

    assert (trusted.code, unchecked.code, trusted.lines[-1]) == (
        0,
        0,
        "plan: 1 to create, 0 to replace; nothing was written",
    )
    assert "set --ca-cert or NOMAD_CACERT to the certificate of the authority that signed it" in untrusted.err


def test_a_nomad_that_is_lost_while_it_is_read_changes_nothing(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)
    nomad.broken_path = "/v1/jobs"

    result = run_import(terminal, nomad)

    assert result.err.endswith("the connection to Nomad broke: repeat the command; nothing was imported\n")
    assert terminal.run_ok("namespace", "list", "-t", "{{range .}}{{.Name}} {{end}}").split() == ["default"]


def test_quotas_come_before_the_namespaces_that_use_them(terminal: Terminal, nomad: StandIn) -> None:
    del nomad.errors["/v1/quotas"]
    limit = {"Region": "global", "RegionLimit": {"CPU": 1000, "MemoryMB": 512, "Devices": None}, "Hash": "aGFzaA=="}
    nomad.lists["/v1/quotas"] = [{"Name": "small", "Description": "", "Limits": [limit], "CreateIndex": 1}]
    nomad.lists["/v1/namespaces"] = [build_namespace("shop", Quota="small")]

    first, second = run_import(terminal, nomad), run_import(terminal, nomad)

    assert (first.lines[-1], second.lines[-1]) == (
        "imported: 2 created, 0 replaced",
        "nothing changed: 2 the same in Wharf",
    )


def test_the_region_of_nomad_is_named_in_each_request(terminal: Terminal, nomad: StandIn) -> None:
    run_import(terminal, nomad, "--region", "europe")

    assert nomad.regions == {"europe"}


def test_an_error_of_nomad_is_reported_with_its_status_and_text(terminal: Terminal, nomad: StandIn) -> None:
    nomad.errors["/v1/namespaces"] = (500, "No cluster leader")

    result = run_import(terminal, nomad)

    assert "namespaces: not read: Nomad replied with status 500: No cluster leader; repeat the import" in result.out
    assert result.code == 1


def test_a_client_token_is_reported_because_lists_can_lack_records(terminal: Terminal, nomad: StandIn) -> None:
    nomad.records["/v1/acl/token/self"] = {"AccessorID": "1", "Type": "client", "SecretID": TOKEN}
    nomad.add_job("web")

    result = run_import(terminal, nomad)

    assert (
        "records that the token may not read: not read: it is not a management token, so lists can lack" in result.out
    )
    assert (result.code, result.lines[-1]) == (1, "imported: 1 created, 0 replaced")
    assert TOKEN not in result.out + result.err


@pytest.mark.parametrize(
    "token", [{"AccessorID": "1", "Type": "management"}, {"AccessorID": "acls-disabled", "Type": "client"}]
)
def test_a_token_that_sees_everything_is_not_reported(
    terminal: Terminal, nomad: StandIn, token: dict[str, str]
) -> None:
    nomad.records["/v1/acl/token/self"] = token

    assert run_import(terminal, nomad).code == 0


def test_an_unreachable_wharf_is_found_before_nomad_is_read(terminal: Terminal, nomad: StandIn) -> None:
    terminal.set_away(True)

    result = run_import(terminal, nomad)

    assert result.err.endswith("set --to or WHARF_ADDR to a server of Wharf; nothing was imported\n")
    assert nomad.requests == []


def test_a_token_of_wharf_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], nomad: StandIn) -> None:
    with open_terminal(capsys, access=True) as terminal:
        result = run_import(terminal, nomad)

    assert "set WHARF_TOKEN to a management token of the Wharf cluster; nothing was imported" in result.err


def test_records_are_written_after_those_that_they_refer_to(terminal: Terminal, nomad: StandIn) -> None:
    fill(nomad)

    assert list(read_report(terminal, nomad, "--plan")) == [
        "node pools",
        "namespaces",
        "scheduler settings",
        "variables",
        "jobs",
    ]
