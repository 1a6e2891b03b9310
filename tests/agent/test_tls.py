"""An agent that serves HTTPS: node connections, certificate renewal at a reload, and mutual TLS."""

import asyncio
import json
import shutil
import signal
import socket
import ssl
import urllib.request
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from msgspec.structs import replace

from tests.agent.processes import ANSWERED_WITHIN_S, run, running
from tests.agent.test_processes import write_agent_config
from tests.waiting import wait_until
from wharf.agent.errors import StartupError
from wharf.agent.startup import check_reloaded_files
from wharf.agent.tls.certificates import create_certificates, make_certificate, read_authority, write_pair
from wharf.agent.tls.contexts import (
    build_client_tls_context,
    build_server_tls_context,
    check_tls_files,
    load_certificate,
    reload_client_tls,
)
from wharf.agent.tls.validity import REREAD_INTERVAL_S, CertificateWatch, list_configured_problems
from wharf.cluster.api.settings import TlsSettings
from wharf.cluster.engines.settings import EngineKind, EtcdStateSettings, EtcdTlsSettings, StateSettings
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import HOUR
from wharf.world import RealWorld, SimulatedWorld


def test_an_agent_serves_https_and_uses_a_new_certificate_after_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--output-dir", "tls").returncode == 0
    file = write_agent_config(
        folder,
        f'[tls]\nhttp = true\nca_file = "{folder}/tls/wharf-ca.pem"\n'
        f'cert_file = "{folder}/tls/server-global.pem"\nkey_file = "{folder}/tls/server-global-key.pem"',
    )
    context = ssl.create_default_context(cafile=str(folder / "tls" / "wharf-ca.pem"))
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        address = agent.address.removeprefix("https://")
        host, port = address.split(":")

        def nodes() -> bytes:
            with urllib.request.urlopen(
                f"https://{address}/v1/nodes", context=context, timeout=ANSWERED_WITHIN_S
            ) as reply:
                return bytes(reply.read())

        # The node, which also connects over HTTPS, has registered.
        wait_until(lambda: b'"ID"' in nodes(), what="the node is registered")

        before = ssl.get_server_certificate((host, int(port)))
        assert run(folder, "tls", "create", "--output-dir", "tls", "--name", "new").returncode == 0
        for end in ("", "-key"):
            (folder / "tls" / f"new{end}.pem").replace(folder / "tls" / f"server-global{end}.pem")
        agent.signal(signal.SIGHUP)

        wait_until(
            lambda: ssl.get_server_certificate((host, int(port))) != before,
            what="the agent presents the new certificate",
        )
        assert b'"ID"' in nodes()


def test_a_connection_without_a_tls_handshake_is_closed_after_the_timeout(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--output-dir", "tls").returncode == 0
    file = write_agent_config(
        folder,
        f'[limits]\nhttps_handshake_timeout = "300ms"\n[tls]\nhttp = true\nca_file = "{folder}/tls/wharf-ca.pem"\n'
        f'cert_file = "{folder}/tls/server-global.pem"\nkey_file = "{folder}/tls/server-global-key.pem"',
    )
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        host, port = agent.address.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as silent:
            assert silent.recv(1) == b""


def test_an_agent_with_an_unusable_tls_file_ends_with_an_error_that_names_it(tmp_path: Path) -> None:
    file = write_agent_config(
        tmp_path / "a",
        f'[tls]\nhttp = true\nca_file = "{tmp_path}/ca.pem"\ncert_file = "{tmp_path}/c.pem"\nkey_file = "{tmp_path}/k.pem"',
    )

    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        assert agent.wait_end() == 1
        assert f"wharf: tls.ca_file {tmp_path}/ca.pem cannot be read: No such file or directory" in agent.err
        assert "Traceback" not in agent.err


def test_an_agent_with_a_key_of_another_certificate_ends_before_it_starts_a_cluster(
    tmp_path: Path, tls_folder: Path
) -> None:
    pair = f'cert_file = "{tls_folder}/server.pem"\nkey_file = "{tls_folder}/other-key.pem"'
    file = write_agent_config(tmp_path / "a", f"[tls]\nhttp = true\n{pair}")

    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        assert agent.wait_end() == 1
        message = f"wharf: tls.key_file {tls_folder}/other-key.pem is not the key of {tls_folder}/server.pem"
        assert agent.err.splitlines() == [message]

    assert not list((tmp_path / "a").rglob("log.db"))


@pytest.fixture(scope="module")
def tls_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with valid TLS files and a second certificate with its key."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("server", "other"):
        create_certificates(
            folder, region="global", is_server=True, files_name=name, alternative_names=(), days=5, authority_days=10
        )
    (folder / "wrong.pem").write_text("nothing of the kind")
    key = serialization.load_pem_private_key((folder / "server-key.pem").read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(b"a password")
    (folder / "locked-key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    return folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ca_file": "gone"}, "tls.ca_file {0}/gone cannot be read: No such file or directory"),
        ({"ca_file": "wrong.pem"}, "tls.ca_file {0}/wrong.pem holds no certificate in PEM form"),
        ({"cert_file": "gone"}, "tls.cert_file {0}/gone cannot be read: No such file or directory"),
        ({"cert_file": "wrong.pem"}, "tls.cert_file {0}/wrong.pem holds no certificate in PEM form"),
        ({"key_file": "gone"}, "tls.key_file {0}/gone cannot be read: No such file or directory"),
        ({"key_file": "wrong.pem"}, "tls.key_file {0}/wrong.pem holds no key in PEM form"),
        ({"key_file": "locked-key.pem"}, "tls.key_file {0}/locked-key.pem needs a password: give a key without one"),
        ({"key_file": "other-key.pem"}, "tls.key_file {0}/other-key.pem is not the key of {0}/server.pem"),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named(tls_folder: Path, files: dict[str, str], message: str) -> None:
    names = {"ca_file": "wharf-ca.pem", "cert_file": "server.pem", "key_file": "server-key.pem", **files}
    ca_file, cert_file, key_file = (str(tls_folder / name) for name in names.values())
    tls = TlsSettings(http=True, verify_https_client=True, ca_file=ca_file, cert_file=cert_file, key_file=key_file)

    for make in (build_client_tls_context, build_server_tls_context):
        with pytest.raises(StartupError) as caught:
            make(tls)
        assert str(caught.value) == message.format(tls_folder)


def test_the_old_certificate_stays_in_use_if_the_new_files_are_invalid(tls_folder: Path) -> None:
    tls = TlsSettings(http=True, cert_file=str(tls_folder / "server.pem"), key_file=str(tls_folder / "server-key.pem"))
    context = build_server_tls_context(tls)

    with pytest.raises(StartupError, match="is not the key of"):
        load_certificate(context, replace(tls, cert_file=str(tls_folder / "other.pem")))

    caller = ssl.create_default_context(cafile=str(tls_folder / "wharf-ca.pem"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_end = context.wrap_bio(incoming, outgoing, server_side=True)
    client_end = caller.wrap_bio(outgoing, incoming, server_hostname="localhost")
    for end in (client_end, server_end, client_end, server_end):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    presented = client_end.getpeercert(binary_form=True)
    assert presented == ssl.PEM_cert_to_DER_cert((tls_folder / "server.pem").read_text())


def test_with_mutual_tls_only_clients_with_a_certificate_of_the_authority_are_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--output-dir", "tls").returncode == 0
    assert run(folder, "tls", "create", "--output-dir", "others").returncode == 0
    file = write_agent_config(
        folder,
        f'[tls]\nhttp = true\nverify_https_client = true\nca_file = "{folder}/tls/wharf-ca.pem"\n'
        f'cert_file = "{folder}/tls/server-global.pem"\nkey_file = "{folder}/tls/server-global-key.pem"',
    )

    def nodes_as(authority: str) -> bytes:
        """List the nodes with a certificate of this authority, or without a certificate if it is empty."""
        context = ssl.create_default_context(cafile=str(folder / "tls" / "wharf-ca.pem"))
        if authority:
            own = folder / authority
            context.load_cert_chain(own / "server-global.pem", own / "server-global-key.pem")
        with urllib.request.urlopen(f"{agent.address}/v1/nodes", context=context, timeout=ANSWERED_WITHIN_S) as reply:
            return bytes(reply.read())

    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        # The agent's own node also presents its certificate.
        wait_until(lambda: b'"ID"' in nodes_as("tls"), what="the node is registered")
        for untrusted in ("", "others"):
            with pytest.raises((ssl.SSLError, OSError)):
                nodes_as(untrusted)

        # A new authority is trusted after a reload, without a restart.
        authorities = (folder / "tls" / "wharf-ca.pem").read_text()
        (folder / "tls" / "wharf-ca.pem").write_text(authorities + (folder / "others" / "wharf-ca.pem").read_text())
        agent.signal(signal.SIGHUP)

        def is_accepted() -> bool:
            with suppress(ssl.SSLError, OSError):
                return b'"ID"' in nodes_as("others")
            return False

        wait_until(is_accepted, what="the agent trusts the new authority")


def get_presented_certificate(client_context: ssl.SSLContext, files: Path) -> bytes | None:
    """Return the certificate that a client presents to a server that requests one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server-key.pem")
    context.load_verify_locations(files / "wharf-ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(incoming, outgoing, server_side=True)
    caller = client_context.wrap_bio(outgoing, incoming, server_hostname="localhost")
    for end in (caller, server, caller, server):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return server.getpeercert(binary_form=True)


def test_a_reload_renews_the_client_certificate_and_keeps_the_old_one_if_the_new_is_invalid(
    tls_folder: Path,
) -> None:
    files = {"ca_file": "wharf-ca.pem", "cert_file": "server.pem", "key_file": "server-key.pem"}
    tls = TlsSettings(http=True, **{name: str(tls_folder / file) for name, file in files.items()})  # type: ignore[arg-type] # All are paths.
    context = build_client_tls_context(tls)
    assert context is not None
    renewed_tls = replace(tls, cert_file=str(tls_folder / "other.pem"), key_file=str(tls_folder / "other-key.pem"))

    reload_client_tls(context, renewed_tls)
    reload_client_tls(context, replace(tls, key_file=str(tls_folder / "gone")))

    assert get_presented_certificate(context, tls_folder) == ssl.PEM_cert_to_DER_cert(
        (tls_folder / "other.pem").read_text()
    )


def test_a_node_trusts_the_authority_of_its_servers_without_a_certificate_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--output-dir", "tls").returncode == 0
    file = write_agent_config(
        folder,
        f'[tls]\nhttp = true\ncert_file = "{folder}/tls/server-global.pem"\nca_file = "{folder}/tls/wharf-ca.pem"\n'
        f'key_file = "{folder}/tls/server-global-key.pem"',
    )
    with running(folder, "agent", "--config", str(file)) as servers:
        servers.wait_ready()
        node_folder = tmp_path / "n"
        node_folder.mkdir()
        node_file = node_folder / "node.toml"
        node_file.write_text(
            f'data_dir = "{node_folder}/data"\n[client]\nenabled = true\nservers = ["{servers.address}"]\n'
            f'[tls]\nca_file = "{folder}/tls/wharf-ca.pem"\n'
        )
        with running(node_folder, "agent", "--config", str(node_file)) as node:
            node.wait_ready()  # An agent that is only a node is ready once it has registered.


def test_a_reload_with_a_key_that_does_not_fit_applies_no_setting_and_names_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for name in ("server", "other"):
        assert run(folder, "tls", "create", "--output-dir", "tls", "--name", name).returncode == 0

    def write_config(key_file: str, log_level: str) -> Path:
        return write_agent_config(
            folder,
            f'log_level = "{log_level}"\n[tls]\nhttp = true\ncert_file = "{folder}/tls/server.pem"\n'
            f'ca_file = "{folder}/tls/wharf-ca.pem"\nkey_file = "{folder}/tls/{key_file}"',
        )

    with running(folder, "agent", "--config", str(write_config("server-key.pem", "info"))) as agent:
        agent.wait_ready()
        write_config("other-key.pem", "debug")
        agent.signal(signal.SIGHUP)
        wait_until(lambda: "the configuration was not reloaded" in agent.err, what="the rejected reload is logged")

        assert f"tls.key_file {folder}/tls/other-key.pem is not the key of {folder}/tls/server.pem" in agent.err
        assert "configuration reloaded" not in agent.err


def write_certificate(folder: Path, *, name: str, begin_days_ago: int, days: int) -> TlsSettings:
    """Write a server certificate of the folder's authority, and return settings that name it.

    It begins `begin_days_ago` days before now, or later if negative, and is valid for `days`.
    """
    authority = read_authority(folder)
    assert authority is not None
    pair = make_certificate(
        authority,
        name="server.global.wharf",
        alternative_names=("localhost",),
        is_server=True,
        now_ns=RealWorld().now_ns() - begin_days_ago * 24 * HOUR,
        days=days,
    )
    cert_file, key_file = write_pair(folder, name, pair)
    return TlsSettings(http=True, cert_file=str(cert_file), key_file=str(key_file))


class ShiftedWorld(SimulatedWorld):
    """A world with the wall clock of this machine, and a monotonic clock that the test sets."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        super().__init__(7, lambda: self.elapsed_s)

    def now_ns(self) -> int:
        return RealWorld().now_ns()


@pytest.mark.parametrize(("begin_days_ago", "days"), [(10, 5), (-3, 5)])
def test_the_check_of_the_tls_files_refuses_a_certificate_that_is_not_valid_now(
    tls_folder: Path, begin_days_ago: int, days: int
) -> None:
    tls = write_certificate(tls_folder, name=f"from{begin_days_ago}", begin_days_ago=begin_days_ago, days=days)
    expected = "ended on" if begin_days_ago > 0 else "is valid from"

    with pytest.raises(StartupError, match=rf"^tls\.cert_file {tls.cert_file} {expected} \d{{4}}-\d\d-\d\d"):
        check_tls_files(tls, now_ns=RealWorld().now_ns())


@pytest.mark.parametrize(
    ("begin_days_ago", "days", "problem"),
    [
        (350, 360, "ends on"),
        (340, 360, ""),
        (0, 10, ""),
        (7, 10, "ends on"),
        (10, 5, "ended on"),
    ],
)
def test_the_watch_reports_a_certificate_before_and_after_its_end(
    tls_folder: Path, begin_days_ago: int, days: int, problem: str
) -> None:
    name = f"watched-{begin_days_ago}-{days}"
    tls = write_certificate(tls_folder, name=name, begin_days_ago=begin_days_ago, days=days)

    found = CertificateWatch(RealWorld(), tls).find_problem()

    beginning = f"tls.cert_file {tls.cert_file} {problem} "
    assert found.startswith(beginning) if problem else found == ""


def build_etcd_settings(tls: TlsSettings) -> AgentSettings:
    """Return settings of a server that uses etcd with this client certificate."""
    etcd_tls = EtcdTlsSettings(ca_file=tls.cert_file, cert_file=tls.cert_file, key_file=tls.key_file)
    settings = AgentSettings()
    return replace(
        settings,
        server=replace(settings.server, enabled=True),
        state=StateSettings(engine=EngineKind.ETCD, etcd=EtcdStateSettings(tls=etcd_tls)),
    )


@pytest.mark.parametrize(
    ("begin_days_ago", "days", "problem"), [(350, 360, "ends on"), (340, 360, ""), (10, 5, "ended on")]
)
def test_the_problems_of_a_configuration_contain_those_of_certificates_for_etcd(
    tls_folder: Path, begin_days_ago: int, days: int, problem: str
) -> None:
    name = f"etcd-{begin_days_ago}-{days}"
    tls = write_certificate(tls_folder, name=name, begin_days_ago=begin_days_ago, days=days)
    settings = build_etcd_settings(tls)

    problems = list_configured_problems(settings, now_ns=RealWorld().now_ns())
    without_etcd = replace(settings, state=replace(settings.state, engine=EngineKind.SQLITE))

    assert [each.partition(" 20")[0] for each in problems] == [
        f"state.etcd.tls.{key} {tls.cert_file} {problem}" for key in ("cert_file", "ca_file") if problem
    ]
    assert all(each.endswith(": renew the certificate; no reload is needed") for each in problems)
    assert list_configured_problems(without_etcd, now_ns=RealWorld().now_ns()) == []


def test_a_renewed_certificate_for_etcd_is_not_reported_any_more_and_needs_no_reload(tls_folder: Path) -> None:
    ending = write_certificate(tls_folder, name="etcd-ending", begin_days_ago=350, days=360)
    renewed = write_certificate(tls_folder, name="etcd-renewed", begin_days_ago=0, days=360)
    etcd_tls = EtcdTlsSettings(cert_file=ending.cert_file, key_file=ending.key_file)
    world = ShiftedWorld()
    watch = CertificateWatch(world, TlsSettings(), etcd_tls)
    before = watch.find_problem()
    shutil.copyfile(renewed.cert_file, ending.cert_file)
    asyncio.run(watch.refresh())
    soon = watch.find_problem()
    world.elapsed_s = REREAD_INTERVAL_S
    asyncio.run(watch.refresh())

    assert before.startswith(f"state.etcd.tls.cert_file {ending.cert_file} ends on ")
    assert soon == before
    assert watch.find_problem() == ""


def test_an_ended_certificate_in_the_chain_is_reported_but_not_refused(tls_folder: Path) -> None:
    tls = write_certificate(tls_folder, name="chained", begin_days_ago=1, days=300)
    ended = write_certificate(tls_folder, name="cross-signed", begin_days_ago=10, days=5)
    with Path(tls.cert_file).open("a") as chain:
        chain.write(Path(ended.cert_file).read_text())

    check_tls_files(tls, now_ns=RealWorld().now_ns())

    expected = f"tls.cert_file {tls.cert_file} has a chain with a certificate that ended on "
    assert CertificateWatch(RealWorld(), tls).find_problem().startswith(expected)


def test_a_certificate_that_only_openssl_can_read_has_no_known_end_and_is_used(tls_folder: Path) -> None:
    certificate = ssl.PEM_cert_to_DER_cert((tls_folder / "server.pem").read_text())
    file = tls_folder / "unknown-version.pem"
    file.write_text(ssl.DER_cert_to_PEM_cert(certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x03", 1)))
    tls = TlsSettings(http=True, cert_file=str(file), key_file=str(tls_folder / "server-key.pem"))

    check_tls_files(tls, now_ns=RealWorld().now_ns())

    assert CertificateWatch(RealWorld(), tls).find_problem() == ""


@pytest.mark.parametrize(
    ("running_files", "new_files", "is_refused"),
    [
        ((), ("cert_file", "key_file"), True),
        (("ca_file",), ("ca_file", "cert_file", "key_file"), False),
        (("ca_file", "cert_file", "key_file"), ("ca_file",), True),
    ],
)
def test_a_reload_refuses_a_client_certificate_that_it_cannot_add_or_remove(
    tls_folder: Path, running_files: tuple[str, ...], new_files: tuple[str, ...], is_refused: bool
) -> None:
    files = {"ca_file": "wharf-ca.pem", "cert_file": "server.pem", "key_file": "server-key.pem"}

    def make_settings(names: tuple[str, ...]) -> AgentSettings:
        return AgentSettings(tls=TlsSettings(**{name: str(tls_folder / files[name]) for name in names}))  # type: ignore[arg-type] # All are paths.

    with pytest.raises(StartupError, match="restart the agent") if is_refused else nullcontext():
        check_reloaded_files(make_settings(running_files), make_settings(new_files), now_ns=RealWorld().now_ns())


def test_the_check_of_the_configuration_warns_of_a_certificate_for_etcd_that_ends_soon(tmp_path: Path) -> None:
    assert run(tmp_path, "tls", "create", "--output-dir", "tls").returncode == 0
    tls = write_certificate(tmp_path / "tls", name="ending", begin_days_ago=350, days=360)
    (tmp_path / "wharf.toml").write_text(
        f'data_dir = "{tmp_path}/data"\n[server]\nenabled = true\n[state]\nengine = "etcd"\n'
        f'[state.etcd.tls]\nca_file = "{tmp_path}/tls/wharf-ca.pem"\ncert_file = "{tls.cert_file}"\nkey_file = "{tls.key_file}"\n'
    )

    checked = run(tmp_path, "config", "check", "wharf.toml")

    assert checked.returncode == 0
    expected = f"note: state.etcd.tls.cert_file {tls.cert_file} ends on "
    assert expected in " ".join(checked.stderr.split())


def test_health_and_the_check_of_the_configuration_report_a_certificate_that_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--output-dir", "tls").returncode == 0
    tls = write_certificate(folder / "tls", name="ended", begin_days_ago=10, days=5)
    file = write_agent_config(folder, f'[tls]\nhttp = true\ncert_file = "{tls.cert_file}"\nkey_file = "{tls.key_file}"')
    unverified = ssl._create_unverified_context()  # The certificate has ended.

    checked = run(folder, "config", "check", str(file))
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        with urllib.request.urlopen(
            f"{agent.address}/v1/agent/health?type=server", context=unverified, timeout=ANSWERED_WITHIN_S
        ) as reply:
            health = json.load(reply)["server"]

    assert checked.returncode == 1
    assert f"tls.cert_file {tls.cert_file} ended on" in checked.stderr
    assert health["message"].startswith(f"tls.cert_file {tls.cert_file} ended on")
    assert "certificate is not valid: others refuse it" in agent.err
