"""The log engine that an agent opens for its settings."""

from pathlib import Path

import pytest

from wharf.agent.data_folder import get_store_folder
from wharf.agent.engine import (
    build_command_engine,
    build_engine,
    describe_state_location,
    get_store_socket,
)
from wharf.agent.errors import CommandError
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.settings import EngineKind, EtcdStateSettings, EtcdTlsSettings, StateSettings
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.engines.store.engine import RemoteEngine
from wharf.cluster.engines.store.server import StoreProcessSettings
from wharf.config.settings import AgentSettings
from wharf.contract.model.settings import SecretText
from wharf.world import RealWorld

WORLD = RealWorld()


def settings(
    folder: Path, engine: EngineKind = EngineKind.SQLITE, etcd: EtcdStateSettings | None = None
) -> AgentSettings:
    return AgentSettings(data_dir=str(folder), state=StateSettings(engine=engine, etcd=etcd or EtcdStateSettings()))


def test_the_client_of_the_store_uses_the_path_of_its_socket(tmp_path: Path) -> None:
    agent_settings = settings(tmp_path)

    assert (
        get_store_socket(agent_settings)
        == StoreProcessSettings(folder=str(get_store_folder(agent_settings))).get_socket_path()
    )


@pytest.mark.parametrize("engine", [EngineKind.SQLITE, EngineKind.MEMORY])
def test_processes_of_one_machine_share_the_store(tmp_path: Path, engine: EngineKind) -> None:
    assert isinstance(build_engine(settings(tmp_path, engine), WORLD), RemoteEngine)


def test_etcd_is_reached_with_all_that_is_configured(tmp_path: Path) -> None:
    etcd = EtcdStateSettings(
        endpoints=("a:1", "b:2"),
        user="u",
        password=SecretText("p"),
        max_txn_ops=512,
        tls=EtcdTlsSettings(ca_file="/ca", cert_file="/c", key_file="/k"),
    )
    agent_settings = settings(tmp_path, EngineKind.ETCD, etcd)
    engine = build_engine(agent_settings, WORLD)

    assert isinstance(engine, EtcdEngine)
    assert engine.limits.changes > 400
    assert describe_state_location(agent_settings) == "etcd at a:1, b:2"


def test_a_command_opens_the_file_itself_when_no_agent_runs(tmp_path: Path) -> None:
    assert isinstance(build_command_engine(settings(tmp_path), WORLD, can_create=False), SqliteEngine)


def test_a_command_does_not_create_a_missing_data_folder(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no data folder"):
        build_command_engine(settings(tmp_path / "gone"), WORLD, can_create=False)


def test_a_state_in_memory_cannot_be_reached_without_its_agent(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="the state is in the memory of an agent, and none runs here"):
        build_command_engine(settings(tmp_path, EngineKind.MEMORY), WORLD, can_create=True)
