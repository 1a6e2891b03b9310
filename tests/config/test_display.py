"""Showing and comparing configurations."""

from pathlib import Path

from wharf.config.configuration import CommandFlag, Configuration, load_configuration
from wharf.config.display import apply_live_settings, compare_settings, list_values
from wharf.config.tree import KeyPath, PlainValue, Scalar
from wharf.config.values import list_secrets, redact_settings

PRESETS: dict[KeyPath, Scalar | list[PlainValue]] = {("data_dir",): "/var/lib/wharf", ("server", "enabled"): True}


def configure(**values: str | int | list[PlainValue]) -> Configuration:
    flags = [CommandFlag(f"--{key}", tuple(key.split("__")), value) for key, value in values.items()]
    return load_configuration(environment={}, flags=flags, presets=PRESETS)


def test_every_value_is_listed_with_its_origin() -> None:
    values = {value.key: (value.value, value.origin) for value in list_values(configure(ports__http=1))}

    assert values["ports.http"] == (1, "--ports__http")
    assert values["region"] == ("global", "default")
    assert values["server.job_gc_interval"] == ("5m", "default")
    assert values["server.enabled"] == (True, "default of this command")


def test_a_secret_is_shown_only_as_set_or_not_set() -> None:
    configuration = configure(state__etcd__password="hunter2", client__intro_token="s.abc")

    text = f"{list_values(configuration)} {redact_settings(configuration.settings)} {configuration.settings}"
    assert "hunter2" not in text
    assert "s.abc" not in text
    values = {value.key: value.value for value in list_values(configuration)}
    assert values["state.etcd.password"] == "<redacted>"
    assert list_secrets(configuration.settings) == ["hunter2", "s.abc"]


def test_a_comparison_lists_what_a_reload_applies_and_what_needs_a_restart() -> None:
    difference = compare_settings(
        configure(client__meta__rack="1").settings,
        configure(log_level="debug", log_levels__engines="trace", ports__http=1, client__meta__rack="2").settings,
    )

    assert sorted(difference.applied) == ["log_level", "log_levels.engines"]
    assert sorted(difference.needs_restart) == ["client.meta.rack", "ports.http"]


def test_equal_configurations_have_no_differences(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('data_dir = "/var/lib/wharf"\n[server]\nenabled = true')

    difference = compare_settings(load_configuration([tmp_path], environment={}).settings, configure().settings)

    assert (difference.applied, difference.needs_restart) == ([], [])


def test_a_reload_applies_only_the_values_that_can_change_at_run_time() -> None:
    running = configure(ports__http=1).settings

    settings = apply_live_settings(running, configure(ports__http=2, log_level="debug").settings)

    assert (settings.ports.http, settings.log_level) == (1, "debug")
