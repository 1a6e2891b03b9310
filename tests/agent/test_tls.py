"""An agent that speaks HTTPS, with a node that believes it, and a certificate that is renewed while it runs."""

import signal
import ssl
import urllib.request
from pathlib import Path

from tests.agent.processes import run, running
from tests.agent.test_processes import an_agent
from tests.waiting import wait_until


def test_an_agent_speaks_https_and_takes_a_new_certificate_at_a_reload(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    assert run(folder, "tls", "create", "--folder", "tls").returncode == 0
    file = an_agent(
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
            with urllib.request.urlopen(f"https://{address}/v1/nodes", context=context, timeout=10) as reply:
                return bytes(reply.read())

        # The node, which calls over HTTPS too, has registered.
        wait_until(lambda: b'"ID"' in nodes(), what="the node is there")

        before = ssl.get_server_certificate((host, int(port)))
        assert run(folder, "tls", "create", "--folder", "tls", "--name", "new").returncode == 0
        for end in ("", "-key"):
            (folder / "tls" / f"new{end}.pem").replace(folder / "tls" / f"server-global{end}.pem")
        agent.signal(signal.SIGHUP)

        wait_until(lambda: ssl.get_server_certificate((host, int(port))) != before, what="a new certificate")
        assert b'"ID"' in nodes()


def test_a_certificate_that_cannot_be_used_is_told_with_its_file(tmp_path: Path) -> None:
    file = an_agent(
        tmp_path / "a",
        f'[tls]\nhttp = true\nca_file = "{tmp_path}/ca.pem"\ncert_file = "{tmp_path}/c.pem"\nkey_file = "{tmp_path}/k.pem"',
    )

    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        assert agent.wait_end(30.0) == 1
        assert "wharf: tls.ca_file, tls.cert_file or tls.key_file cannot be used" in agent.err
        assert "Traceback" not in agent.err
