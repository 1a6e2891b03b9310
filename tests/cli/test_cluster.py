"""The commands about nodes, deployments, namespaces, variables and access, against a server in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import WEB, Terminal, open_terminal, write_file
from wharf.cli.common.errors import CliError
from wharf.cli.common.server_commands import Session
from wharf.cli.completion import complete_jobs
from wharf.cli.root import root
from wharf.cli.variable import run_with_lock
from wharf.contract.client import ClientReply, ClientRequest, ClientSettings, SyncClient, Unreachable
from wharf.contract.client.flow import NO_RETRIES
from wharf.contract.client.transport import SyncStreamedReply, TlsFailure
from wharf.contract.wire.errors import REASON_HEADER


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Iterator[Terminal]:
    with open_terminal(capsys, nodes=2) as terminal:
        yield terminal


def test_a_canary_is_promoted_by_its_job(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    second = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1s, Canary: 1").replace("CPU: 100", "CPU: 120")
    terminal.run_ok("job", "run", write_file(tmp_path, second))
    terminal.wait(10)

    waiting = terminal.run_ok("deployment", "status", "web")
    terminal.run_ok("deployment", "promote", "web")
    terminal.wait(30)

    assert "Deployment is running but requires manual promotion" in waiting
    assert "Canaries" in waiting
    assert terminal.run_ok("deployment", "list", "-t", "{{range .}}{{.JobVersion}}:{{.Status}} {{end}}").split() == [
        "0:successful",
        "1:successful",
    ]


def test_a_deployment_is_paused_resumed_and_failed(terminal: Terminal, tmp_path: Path) -> None:
    slow = WEB.replace("MinHealthyTime: 1s", "MinHealthyTime: 1m")
    terminal.run_ok("job", "run", write_file(tmp_path, slow))

    assert terminal.run_ok("deployment", "pause", "web").startswith("paused deployment ")
    assert terminal.run_ok("deployment", "resume", "web").startswith("resumed deployment ")
    assert "of job web as failed" in terminal.run_ok("deployment", "fail", "--detach", "web")
    assert "failed" in terminal.run_ok("deployment", "status", "web")


def test_a_node_is_drained_and_made_eligible_again(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))

    drained = terminal.run_ok("node", "drain", "--enable", "--deadline", "1m", "node-1")
    listed = terminal.run_ok("node", "status", "-t", "{{range .}}{{.Name}}:{{.SchedulingEligibility}} {{end}}").split()
    terminal.run_ok("node", "eligibility", "--enable", "node-1")

    assert drained.splitlines()[-1] == "drain of node-1 complete: 1 replaced on other nodes"
    assert sorted(listed) == ["node-1:ineligible", "node-2:eligible"]
    assert "Eligibility  eligible" in terminal.run_ok("node", "status", "node-1")


def test_a_node_is_shown_with_its_allocations(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB.replace("Count: 2", "Count: 4")))

    output = terminal.run_ok("node", "status", "node-2")

    assert "Allocations\n" in output
    assert "web.api[" in output


def test_an_allocation_is_shown_and_stopped_by_a_prefix_of_its_id(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    full_id = terminal.run_ok("job", "allocs", "-t", "{{range .}}{{.ID}} {{end}}", "web").split()[0]

    output = terminal.run_ok("alloc", "status", full_id[:8])
    terminal.run_ok("alloc", "stop", full_id[:8])

    assert f"ID          {full_id}" in output
    assert terminal.run_ok("alloc", "status", "-t", "{{.DesiredStatus}}", full_id) == "stop\n"


def test_an_evaluation_shows_the_groups_that_it_could_not_place(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("job", "run", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 900000")))
    ids = terminal.run_ok(
        "eval", "list", "--job", "web", "--status", "complete", "-t", "{{range .}}{{.ID}} {{end}}"
    ).split()

    assert "  · too little cpu on 2 nodes, at least 896,000 MHz missing" in terminal.run_ok(
        "eval", "status", ids[-1][:8]
    )


def test_a_namespace_is_created_changed_used_and_deleted(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("namespace", "apply", "--description", "the shop", "shop")
    terminal.run_ok("namespace", "apply", "--weight", "5", "shop")
    terminal.run_ok("job", "run", "--namespace", "shop", "--detach", write_file(tmp_path, WEB))
    refused_deletion = terminal.run("namespace", "delete", "shop")
    in_all_namespaces = terminal.run_ok("job", "status", "--namespace", "*")
    terminal.run_ok("job", "stop", "--purge", "--namespace=shop", "web")
    terminal.wait(5)

    assert json.loads(terminal.run_ok("namespace", "inspect", "shop"))["Description"] == "the shop"
    assert terminal.run_ok("namespace", "inspect", "-t", "{{.Weight}}", "shop") == "5\n"
    assert refused_deletion.code == 1
    assert in_all_namespaces.splitlines()[1].split()[:2] == ["web", "shop"]
    assert terminal.run_ok("job", "status") == "No jobs yet; `wharf job run FILE` submits one.\n"


def test_a_variable_is_written_read_protected_by_check_index_and_deleted(terminal: Terminal) -> None:
    terminal.run_ok("var", "put", "jobs/web", "user=shop", "--check-index", "0")
    repeated = terminal.run("var", "put", "--check-index", "0", "jobs/web", "user=other")
    index = terminal.run_ok("var", "get", "-t", "{{.ModifyIndex}}", "jobs/web").strip()
    purged = terminal.run("var", "purge", "--check-index", "1", "jobs/web")

    expected = f"wharf: variable jobs/web was changed: its check index is {index}; `wharf var get jobs/web` prints it\n"
    assert (repeated.code, repeated.err) == (1, expected)
    assert (purged.code, purged.err) == (1, expected)
    assert terminal.run_ok("var", "get", "--item", "user", "jobs/web") == "shop\n"
    assert terminal.run_ok("var", "list", "-t", "{{range .}}{{.Path}}{{end}}") == "jobs/web\n"
    terminal.run_ok("var", "purge", "jobs/web")
    assert terminal.run_ok("var", "list") == "No variables.\n"


def test_a_write_to_a_deleted_or_locked_variable_is_refused(terminal: Terminal) -> None:
    deleted = terminal.run("var", "put", "--check-index", "7", "jobs/gone", "user=other")
    terminal.run_ok("operator", "api", "/v1/var/jobs/held?lock-acquire", '{"Items": {"a": "b"}}')
    locked = terminal.run("var", "put", "jobs/held", "user=other")

    for result, path in ((deleted, "jobs/gone"), (locked, "jobs/held")):
        assert (result.code, result.err) == (
            1, f"wharf: variable {path} does not exist or its lock is held; check with `wharf var get {path}`\n"
        )  # fmt: skip


@pytest.mark.parametrize(("program", "code"), [("true", 0), ("false", 1)])
def test_a_program_runs_with_a_lock_and_its_exit_code_is_returned(terminal: Terminal, program: str, code: int) -> None:
    result = terminal.run("var", "lock", "locks/a", program)

    assert (result.code, result.err) == (code, "")
    assert terminal.run("var", "lock", "locks/a", "true").code == 0
    assert terminal.run("var", "lock", "locks/a", "--", program).code == code
    assert terminal.run("var", "lock", "locks/a", "--").err.startswith("wharf: ")


def test_changing_one_scheduler_setting_keeps_the_others(terminal: Terminal) -> None:
    terminal.run_ok("operator", "scheduler", "set-config", "--scheduler-algorithm", "spread")
    terminal.run_ok("operator", "scheduler", "set-config", "--preempt-batch-scheduler", "true")

    output = terminal.run_ok("operator", "scheduler", "get-config")
    assert "Algorithm                  spread" in output
    assert "batch" in output


def test_a_quota_is_stored_from_a_file_and_shown_with_its_usage(terminal: Terminal, tmp_path: Path) -> None:
    file = write_file(tmp_path, "Name: small\nLimits:\n  - {Region: global, RegionLimit: {CPU: 500}}\n")
    terminal.run_ok("quota", "apply", file)
    terminal.run_ok("namespace", "apply", "--quota", "small", "shop")

    assert "500" in terminal.run_ok("namespace", "status", "shop")
    invalid = terminal.run("quota", "apply", write_file(tmp_path, "Nam: small", "wrong.yaml"))
    assert invalid.err.endswith("wrong.yaml: unknown field Nam; the fields are Name, Description, Limits, Hash, CreateIndex, "
                              "ModifyIndex\n")  # fmt: skip


def test_a_placement_refused_by_a_quota_is_not_reported_as_a_lack_of_nodes(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok(
        "quota", "apply", write_file(tmp_path, "Name: small\nLimits:\n  - {Region: global, RegionLimit: {CPU: 150}}\n")
    )
    terminal.run_ok("namespace", "apply", "--quota", "small", "shop")
    result = terminal.run("job", "run", "--namespace", "shop", write_file(tmp_path, WEB))

    assert result.code == 2
    assert result.lines[-2:] == [
        "  api: 1 not placed",
        "    · quota of the namespace: cpu exhausted (200 needed > 150 limit)",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Name: x\nLimit: []\n", "unknown field Limit; "),
        (
            "Name: x\nLimits: [{Region: global, RegionLimits: {CPU: 3}}]\n",
            "unknown field Limits[0].RegionLimits; did you mean RegionLimit?",
        ),
        ("Name: x\nLimits: [{Region: global, RegionLimit: {CPU: much}}]\n", "Expected `int`, got `str`"),
        ("- a\n", "expected a map of fields"),
    ],
)
def test_an_unknown_field_in_a_record_file_is_an_error(
    terminal: Terminal, tmp_path: Path, text: str, expected: str
) -> None:
    file = write_file(tmp_path, text, "quota.yaml")

    result = terminal.run("quota", "apply", file)

    assert (result.code, result.err.startswith(f"wharf: {file}: {expected}")) == (1, True), result.err
    assert terminal.run_ok("quota", "list") == "No quotas.\n"


def test_a_node_pool_is_created_shown_and_deleted(terminal: Terminal) -> None:
    terminal.run_ok("node", "pool", "apply", "--description", "machines with cards", "gpu")
    terminal.run_ok("node", "pool", "apply", "gpu")

    assert terminal.run_ok("node", "pool", "info", "gpu") == "Name         gpu\nDescription  machines with cards\n"
    assert terminal.run_ok("node", "pool", "nodes", "default", "-t", "{{len .}}") == "2\n"
    assert terminal.run_ok("node", "pool", "jobs", "default").startswith("No jobs")
    terminal.run_ok("node", "pool", "delete", "gpu")
    assert terminal.run_ok("node", "pool", "list", "-t", "{{range .}}{{.Name}} {{end}}") == "all default \n"


def test_status_shows_any_object_by_a_prefix_of_its_id(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", write_file(tmp_path, WEB))

    assert "Datacenters" in terminal.run_ok("status", "web")
    assert terminal.run_ok("status").splitlines()[1].split() == ["Nodes", "2", "of", "2", "ready"]
    assert "Eligibility" in terminal.run_ok("status", "node-1")
    assert terminal.run("status", "zzz").code == 1


def test_a_missing_object_is_reported_in_one_line(terminal: Terminal) -> None:
    missing = terminal.run("namespace", "status", "nobody")

    assert (missing.code, len(missing.err.splitlines())) == (1, 1)


def test_options_override_the_environment_and_may_have_one_dash(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOMAD_TOKEN", "theirs")
    monkeypatch.setenv("WHARF_ADDR", "a:1")

    terminal.run("namespace", "list", "-address=b:2", "-region", "global")

    settings = terminal.used_settings[-1]
    assert (settings.addresses, settings.region, settings.token) == (("http://b:2",), "global", "theirs")


def test_ids_are_completed_by_asking_a_server(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    context = root.make_context("wharf", ["job"], resilient_parsing=True, obj=terminal)

    matches = complete_jobs(context, None, "w")  # type: ignore[arg-type]  # The parameter is unused.

    assert [(item.value, item.help) for item in matches] == [("web", "running")]


def test_permissions_are_granted_by_policies_roles_and_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open_terminal(capsys, access=True) as terminal:
        secret = terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip()
        refusal = terminal.run("job", "status")
        monkeypatch.setenv("WHARF_TOKEN", secret)
        terminal.run_ok(
            "acl", "policy", "apply", "reader", write_file(tmp_path, 'namespace "*" { policy = "read" }', "r.hcl")
        )
        terminal.run_ok("acl", "role", "create", "--name", "team", "--policy", "reader")
        created = json.loads(terminal.run_ok("acl", "token", "create", "--name", "me", "--role-name", "team", "--json"))
        monkeypatch.setenv("WHARF_TOKEN", created["SecretID"])
        reads = terminal.run("job", "status")
        writes = terminal.run("job", "run", write_file(tmp_path, WEB))
        own_token = terminal.run_ok("acl", "token", "self", "-t", "{{.Name}}")
        status = terminal.run_ok("status")
        monkeypatch.setenv("WHARF_TOKEN", secret)
        listed = terminal.run_ok("acl", "token", "list")
        terminal.run_ok("acl", "token", "delete", created["AccessorID"][:7])
        deleted = terminal.run("acl", "token", "info", "me")

    assert refusal.err.startswith("wharf: Permission denied: the request had no token; it needs ")
    assert (reads.code, writes.code, own_token) == (0, 1, "me\n")
    assert writes.err == (
        'wharf: Permission denied: token "me" lacks the capability submit-job (or register-job) in namespace "default" or '
        "any other; "
        "`wharf acl token self` shows the token\n"
    )
    assert status.splitlines()[1] == "Nodes   not visible to this token"
    assert [line.split()[1:5] for line in listed.splitlines() if " me " in line] == [["me", "client", "-", "team"]]
    assert deleted.err == (
        "wharf: no token has this accessor id or name: `wharf acl token list` lists the accessor ids; a secret is not "
        "accepted\n"
    )


@pytest.mark.parametrize(
    ("text", "is_sent", "tls_failure", "expected"),
    [
        (
            "bad certificate",
            False,
            TlsFailure.UNTRUSTED_SERVER_CERTIFICATE,
            "set --ca-cert or WHARF_CACERT to the certificate of the authority that signed it",
        ),
        (
            "no certificate",
            True,
            TlsFailure.CLIENT_CERTIFICATE_REQUIRED,
            "the server requires a client certificate: set --client-cert and --client-key, or WHARF_CLIENT_CERT",
        ),
        ("broken record", True, TlsFailure.OTHER, "does the server use https?"),
        (
            "CERTIFICATE_VERIFY_FAILED",
            False,
            None,
            "`wharf dev` starts a server on this machine; --address or WHARF_ADDR selects another",
        ),
        (
            "Server disconnected",
            True,
            None,
            "is this the address of a Wharf server?",
        ),
    ],
)
def test_an_unreachable_server_is_reported_with_a_hint(
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    is_sent: bool,
    tls_failure: TlsFailure | None,
    expected: str,
) -> None:
    class UnreachableTransport:
        """A transport that cannot connect."""

        def send(self, _: ClientRequest) -> ClientReply:
            raise Unreachable(f"http://here ({text})", is_sent=is_sent, tls_failure=tls_failure)

        def open(self, _: ClientRequest) -> SyncStreamedReply:
            raise AssertionError("nothing here is streamed")

        def close(self) -> None:
            return

    monkeypatch.setattr(
        terminal, "connect", lambda _: SyncClient(terminal.world, [UnreachableTransport()], retry_policy=NO_RETRIES)
    )

    result = terminal.run("job", "status")

    assert result.code == 1
    assert result.err.startswith(f"wharf: http://here ({text}); {expected}"), result.err
    if is_sent and tls_failure is None:
        changed = terminal.run("system", "gc")
        assert changed.err.startswith(f"wharf: http://here ({text}); the change may already have been applied")


@pytest.mark.parametrize(
    ("status", "headers", "hint"),
    [
        (403, {}, "Permission denied: the request had no token; set --token or WHARF_TOKEN"),
        (403, {REASON_HEADER: "secret-file"}, "Permission denied"),
        (403, {REASON_HEADER: "exec-disabled"}, "Permission denied"),
        (400, {}, "Permission denied"),
        (
            400,
            {REASON_HEADER: "acl-disabled"},
            "Permission denied: every request is allowed; the documentation page Access control",
        ),
        (400, {REASON_HEADER: "of-tomorrow"}, "Permission denied"),
    ],
)
def test_the_hint_for_a_refusal_depends_on_its_reason_and_not_on_its_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], hint: str
) -> None:
    class RefusingTransport:
        """A transport that returns the same refusal for every request."""

        def send(self, _: ClientRequest) -> ClientReply:
            return ClientReply(status, headers, b"Permission denied")

        def open(self, _: ClientRequest) -> SyncStreamedReply:
            raise AssertionError("nothing here is streamed")

        def close(self) -> None:
            return

    monkeypatch.setattr(
        terminal, "connect", lambda _: SyncClient(terminal.world, [RefusingTransport()], retry_policy=NO_RETRIES)
    )

    result = terminal.run("job", "status")

    assert result.err.rstrip("\n") == f"wharf: {hint}" or (
        hint.endswith("page Access control") and result.err.startswith(f"wharf: {hint} ")
    )


def test_an_id_prefix_may_have_any_length(terminal: Terminal, tmp_path: Path) -> None:
    """Servers match prefixes of whole bytes only; the CLI compares the last half byte."""
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    full_id = terminal.run_ok("job", "allocs", "-t", "{{(index . 0).ID}}", "web").strip()
    failed_lengths = [length for length in range(3, 14) if terminal.run("alloc", "status", full_id[:length]).code != 0]
    missing = terminal.run("node", "status", "x")

    assert failed_lengths == []
    assert missing.err == "wharf: node x does not exist; `wharf node status` lists all\n"
    assert terminal.run("eval", "status", "").err == "wharf: missing evaluation: `wharf eval list` lists all\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("job", "inspect"), "Missing argument 'JOB'; see `wharf job inspect --help`"),
        (("namespace", "status", "gone"), "namespace gone does not exist; `wharf namespace list` lists all"),
        (("var", "get", "gone"), "variable gone does not exist in namespace default; `wharf var list` lists all"),
        (("operator", "api", "nope"), "404: no API endpoint at /v1/nope; /v1/docs lists the endpoints"),
        (("quota", "status", "gone"), 'quota "gone" not found; `wharf quota list` lists all'),
        (
            ("job", "status", "--region", "mars"),
            "No path to region; no server knows a server of that region: `wharf operator api /v1/regions` lists the "
            "regions; leave out --region for the region of the server",
        ),
    ],
)
def test_an_unknown_name_is_one_line_with_a_hint_where_to_look(
    terminal: Terminal, words: tuple[str, ...], expected: str
) -> None:
    result = terminal.run(*words)

    assert (result.code, result.out, result.err) == (1, "", f"wharf: {expected}\n")


def test_a_version_is_tagged_reverted_to_by_its_tag_and_untagged(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB))
    terminal.run_ok("job", "tag", "apply", "--name", "golden", "web")
    terminal.run_ok("job", "run", "--follow", write_file(tmp_path, WEB.replace("CPU: 100", "CPU: 120")))
    reverted = terminal.run_ok("job", "revert", "--detach", "web", "golden")
    tags = terminal.run_ok("job", "history", "-t", "{{range .}}{{with .VersionTag}}{{.Name}}{{end}},{{end}}", "web")
    terminal.run_ok("job", "tag", "unset", "--name", "golden", "web")

    assert reverted.splitlines()[0] == "reverted job web to version 0"
    assert tags.strip() == ",,golden,"
    assert terminal.run("job", "revert", "web", "golden").code == 1


def test_a_program_under_a_lock_is_stopped_if_the_lock_cannot_be_renewed(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(terminal, ClientSettings(), is_json=False, template="", is_verbose=False)
    terminal.set_away(True)

    with pytest.raises(CliError, match="stopped the program because the lock of locks/a was lost: no server"):
        run_with_lock(session, "locks/a", "1", ("sleep", "60"), 0.1)

    assert capsys.readouterr().err == "the lock of locks/a was not renewed: no server at this address; trying again\n"
