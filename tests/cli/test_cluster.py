"""Commands about machines, rollouts, rooms, variables and rights, against a server in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.asking import WEB, Person, a_file, a_person
from wharf.cli.completion import complete_jobs
from wharf.cli.root import root
from wharf.contract.client import ClientReply, ClientRequest, SyncClient, Unreachable
from wharf.contract.client.flow import NO_RETRIES
from wharf.contract.client.transport import SyncStreamedReply


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    for name in ("WHARF_ADDR", "WHARF_NAMESPACE", "WHARF_TOKEN", "NOMAD_ADDR", "NOMAD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with a_person(capsys, nodes=2) as person:
        yield person


def test_a_canary_is_promoted_by_its_job(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    second = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1s, Canary: 1").replace("CPU: 100", "CPU: 120")
    person.does("job", "run", a_file(tmp_path, second))
    person.wait(10)

    waiting = person.does("deployment", "status", "web")
    person.does("deployment", "promote", "web")
    person.wait(30)

    assert "Deployment is running but requires manual promotion" in waiting
    assert "Canaries" in waiting
    assert person.does("deployment", "list", "-t", "{{range .}}{{.JobVersion}}:{{.Status}} {{end}}").split() == [
        "0:successful",
        "1:successful",
    ]


def test_a_deployment_rests_goes_on_and_is_failed(person: Person, tmp_path: Path) -> None:
    slow = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1m")
    person.does("job", "run", a_file(tmp_path, slow))

    assert person.does("deployment", "pause", "web").endswith("of web rests\n")
    assert person.does("deployment", "resume", "web").endswith("of web goes on\n")
    assert "has failed" in person.does("deployment", "fail", "--detach", "web")
    assert "failed" in person.does("deployment", "status", "web")


def test_a_node_is_drained_and_comes_back(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))

    drained = person.does("node", "drain", "--enable", "--deadline", "1m", "node-1")
    listed = person.does("node", "status", "-t", "{{range .}}{{.Name}}:{{.SchedulingEligibility}} {{end}}").split()
    person.does("node", "eligibility", "--enable", "node-1")

    assert drained.splitlines()[-1] == "node-1 is drained"
    assert sorted(listed) == ["node-1:ineligible", "node-2:eligible"]
    assert "Eligibility  eligible" in person.does("node", "status", "node-1")


def test_a_node_is_shown_with_what_runs_on_it(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB.replace("Count: 2", "Count: 4")))

    shown = person.does("node", "status", "node-2")

    assert "Allocations\n" in shown
    assert "web.api[" in shown


def test_an_allocation_is_shown_and_stopped_by_the_beginning_of_its_id(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    whole = person.does("job", "allocs", "-t", "{{range .}}{{.ID}} {{end}}", "web").split()[0]

    shown = person.does("alloc", "status", whole[:8])
    person.does("alloc", "stop", whole[:8])

    assert f"ID          {whole}" in shown
    assert person.does("alloc", "status", "-t", "{{.DesiredStatus}}", whole) == "stop\n"


def test_an_evaluation_tells_what_it_could_not_place(person: Person, tmp_path: Path) -> None:
    person.wharf("job", "run", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))
    ids = person.does(
        "eval", "list", "--job", "web", "--status", "complete", "-t", "{{range .}}{{.ID}} {{end}}"
    ).split()

    assert "  · too little cpu on 2 nodes" in person.does("eval", "status", ids[-1][:8]).splitlines()


def test_a_namespace_is_made_changed_used_and_deleted(person: Person, tmp_path: Path) -> None:
    person.does("namespace", "apply", "--description", "the shop", "shop")
    person.does("namespace", "apply", "--weight", "5", "shop")
    person.does("job", "run", "--namespace", "shop", "--detach", a_file(tmp_path, WEB))
    full = person.wharf("namespace", "delete", "shop")
    everywhere = person.does("job", "status", "--namespace", "*")
    person.does("job", "stop", "--purge", "--namespace=shop", "web")
    person.wait(5)

    assert json.loads(person.does("namespace", "inspect", "shop"))["Description"] == "the shop"
    assert person.does("namespace", "inspect", "-t", "{{.Weight}}", "shop") == "5\n"
    assert full.code == 1
    assert everywhere.splitlines()[1].split()[:2] == ["web", "shop"]
    assert person.does("job", "status") == "There are no jobs yet; `wharf job run FILE` submits one.\n"


def test_a_variable_is_written_read_guarded_and_deleted(person: Person) -> None:
    person.does("var", "put", "jobs/web", "user=shop", "--check-index", "0")
    again = person.wharf("var", "put", "--check-index", "0", "jobs/web", "user=other")
    index = person.does("var", "get", "-t", "{{.ModifyIndex}}", "jobs/web").strip()
    purged = person.wharf("var", "purge", "--check-index", "1", "jobs/web")

    told = f"wharf: jobs/web was changed: its check index is {index}; `wharf var get jobs/web` shows it\n"
    assert (again.code, again.err) == (1, told)
    assert (purged.code, purged.err) == (1, told)
    assert person.does("var", "get", "--item", "user", "jobs/web") == "shop\n"
    assert person.does("var", "list", "-t", "{{range .}}{{.Path}}{{end}}") == "jobs/web\n"
    person.does("var", "purge", "jobs/web")
    assert person.does("var", "list") == "There are no variables.\n"


def test_a_variable_that_is_gone_or_locked_is_not_written_over(person: Person) -> None:
    gone = person.wharf("var", "put", "--check-index", "7", "jobs/gone", "user=other")
    person.does("operator", "api", "/v1/var/jobs/held?lock-acquire", '{"Items": {"a": "b"}}')
    locked = person.wharf("var", "put", "jobs/held", "user=other")

    for ended, path in ((gone, "jobs/gone"), (locked, "jobs/held")):
        assert (ended.code, ended.err) == (
            1, f"wharf: {path} is not there any more, or somebody holds its lock; `wharf var get {path}` shows it\n"
        )  # fmt: skip


@pytest.mark.parametrize(("program", "code"), [("true", 0), ("false", 1)])
def test_a_program_runs_under_a_lock_and_gives_its_code(person: Person, program: str, code: int) -> None:
    ended = person.wharf("var", "lock", "locks/a", program)

    assert (ended.code, ended.err) == (code, "")
    assert person.wharf("var", "lock", "locks/a", "true").code == 0
    assert person.wharf("var", "lock", "locks/a", "--", program).code == code
    assert person.wharf("var", "lock", "locks/a", "--").err.startswith("wharf: ")


def test_scheduling_is_configured_one_switch_at_a_time(person: Person) -> None:
    person.does("operator", "scheduler", "set-config", "--scheduler-algorithm", "spread")
    person.does("operator", "scheduler", "set-config", "--preempt-batch-scheduler", "true")

    shown = person.does("operator", "scheduler", "get-config")
    assert "Algorithm                spread" in shown
    assert "batch" in shown


def test_a_quota_is_written_from_a_file_and_told_with_what_is_used(person: Person, tmp_path: Path) -> None:
    file = a_file(tmp_path, "Name: small\nLimits:\n  - {Region: global, RegionLimit: {CPU: 500}}\n")
    person.does("quota", "apply", file)
    person.does("namespace", "apply", "--quota", "small", "shop")

    assert "500" in person.does("namespace", "status", "shop")
    wrong = person.wharf("quota", "apply", a_file(tmp_path, "Nam: small", "wrong.yaml"))
    assert wrong.err.endswith("wrong.yaml: there is no field Nam: there are Name, Description, Limits, Hash, CreateIndex, "
                              "ModifyIndex\n")  # fmt: skip


def test_what_a_quota_forbids_is_not_told_as_a_lack_of_nodes(person: Person, tmp_path: Path) -> None:
    person.does(
        "quota", "apply", a_file(tmp_path, "Name: small\nLimits:\n  - {Region: global, RegionLimit: {CPU: 150}}\n")
    )
    person.does("namespace", "apply", "--quota", "small", "shop")
    ended = person.wharf("job", "run", "--namespace", "shop", a_file(tmp_path, WEB))

    assert ended.code == 2
    assert ended.lines[-2:] == [
        "  api: 1 not placed",
        "    · the quota of its namespace: cpu exhausted (200 needed > 150 limit)",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Name: x\nLimit: []\n", "there is no field Limit: "),
        (
            "Name: x\nLimits: [{Region: global, RegionLimits: {CPU: 3}}]\n",
            "there is no field Limits[0].RegionLimits: did you mean RegionLimit?",
        ),
        ("Name: x\nLimits: [{Region: global, RegionLimit: {CPU: much}}]\n", "Expected `int`, got `str`"),
        ("- a\n", "expected a map of its fields"),
    ],
)
def test_what_a_file_of_a_record_says_is_never_passed_over(
    person: Person, tmp_path: Path, text: str, told: str
) -> None:
    file = a_file(tmp_path, text, "quota.yaml")

    ended = person.wharf("quota", "apply", file)

    assert (ended.code, ended.err.startswith(f"wharf: {file}: {told}")) == (1, True), ended.err
    assert person.does("quota", "list") == "There are no quotas.\n"


def test_a_node_pool_is_made_shown_and_deleted(person: Person) -> None:
    person.does("node", "pool", "apply", "--description", "machines with cards", "gpu")
    person.does("node", "pool", "apply", "gpu")

    assert person.does("node", "pool", "info", "gpu") == "Name         gpu\nDescription  machines with cards\n"
    assert person.does("node", "pool", "nodes", "default", "-t", "{{len .}}") == "2\n"
    assert person.does("node", "pool", "jobs", "default").startswith("There are no jobs")
    person.does("node", "pool", "delete", "gpu")
    assert person.does("node", "pool", "list", "-t", "{{range .}}{{.Name}} {{end}}") == "all default \n"


def test_what_begins_with_an_id_is_shown_of_whatever_kind(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", a_file(tmp_path, WEB))

    assert "Datacenters" in person.does("status", "web")
    assert person.does("status").splitlines()[1].split() == ["Nodes", "2", "of", "2", "ready"]
    assert "Eligibility" in person.does("status", "node-1")
    assert person.wharf("status", "zzz").code == 1


def test_what_is_not_there_is_told_in_one_line(person: Person) -> None:
    unknown = person.wharf("namespace", "status", "nobody")

    assert (unknown.code, len(unknown.err.splitlines())) == (1, 1)


def test_options_win_over_the_environment_and_may_have_one_dash(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOMAD_TOKEN", "theirs")
    monkeypatch.setenv("WHARF_ADDR", "a:1")

    person.wharf("namespace", "list", "-address=b:2", "-region", "global")

    settings = person.asked[-1]
    assert (settings.addresses, settings.region, settings.token) == (("http://b:2",), "global", "theirs")


def test_ids_are_completed_by_asking(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    context = root.make_context("wharf", ["job"], resilient_parsing=True, obj=person)

    found = complete_jobs(context, None, "w")  # type: ignore[arg-type]  # The parameter is not looked at.

    assert [(one.value, one.help) for one in found] == [("web", "running")]


def test_rights_are_given_by_policies_roles_and_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with a_person(capsys, access=True) as person:
        secret = person.does("acl", "bootstrap", "-t", "{{.SecretID}}").strip()
        refused = person.wharf("job", "status")
        monkeypatch.setenv("WHARF_TOKEN", secret)
        person.does("acl", "policy", "apply", "reader", a_file(tmp_path, 'namespace "*" { policy = "read" }', "r.hcl"))
        person.does("acl", "role", "create", "--name", "team", "--policy", "reader")
        made = json.loads(person.does("acl", "token", "create", "--name", "me", "--role-name", "team", "--json"))
        monkeypatch.setenv("WHARF_TOKEN", made["SecretID"])
        reads = person.wharf("job", "status")
        writes = person.wharf("job", "run", a_file(tmp_path, WEB))
        own = person.does("acl", "token", "self", "-t", "{{.Name}}")
        stands = person.does("status")
        monkeypatch.setenv("WHARF_TOKEN", secret)
        listed = person.does("acl", "token", "list")
        person.does("acl", "token", "delete", made["AccessorID"][:7])
        gone = person.wharf("acl", "token", "info", "me")

    assert refused.err == "wharf: Permission denied: no token was given; name one by --token or WHARF_TOKEN\n"
    assert (reads.code, writes.code, own) == (0, 1, "me\n")
    assert writes.err == (
        "wharf: Permission denied: the token that was given may not do this, or is none here; "
        "`wharf acl token self` tells\n"
    )
    assert stands.splitlines()[1] == "Nodes   not for this token to see"
    assert [line.split()[1:4] for line in listed.splitlines() if " me " in line] == [["me", "client", "team"]]
    assert gone.err == "wharf: there is no token me; `wharf acl token list` lists all\n"


@pytest.mark.parametrize(
    ("said", "sent", "told"),
    [
        ("CERTIFICATE_VERIFY_FAILED", False, "--ca-cert or WHARF_CACERT names whose certificates are believed"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", True, "--client-cert and --client-key name what is shown there"),
        ("Connection refused", False, "`wharf dev` starts a server here, --address or WHARF_ADDR names another"),
        (
            "Server disconnected",
            True,
            "what was to be changed may be changed all the same; is it one that speaks https",
        ),
    ],
)
def test_a_server_that_is_not_reached_is_told_with_what_may_be_wrong(
    person: Person, monkeypatch: pytest.MonkeyPatch, said: str, sent: bool, told: str
) -> None:
    class Deaf:
        def send(self, _: ClientRequest) -> ClientReply:
            raise Unreachable(f"http://here ({said})", is_sent=sent)

        def open(self, _: ClientRequest) -> SyncStreamedReply:
            raise AssertionError("nothing here is streamed")

        def close(self) -> None:
            return

    monkeypatch.setattr(person, "connect", lambda _: SyncClient(person.world, [Deaf()], retry_policy=NO_RETRIES))

    ended = person.wharf("job", "status")

    assert ended.code == 1
    assert ended.err.startswith(f"wharf: http://here ({said}); {told}"), ended.err


def test_an_id_may_be_cut_anywhere(person: Person, tmp_path: Path) -> None:
    """Servers look for whole bytes only: half of one is looked for here."""
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    whole = person.does("job", "allocs", "-t", "{{(index . 0).ID}}", "web").strip()
    begun = [length for length in range(3, 14) if person.wharf("alloc", "status", whole[:length]).code != 0]
    one = person.wharf("node", "status", "x")

    assert begun == []
    assert one.err == "wharf: there is no node x; `wharf node status` lists all\n"
    assert person.wharf("eval", "status", "").err == "wharf: which evaluation? `wharf eval list` lists all\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("job", "inspect"), "Missing argument 'JOB'; `wharf job inspect --help` tells more"),
        (("namespace", "status", "gone"), "there is no namespace gone; `wharf namespace list` lists all"),
        (("var", "get", "gone"), "there is no variable gone in default; `wharf var list` lists all"),
        (("operator", "api", "nope"), "404: there is nothing at /v1/nope"),
        (("quota", "status", "gone"), 'quota "gone" not found'),
        (("job", "status", "--region", "mars"), "No path to region"),
    ],
)
def test_a_name_of_nothing_is_one_line_that_says_where_to_look(
    person: Person, words: tuple[str, ...], told: str
) -> None:
    ended = person.wharf(*words)

    assert (ended.code, ended.out, ended.err) == (1, "", f"wharf: {told}\n")


def test_a_version_is_named_found_by_its_name_and_unnamed(person: Person, tmp_path: Path) -> None:
    person.does("job", "run", "--follow", a_file(tmp_path, WEB))
    person.does("job", "tag", "apply", "--name", "golden", "web")
    person.does("job", "run", "--follow", a_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
    back = person.does("job", "revert", "--detach", "web", "golden")
    tags = person.does("job", "history", "-t", "{{range .}}{{with .VersionTag}}{{.Name}}{{end}},{{end}}", "web")
    person.does("job", "tag", "unset", "--name", "golden", "web")

    assert back.splitlines()[0] == "web goes back to version 0"
    assert tags.strip() == ",,golden,"
    assert person.wharf("job", "revert", "web", "golden").code == 1
