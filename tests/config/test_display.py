"""Showing and comparing configurations."""

from pathlib import Path

from wharf.config.configuration import Configuration, Flag, load
from wharf.config.display import compare, shown
from wharf.config.tree import Path as ConfigPath
from wharf.config.tree import Plain, Scalar
from wharf.config.values import redacted, secrets_in

PRESETS: dict[ConfigPath, Scalar | list[Plain]] = {("data_dir",): "/var/lib/wharf", ("server", "enabled"): True}


def configure(**given: str | int | list[Plain]) -> Configuration:
    flags = [Flag(f"--{key}", tuple(key.split("__")), value) for key, value in given.items()]
    return load(environment={}, flags=flags, presets=PRESETS)


def test_every_value_is_shown_with_where_it_came_from() -> None:
    values = {value.key: (value.value, value.origin) for value in shown(configure(ports__http=1))}

    assert values["ports.http"] == (1, "--ports__http")
    assert values["region"] == ("global", "default")
    assert values["server.job_gc_interval"] == ("5m", "default")
    assert values["server.enabled"] == (True, "default of this command")


def test_a_secret_is_never_shown_but_that_it_is_set_is() -> None:
    configuration = configure(state__etcd__password="hunter2", client__intro_token="s.abc")

    text = f"{shown(configuration)} {redacted(configuration.settings)} {configuration.settings}"
    assert "hunter2" not in text
    assert "s.abc" not in text
    values = {value.key: value.value for value in shown(configuration)}
    assert values["state.etcd.password"] == "<redacted>"
    assert secrets_in(configuration.settings) == ["hunter2", "s.abc"]


def test_a_comparison_tells_what_a_reload_applies_and_what_needs_a_restart() -> None:
    difference = compare(
        configure(client__meta__rack="1").settings,
        configure(log_level="debug", log_levels__engines="trace", ports__http=1, client__meta__rack="2").settings,
    )

    assert sorted(difference.applied) == ["log_level", "log_levels.engines"]
    assert sorted(difference.needs_restart) == ["client.meta.rack", "ports.http"]


def test_two_equal_configurations_differ_in_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true')

    difference = compare(load([tmp_path], environment={}).settings, configure().settings)

    assert (difference.applied, difference.needs_restart) == ([], [])
