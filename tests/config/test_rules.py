"""Rules for combinations of settings."""

import pytest

from wharf.config.configuration import CommandFlag, Configuration, load_configuration
from wharf.config.errors import ConfigurationError
from wharf.config.tree import KeyPath, PlainValue, Scalar

SERVER: dict[KeyPath, Scalar | list[PlainValue]] = {("data_dir",): "/var/lib/wharf", ("server", "enabled"): True}


def configure(**values: object) -> Configuration:
    """Flags by name: `a__b="x"` is the setting a.b."""
    presets = SERVER | {("client", "enabled"): True}
    flags = [CommandFlag("a flag", tuple(key.split("__")), value) for key, value in values.items()]  # type: ignore[arg-type] # The code under test checks it.
    return load_configuration(environment={}, flags=flags, presets=presets)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"region": "eu west"}, 'region: expected a name without spaces and slashes, given "eu west"'),
        ({"datacenter": "a/b"}, 'datacenter: expected a name without spaces and slashes, given "a/b"'),
        ({"data_dir": ""}, "data_dir: required: set the folder of all data"),
        ({"data_dir": "here"}, 'data_dir: expected an absolute path, given "here"'),
        (
            {"telemetry__prefix_filter": ["wharf.raft"]},
            "telemetry.prefix_filter: expected a metric name prefix after + or -",
        ),
        ({"server__max_heartbeats_per_second": 0}, "server.max_heartbeats_per_second: expected 0.01 or more, given 0"),
        (
            {"server__max_heartbeats_per_second": float("nan")},
            "server.max_heartbeats_per_second: expected 0.01 or more",
        ),
        ({"server__min_heartbeat_ttl": "0s"}, "server.min_heartbeat_ttl: expected 1s to 24h, given 0s"),
        ({"server__failover_heartbeat_ttl": "5s"}, "server.failover_heartbeat_ttl: expected 30s or more"),
        ({"sinks__a__path": "x"}, 'sinks.a.path: expected an absolute path, given "x"'),
        ({"sinks__A__path": "/x"}, 'sinks.A: expected a name of lowercase letters, digits, "_" and "-", given "A"'),
        ({"sinks__a__kind": "file"}, "sinks.a.path: is missing: a sink of the kind file needs the file"),
        (
            {"sinks__a__path": "/x", "sinks__a__types": ["audit"]},
            "sinks.a.types: 'audit' is not a type of record: known are cluster.audit, cluster.event, sink.loss",
        ),
        ({"sinks__a__path": "/x", "sinks__a__timeout": "0s"}, "sinks.a.timeout: expected more than 0 and at most 300s"),
        (
            {"sinks__a__kind": "s3", "sinks__a__url": "https://h", "sinks__a__bucket": "b"},
            "sinks.a.secret_file: is missing: a sink of the kind s3 needs a file with its two keys",
        ),
        ({"log_file": "log"}, 'log_file: expected an absolute path, given "log"'),
        ({"bind_addr": "example"}, 'bind_addr: expected an IP address or "localhost", given "example"'),
        (
            {"api__trusted_origins": ["https://a.example/"]},
            "api.trusted_origins: expected a scheme and a host, such as https://dashboard.example.com or "
            'http://localhost:3000, given "https://a.example/"',
        ),
        ({"api__trusted_origins": ["https://a.example", "*"]}, "api.trusted_origins: expected a scheme and a host"),
        ({"api__host_names": ["a.example:4646"]}, "api.host_names: expected a name without a port"),
        ({"bind_addr": "0.0.0.0"}, "bind_addr: listening on 0.0.0.0 without access control"),
        (
            {"acl__token_min_expiration_ttl": "2h", "acl__token_max_expiration_ttl": "1h"},
            "acl.token_min_expiration_ttl: it is longer than acl.token_max_expiration_ttl",
        ),
        (
            {"acl__enabled": True, "server__authoritative_region": "east", "acl__replication_token": "t"},
            "server.authoritative_region: no server of region east is configured: set regions.east.servers",
        ),
        (
            {"acl__enabled": True, "server__authoritative_region": "east", "regions__east__servers": ["https://e"]},
            "acl.replication_token: required to replicate global tokens and policies: set a management token of region east",
        ),
        ({"tls__verify_https_client": True}, "tls.verify_https_client: client certificates require TLS"),
        ({"addresses__http": "::"}, "addresses.http: listening on :: without access control"),
        ({"advertise__http": "example"}, 'advertise.http: expected "host:port", given "example"'),
        ({"advertise__http": "example:0"}, 'advertise.http: expected "host:port", given "example:0"'),
        ({"advertise__http": "example:70000"}, 'advertise.http: expected "host:port", given "example:70000"'),
        ({"advertise__http": "0.0.0.0:4646"}, "advertise.http: nobody can connect to 0.0.0.0: set an address"),
        ({"advertise__http": "[::]:4646"}, "advertise.http: nobody can connect to ::: set an address"),
        ({"client__servers": ["ftp://x"]}, 'client.servers: expected "host:port" or a URL such as'),
        ({"client__servers": ["http://a:1", "foo bar"]}, 'client.servers: expected "host:port" or a URL'),
        ({"regions__east__servers": ["http://"]}, 'regions.east.servers: expected "host:port" or a URL'),
        ({"tls__http": True, "tls__key_file": "/k"}, "tls.cert_file: required by tls.http = true"),
        ({"state__engine": "etcd", "state__etcd__endpoints": ["http://a:1"]}, 'without a scheme, given "http://a:1"'),
        ({"state__engine": "etcd", "state__etcd__endpoints": []}, "state.etcd.endpoints: expected at least one"),
        ({"state__engine": "etcd", "state__etcd__user": "u"}, "state.etcd.password: required by state.etcd.user"),
        ({"state__engine": "etcd", "state__etcd__prefix": "/"}, "state.etcd.prefix: expected a prefix"),
        ({"log_levels__enginees": "debug"}, "log_levels.enginees: there is no such package; did you mean engines?"),
        (
            {"client__min_dynamic_port": 40_000},
            "client.min_dynamic_port: 40000 is above client.max_dynamic_port, 32000",
        ),
        ({"limits__file": "limits.toml"}, 'limits.file: expected an absolute path, given "limits.toml"'),
        (
            {"limits__gateway_admin": "http://127.0.0.1:9090"},
            "limits.gateway_token_file: required: set both limits.gateway_admin and limits.gateway_token_file",
        ),
        (
            {"limits__gateway_token_file": "/etc/token"},
            "limits.gateway_admin: required: set both limits.gateway_admin and limits.gateway_token_file",
        ),
        *(
            (
                {"limits__gateway_admin": address, "limits__gateway_token_file": "/etc/token"},
                f'limits.gateway_admin: expected an address of this machine such as http://127.0.0.1:9090, given "{address}"',
            )
            for address in (
                "http://192.0.2.7:9090",
                "https://127.0.0.1:9090",
                "127.0.0.1:9090",
                "http://127.0.0.1:9090/x",
                "http://a@127.0.0.1:9090",
                "http://127.0.0.1",
                "http://127.0.0.1:0",
            )
        ),
        (
            {"limits__enabled": True, "state__engine": "etcd", "state__etcd__endpoints": ["a:1"]},
            "limits.file: every server would count requests on its own",
        ),
        (
            {"telemetry__in_memory_collection_interval": "0s"},
            "telemetry.in_memory_collection_interval: expected more than 0, such as 10s",
        ),
        (
            {"tls__http": True, "tls__cert_file": "/c", "tls__key_file": "/k", "tls__verify_https_client": True},
            "tls.ca_file: required by tls.verify_https_client = true: set the certificate of the authority",
        ),
        (
            {"state__engine": "etcd", "state__etcd__endpoints": ["a:1"], "state__etcd__tls__cert_file": "/c"},
            "state.etcd.tls.key_file: required: a certificate and its key must be set together",
        ),
        (
            {"state__engine": "etcd", "state__etcd__endpoints": ["a:1"], "state__etcd__tls__key_file": "/k"},
            "state.etcd.tls.cert_file: required: a certificate and its key must be set together",
        ),
        (
            {
                "state__engine": "etcd",
                "state__etcd__endpoints": ["a:1"],
                "state__etcd__tls__cert_file": "/c",
                "state__etcd__tls__key_file": "/k",
            },
            "state.etcd.tls.ca_file: required by state.etcd.tls.cert_file: set the certificate of etcd's authority",
        ),
        ({"server__enabled": False, "client__enabled": False}, "this agent would do nothing"),
        ({"server__enabled": False}, "client.servers: a node without a server in the same agent"),
    ],
)
def test_a_combination_that_cannot_work_is_rejected(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        configure(**values)

    assert message in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [
        {"bind_addr": "0.0.0.0", "allow_insecure": True},
        {"bind_addr": "0.0.0.0", "acl__enabled": True},
        {"bind_addr": "::1"},
        {"client__servers": ["https://[::1]:4646", "s1.example:4646", "http://s2/", "10.0.0.1:4646"]},
        {"bind_addr": "localhost"},
        {"bind_addr": "10.0.0.1", "addresses__http": "127.0.0.1"},
        {"log_levels__engines.etcd": "trace"},
        {"server__enabled": False, "client__servers": ["http://10.0.0.1:4646"], "bind_addr": "10.0.0.2"},
    ],
)
def test_a_combination_that_is_safe_is_accepted(values: dict[str, object]) -> None:
    assert configure(**values).settings.data_dir == "/var/lib/wharf"
