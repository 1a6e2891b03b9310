"""Configurations from files, folders, environment and flags, and the origin of each value."""

from pathlib import Path

import pytest

from wharf.cluster.engines.settings import EngineKind
from wharf.config.configuration import CommandFlag, Configuration, load_configuration
from wharf.config.errors import ConfigurationError
from wharf.config.files import MAX_FILE_BYTES
from wharf.contract.model.settings import Duration, Size

SERVER_SETTINGS = 'data_dir = "/var/lib/wharf"\n[server]\nenabled = true\n'


def read(folder: Path, *texts: str, ending: str = "toml", **environment: str) -> Configuration:
    files = [folder / f"{number}.{ending}" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return load_configuration(files, environment=environment)


def problems(folder: Path, *texts: str, ending: str = "toml", **environment: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        read(folder, *texts, ending=ending, **environment)
    return [str(problem).replace(f"{folder}/", "") for problem in raised.value.problems]


def test_a_later_file_wins_and_is_the_origin_of_the_value(tmp_path: Path) -> None:
    configuration = read(tmp_path, SERVER_SETTINGS, "[ports]\nhttp = 4700\n")

    assert configuration.settings.ports.http == 4700
    assert str(configuration.origin_of(("ports", "http"))) == f"{tmp_path}/1.toml:2"
    assert str(configuration.origin_of(("region",))) == "default"


def test_tables_merge_key_by_key(tmp_path: Path) -> None:
    settings = read(tmp_path, SERVER_SETTINGS + "job_max_priority = 90", "[server]\njob_default_priority = 40").settings

    assert (settings.server.job_max_priority, settings.server.job_default_priority) == (90, 40)


def test_lists_of_several_files_are_joined_without_repeats(tmp_path: Path) -> None:
    configuration = read(tmp_path, SERVER_SETTINGS + '[client]\nservers = ["a", "b"]', '[client]\nservers = ["b", "c"]')

    assert configuration.settings.client.servers == ("a", "b", "c")
    assert str(configuration.origin_of(("client", "servers"))) == f"{tmp_path}/0.toml:5, {tmp_path}/1.toml:2"


def test_a_list_of_a_file_replaces_the_default(tmp_path: Path) -> None:
    settings = read(tmp_path, SERVER_SETTINGS + 'enabled_schedulers = ["batch"]').settings

    assert settings.server.enabled_schedulers == ("batch",)


def test_the_configuration_files_of_a_folder_are_read_sorted_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"region": "late"}')
    (tmp_path / "a.toml").write_text('region = "early"\n' + SERVER_SETTINGS)
    (tmp_path / "notes.txt").write_text("no configuration")
    (tmp_path / "inside.toml").mkdir()

    assert load_configuration([tmp_path], environment={}).settings.region == "late"


def test_the_environment_beats_files_and_flags_beat_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SERVER_SETTINGS + '[ports]\nhttp = 1\n[state]\nengine = "etcd"')
    environment = {
        "WHARF_CONFIG__PORTS__HTTP": "2",
        "WHARF_CONFIG__STATE__ETCD__ENDPOINTS": "a:1, b:2",
        "WHARF_CONFIG__CLIENT__ENABLED": "true",
        "OTHER": "x",
    }

    configuration = load_configuration(
        [tmp_path / "a.toml"], environment=environment, flags=[CommandFlag("--port", ("ports", "http"), 3)]
    )

    assert configuration.settings.ports.http == 3
    assert str(configuration.origin_of(("ports", "http"))) == "--port"
    assert configuration.settings.state.etcd.endpoints == ("a:1", "b:2")
    assert configuration.settings.client.enabled
    assert str(configuration.origin_of(("client", "enabled"))) == "WHARF_CONFIG__CLIENT__ENABLED"


def test_presets_of_a_command_are_weaker_than_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/var/lib/wharf"')

    configuration = load_configuration(
        [tmp_path], environment={}, presets={("data_dir",): "/elsewhere", ("server", "enabled"): True}
    )

    assert configuration.settings.data_dir == "/var/lib/wharf"
    assert configuration.settings.server.enabled
    assert str(configuration.origin_of(("server", "enabled"))) == "default of this command"


def test_values_take_the_types_of_their_settings(tmp_path: Path) -> None:
    text = SERVER_SETTINGS + 'job_gc_threshold = "1h30m"\njob_max_source_size = "2MB"\nmax_heartbeats_per_second = 20\n'
    settings = read(tmp_path, text + '[client.host_volume.data]\npath = "/srv"\n[state]\nengine = "SQLite"').settings

    assert settings.server.job_gc_threshold == Duration(5_400_000_000_000)
    assert settings.server.job_max_source_size == Size(2_000_000)
    assert settings.server.max_heartbeats_per_second == 20.0
    assert settings.client.host_volume["data"].path == "/srv"
    assert settings.state.engine is EngineKind.SQLITE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[sever]\nenabled = true", "0.toml:4: sever: there is no such setting; did you mean server?"),
        ("enabld = true", "0.toml:4: server.enabld: there is no such setting; did you mean server.enabled?"),
        ("[ports]\nhtttp = 1", "0.toml:5: ports.htttp: there is no such setting; did you mean ports.http?"),
        ("engine = 'etcd'", "0.toml:4: server.engine: there is no such setting; did you mean state.engine?"),
        (
            "[ports]\nrpc = 4647",
            "0.toml:5: ports.rpc: there is no such setting here; servers and nodes communicate over the HTTP port: remove it",
        ),
        (
            "[ports]\nhttp = '4646'",
            '0.toml:5: ports.http: expected an integer, given the text "4646"',
        ),
        ("[ports]\nhttp = true", "0.toml:5: ports.http: expected an integer, given true"),
        ("[ports]\nhttp = 70000", "0.toml:5: ports.http: expected 65535 or less, given 70000"),
        ("[ports]\nhttp = -1", "0.toml:5: ports.http: expected 0 or more, given -1"),
        (
            "job_gc_interval = 5",
            '0.toml:4: server.job_gc_interval: expected a duration such as "30s", given the number 5',
        ),
        (
            "job_gc_interval = 'soon'",
            '0.toml:4: server.job_gc_interval: expected a duration such as "30s", given the text "soon"',
        ),
        ("[client]\nservers = 'a'", '0.toml:5: client.servers: expected a list of texts, given the text "a"'),
        ("[client]\nservers = [1]", "0.toml:5: client.servers: expected a list of texts, given a list"),
        ("[client]\nmeta = 3", "0.toml:5: client.meta: expected a table, given the number 3"),
        ("[client.meta]\na = 3", "0.toml:5: client.meta.a: expected a text, given the number 3"),
        ("[tls.http]\na = 3", "0.toml:4: tls.http: expected true or false, given a table"),
        ("[client]\nservers = [{a = 1}]", "0.toml:5: client.servers: expected a list of texts, given a list"),
        (
            "job_gc_interval = 2026-11-21",
            '0.toml:4: server.job_gc_interval: expected a duration such as "30s", given the date or time 2026-11-21',
        ),
        (
            "[client.metadata]\na = 'b'",
            "0.toml:4: client.metadata: there is no such setting; did you mean client.meta?",
        ),
        (
            "[state]\nengine = 'sqlit'",
            '0.toml:5: state.engine: expected one of "sqlite", "etcd", "memory", given the text "sqlit"; '
            'did you mean "sqlite"?',
        ),
        (
            "[client.host_volume.data]\npaht = '/srv'",
            "0.toml:5: client.host_volume.data.paht: there is no such setting; did you mean client.host_volume.data.path?",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_file_line_key_and_remedy(tmp_path: Path, text: str, problem: str) -> None:
    assert problems(tmp_path, SERVER_SETTINGS + text) == [problem]


def test_a_key_without_a_similar_one_is_reported_with_the_keys_of_its_table(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, SERVER_SETTINGS + "[acl]\nzzz = 1")

    assert problem.startswith("0.toml:5: acl.zzz: there is no such setting; acl has enabled, ")


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVER_SETTINGS + "[state.etcd]\npassword = 12345") == [
        "0.toml:5: state.etcd.password: expected a text, given a value of another type"
    ]


def test_all_mistakes_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, SERVER_SETTINGS + "[ports]\nhttp = 'x'", "nonsense = 1", "= broken")

    assert [problem.split(":")[0] for problem in found] == ["2.toml", "0.toml", "1.toml"]


def test_an_unknown_variable_is_an_error_like_an_unknown_key(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVER_SETTINGS, WHARF_CONFIG__PORT__HTTP="1") == [
        "WHARF_CONFIG__PORT__HTTP: port: there is no such setting; did you mean ports?"
    ]


@pytest.mark.parametrize(
    ("ending", "text", "problem"),
    [
        ("toml", "a = ", "0.toml: this is not valid TOML: Invalid value (at end of document)"),
        (
            "toml",
            '{"region": "x"}',
            "0.toml: this is not valid TOML: Invalid statement (at line 1, column 1); the name of a JSON file must end in .json",
        ),
        ("json", "[1]", "0.json: expected one JSON object: { ... }"),
        (
            "json",
            '{\n"region": "x",\n"region": "y"}',
            "0.json:3: region: this key occurs twice in one object",
        ),
        (
            "json",
            '{"a": [{"b": 1}, {"c": {"d": 1,\n"d": 2}}]}',
            "0.json:2: a.c.d: this key occurs twice in one object",
        ),
        ("yaml", "region: x", "0.yaml: unknown format: the name of a configuration file ends in .toml or .json"),
        (
            "json",
            "{",
            "0.json: this is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ],
)
def test_a_file_that_is_not_a_configuration_is_rejected(tmp_path: Path, ending: str, text: str, problem: str) -> None:
    assert problems(tmp_path, text, ending=ending) == [problem]


def test_a_missing_file_is_reported_with_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.toml: there is no such file or folder: check the path$"):
        load_configuration([tmp_path / "gone.toml"], environment={})


def test_a_number_for_a_float_setting_and_a_number_for_a_size_are_accepted(tmp_path: Path) -> None:
    settings = read(tmp_path, SERVER_SETTINGS + "max_heartbeats_per_second = 2.5\njob_max_source_size = 5000").settings

    assert (settings.server.max_heartbeats_per_second, settings.server.job_max_source_size) == (2.5, Size(5_000))


def test_variables_are_converted_to_the_types_of_their_settings(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        SERVER_SETTINGS,
        WHARF_CONFIG__SERVER__MAX_HEARTBEATS_PER_SECOND="2.5",
        WHARF_CONFIG__TLS__HTTP="FALSE",
    ).settings

    assert (settings.server.max_heartbeats_per_second, settings.tls.http) == (2.5, False)


def test_a_variable_of_the_wrong_type_is_rejected_by_name(tmp_path: Path) -> None:
    assert problems(tmp_path, SERVER_SETTINGS, WHARF_CONFIG__PORTS__HTTP="many") == [
        'WHARF_CONFIG__PORTS__HTTP: ports.http: expected an integer, given the text "many"'
    ]


def test_an_empty_json_file_has_no_values(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SERVER_SETTINGS)
    (tmp_path / "b.json").write_text("\n")

    assert load_configuration([tmp_path], environment={}).settings.server.enabled


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbf" + SERVER_SETTINGS.encode())

    assert load_configuration([tmp_path], environment={}).settings.server.enabled


def test_a_file_that_is_too_large_is_rejected_unread(tmp_path: Path) -> None:
    with (tmp_path / "disk.toml").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    with pytest.raises(ConfigurationError, match=r"disk\.toml: the file is larger than \d+ MB: check the path$"):
        load_configuration([tmp_path / "disk.toml"], environment={})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "permission denied: change its owner or mode, or run as its owner"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
    ],
)
def test_a_folder_that_cannot_be_listed_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    def fail(_folder: Path) -> None:
        raise error

    monkeypatch.setattr(Path, "iterdir", fail)

    with pytest.raises(ConfigurationError) as raised:
        load_configuration([tmp_path], environment={})

    assert [str(problem) for problem in raised.value.problems] == [f"{tmp_path}: {reason}"]


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigurationError, match="the file is not text in UTF-8"):
        load_configuration([tmp_path / "a.toml"], environment={})
