"""The config of docker tasks: its validation, and the engine's request that is built from it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wharf.contract.model.drivers.docker import DockerConfig
from wharf.contract.model.jobs.groups import LogConfig
from wharf.node.drivers.docker.config import DockerConfigError, DockerSettings, parse_config
from wharf.node.drivers.docker.container import build_container_body, build_labels, make_container_name
from wharf.node.drivers.docker.images import PullProgress, normalize_image_name
from wharf.node.drivers.docker.output_stream import ContainerOutput, OutputFrameDecoder
from wharf.node.drivers.docker.responses import LayerProgress, PullProgressLine
from wharf.node.drivers.port import CannotStart, Given, GivenDevice, GivenPort, GivenVolume, TaskNetwork, TaskOrder
from wharf.node.node_mark import NodeMark
from wharf.node.settings import DEFAULT_SECURITY_OPTS

STRICT = DockerSettings()
OPEN = DockerSettings(volumes_enabled=True, allow_privileged=True)
ORDER = TaskOrder(
    run="a1.0.1",
    task="web",
    config={},
    environment={"B": "2", "A": "1"},
    task_folder=Path("/data/a1/web"),
    log_folder=Path("/data/a1/alloc/logs"),
    log=LogConfig(),
    user="nobody",
    allocation_id="a1",
    shared_folder=Path("/data/a1/alloc"),
    given=Given(
        memory_mb=128,
        cpu_mhz=500,
        cpu_total_mhz=4_000,
        ports=(GivenPort("http", "10.0.0.1", 21_000, 80), GivenPort("other", "10.0.0.1", 21_001, 0)),
        volumes=(GivenVolume("/srv/files", "/files", True),),
    ),
    labels={"wharf.job": "shop", "wharf.other": "not selected"},
)
NODE = NodeMark("node-1", "/srv/node")
NETWORK = TaskNetwork("/run/n0", "", ())


def build_order(*, network: TaskNetwork | None = None, **fields: Any) -> TaskOrder:
    """Return ORDER with other allocated resources."""
    return replace(ORDER, given=replace(ORDER.given, **fields), network=network)


def build_body(order: TaskOrder = ORDER, **config: Any) -> dict[str, Any]:
    labels = build_labels(order, NODE, ["wharf.job"])
    return build_container_body(parse_config({"image": "box", **config}, OPEN), order, labels)


def test_options_of_nomad_that_change_nothing_are_ignored() -> None:
    assert "box" == parse_config({"image": "box", "ssl": True, "isolation": "process"}, OPEN).image


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"image": "x", "volumes_from": ["y"]}, 'unknown key "volumes_from" for driver docker'),
        ({}, "image is missing: name the image to run"),
        ({"image": "x", "comand": "y"}, 'unknown key "comand" for driver docker; did you mean "command"?'),
        ({"image": "x", "pids_limit": "many"}, "Config: pids_limit: expected `int`, got `str`"),
        ({"image": "x", "privileged": True}, "privileged is not allowed on this node (its setting allow_privileged)"),
        ({"image": "x", "pid_mode": "host"}, 'pid_mode = "host" is not allowed on this node'),
        ({"image": "x", "pid_mode": "container:other"}, 'pid_mode = "container:other" is not allowed on this node'),
        ({"image": "x", "ipc_mode": "ns:/proc/1/ns/ipc"}, 'ipc_mode = "ns:/proc/1/ns/ipc" is not allowed'),
        ({"image": "x", "cap_add": ["SYS_ADMIN"]}, "cap_add: SYS_ADMIN is not allowed on this node; allowed are audit_write"),
        ({"image": "x", "runtime": "odd"}, "runtime odd is not allowed; allowed are runc, crun, nvidia"),
        ({"image": "x", "volumes": ["/etc:/etc"]}, "volume /etc:/etc: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["../../x:/y"]}, "volume ../../x:/y: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["named:/y"]}, "volume named:/y: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["/y"]}, "volume /y: write source:target, or source:target:ro"),
        ({"image": "x", "mount": {"target": "/y", "type": "odd"}}, "mount /y: unknown type odd; use volume, bind or tmpfs"),
        ({"image": "x", "mount": [{"target": "/y", "type": "bind", "source": "/"}]}, "mount /y: volumes outside"),
        ({"image": "x", "network_mode": "container:other"}, 'network_mode = "container:other" is not allowed'),
        ({"image": "x", "network_mode": "ns:/proc/1/ns/net"}, 'network_mode = "ns:/proc/1/ns/net" is not allowed'),
        ({"image": "x", "cgroupns": "host"}, 'cgroupns = "host" is not allowed on this node'),
        ({"image": "x", "devices": [{"host_path": "/dev/sda"}]}, "devices: /dev/sda is not allowed on this node (its setting allow_devices)"),
        ({"image": "x", "security_opt": ["seccomp=unconfined"]}, "security_opt: seccomp=unconfined is not allowed"),
        ({"image": "x", "sysctl": {"kernel.core_pattern": "|/x"}}, "sysctl: kernel.core_pattern would change the host"),
        ({"image": "x", "sysctl": {"kernel/core_pattern": "|/x"}}, "sysctl: kernel/core_pattern would change the host"),
        ({"image": "x", "sysctl": {"net.core.somaxconn": "9"}, "network_mode": "host"}, "sysctl: net.core.somaxconn would"),
        ({"image": "x", "logging": {"type": "json-file", "config": {"path": "/etc/cron.d/x"}}}, "logging: option path names"),
        ({"image": "x", "oom_score_adj": -1}, "oom_score_adj: -1 would protect the task before the host"),
        ({"image": "x", "labels": {"wharf.log.folder": "/etc"}}, "labels: wharf.log.folder is reserved for the node"),
        ({"image": "x", "ulimit": {"nofile": "x"}}, 'ulimit nofile is "x": write "soft:hard", or one number for both'),
    ],
)  # fmt: skip
def test_an_invalid_or_forbidden_config_is_rejected(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(DockerConfigError) as error:
        parse_config(config, STRICT)

    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"devices": [{"host_path": "/dev/fuse"}]}, DockerSettings(allow_devices=("/dev/fuse",))),
        ({"devices": [{"host_path": "/dev/sda"}]}, DockerSettings(allow_devices=("all",))),
        ({"devices": [{"host_path": "/dev/sda"}]}, OPEN),
        ({"security_opt": ["no-new-privileges"]}, DockerSettings(allow_security_opts=DEFAULT_SECURITY_OPTS)),
        ({"security_opt": ["seccomp=unconfined"]}, DockerSettings(allow_security_opts=("all",))),
        ({"security_opt": ["seccomp=unconfined"]}, OPEN),
        ({"sysctl": {"net.core.somaxconn": "9", "kernel.shmmax": "1", "fs.mqueue.msg_max": "1"}}, STRICT),
        ({"sysctl": {"kernel.core_pattern": "x"}}, OPEN),
        ({"network_mode": "host"}, STRICT),
        ({"network_mode": "container:other"}, OPEN),
        ({"logging": {"type": "json-file", "config": {"max-size": "1m"}}}, STRICT),
        ({"oom_score_adj": 500}, STRICT),
    ],
)
def test_values_without_root_on_the_host_and_those_that_the_operator_allows_are_accepted(
    config: dict[str, Any], settings: DockerSettings
) -> None:
    assert "box" == parse_config({"image": "box", **config}, settings).image


def test_a_job_cannot_replace_the_labels_by_which_the_node_finds_containers_and_log_files() -> None:
    labels = build_labels(ORDER, NODE, [])
    config = DockerConfig(image="box", labels={**dict.fromkeys(labels, "forged"), "wharf.job": "own"})

    assert labels.items() <= build_container_body(config, ORDER, labels)["Labels"].items()


def test_all_problems_of_a_config_are_reported_together() -> None:
    with pytest.raises(DockerConfigError) as error:
        parse_config({"privileged": True, "imago": "x"}, STRICT)

    assert 3 == len(error.value.problems)


def test_blocks_can_be_lists_with_one_element() -> None:
    config = {
        "image": "x",
        "auth": [{"username": "me"}],
        "logging": [{"type": "none"}],
        "mount": [{"target": "/t", "type": "tmpfs", "tmpfs_options": [{"size": 1_000}]}],
    }

    parsed = parse_config(config, STRICT)

    assert parsed.auth is not None
    assert parsed.mount[0].tmpfs_options is not None
    assert ("me", 1_000) == (parsed.auth.username, parsed.mount[0].tmpfs_options.size)


def test_a_container_has_the_name_and_labels_of_its_task_and_allocation() -> None:
    labels = build_body(labels={"mine": "x", "wharf.alloc_id": "forged"})["Labels"]

    assert "web-a1" == make_container_name(ORDER)
    assert {"mine": "x", "wharf.job": "shop", "wharf.alloc_id": "a1"}.items() <= labels.items()
    assert "wharf.other" not in labels


def test_the_folders_of_the_allocation_are_mounted() -> None:
    binds = build_body(volumes=["./conf:/etc/conf:ro", "/host:/h"])["HostConfig"]["Binds"]

    assert [
        "/data/a1/alloc:/alloc",
        "/data/a1/web/local:/local",
        "/data/a1/web/secrets:/secrets",
        "/srv/files:/files:ro",
        "/data/a1/web/conf:/etc/conf:ro",
        "/host:/h",
    ] == binds


def test_only_ports_in_the_config_are_published() -> None:
    body = build_body(ports=["http"])

    assert {"80/tcp": {}, "80/udp": {}} == body["ExposedPorts"]
    assert [{"HostIp": "10.0.0.1", "HostPort": "21000"}] == body["HostConfig"]["PortBindings"]["80/tcp"]


def test_a_tmpfs_without_a_mode_gets_the_mode_of_the_engine() -> None:
    mount = {"target": "/m", "type": "tmpfs", "tmpfs_options": {"size": 4_096}}

    assert {"SizeBytes": 4_096} == build_body(mount=[mount])["HostConfig"]["Mounts"][0]["TmpfsOptions"]


@pytest.mark.parametrize(
    ("order", "config", "limits"),
    [
        (ORDER, {}, {"Memory": 128 << 20, "MemorySwap": 128 << 20, "CpuShares": 500}),
        (build_order(memory_max_mb=256), {}, {"Memory": 256 << 20, "MemoryReservation": 128 << 20}),
        (build_order(memory_max_mb=-1), {}, {"MemoryReservation": 128 << 20}),
        (ORDER, {"memory_hard_limit": 512}, {"Memory": 512 << 20, "MemoryReservation": 128 << 20}),
        (ORDER, {"cpu_hard_limit": True}, {"CpuPeriod": 100_000, "CpuQuota": 12_500}),
        (build_order(cores="2-3"), {}, {"CpusetCpus": "2-3"}),
        (
            build_order(network=NETWORK),
            {"network_mode": "host"},
            {"NetworkMode": "ns:/run/n0", "PortBindings": {}},
        ),
        (ORDER, {"ulimit": {"nofile": "10:20"}}, {"Ulimits": [{"Name": "nofile", "Soft": 10, "Hard": 20}]}),
    ],
)
def test_limits_follow_from_the_resources_and_the_config(
    order: TaskOrder, config: dict[str, Any], limits: dict[str, Any]
) -> None:
    assert limits.items() <= build_body(order, **config)["HostConfig"].items()


def test_a_task_that_may_use_all_memory_of_its_node_has_no_memory_limit() -> None:
    assert not {"Memory", "MemorySwap"} & build_body(build_order(memory_max_mb=-1))["HostConfig"].keys()


def test_keys_that_the_job_does_not_set_are_left_to_the_engine() -> None:
    body = build_body()

    assert not {"Cmd", "Entrypoint", "WorkingDir"} & body.keys()
    assert not {"CapAdd", "PidMode", "Ulimits", "Runtime"} & body["HostConfig"].keys()


def test_command_and_arguments_become_one_list() -> None:
    assert ["run", "-x"] == build_body(command="run", args=["-x"])["Cmd"]
    assert ["-x"] == build_body(args=["-x"])["Cmd"]


@pytest.mark.parametrize(
    ("image", "full"),
    [
        ("web", "web:latest"),
        ("https://host/web", "host/web:latest"),
        ("host:5000/web", "host:5000/web:latest"),
        ("web:1", "web:1"),
        ("web@sha256:abc", "web@sha256:abc"),
    ],
)
def test_an_image_without_a_tag_is_the_latest(image: str, full: str) -> None:
    assert full == normalize_image_name(image)


def test_pull_progress_is_one_line_of_text() -> None:
    progress = PullProgress()
    assert "started" == str(progress)
    progress.add_line(PullProgressLine(status="Pulling", stream=""))
    assert "Pulling" == str(progress)
    progress.add_line(PullProgressLine(id="a", progress_detail=LayerProgress(2_000_000, 5_000_000)))
    progress.add_line(PullProgressLine(id="b", progress_detail=LayerProgress(9_000_000, 5_000_000)))
    assert "7 of 10 MB in 2 layers" == str(progress)


@pytest.mark.parametrize("chunk_bytes", [1, 3, 8, 9, 11, 100])
def test_stdout_and_stderr_are_separated_for_any_size_of_received_chunks(chunk_bytes: int) -> None:
    data = b"\x01\0\0\0\0\0\0\x03abc\x02\0\0\0\0\0\0\x02xy\x01\0\0\0\0\0\0\0"
    decoder, output = OutputFrameDecoder(is_tty=False), {"stdout": b"", "stderr": b""}

    for begin in range(0, len(data), chunk_bytes):
        for chunk in decoder.feed(data[begin : begin + chunk_bytes]):
            output[chunk.stream] += chunk.data

    assert {"stdout": b"abc", "stderr": b"xy"} == output


def test_output_of_a_terminal_is_all_stdout() -> None:
    assert [ContainerOutput("stdout", b"\x01raw")] == list(OutputFrameDecoder(is_tty=True).feed(b"\x01raw"))


def test_allocated_devices_are_added_to_the_devices_of_the_config() -> None:
    order = build_order(devices=(GivenDevice("/dev/card0", "/dev/card", "rw"),))

    devices = build_body(order, devices=[{"host_path": "/dev/fuse"}])["HostConfig"]["Devices"]

    assert [("/dev/fuse", "/dev/fuse"), ("/dev/card0", "/dev/card")] == [
        (each["PathOnHost"], each["PathInContainer"]) for each in devices
    ]
    assert "rw" == devices[1]["CgroupPermissions"]


def test_a_mount_of_the_task_follows_links_only_inside_of_its_folder(tmp_path: Path) -> None:
    """The engine runs as root and would follow a link that an earlier run of the task has left."""
    folder = tmp_path / "t"
    (folder / "local" / "v1").mkdir(parents=True)
    (folder / "local" / "current").symlink_to("v1")
    (folder / "local" / "out").symlink_to("/")
    order = replace(ORDER, task_folder=folder)

    binds = build_body(order, volumes=["local/current/x:/x", "./local/new:/new"])["HostConfig"]["Binds"]
    assert [f"{folder}/local/v1/x:/x", f"{folder}/local/new:/new"] == binds[-2:]
    with pytest.raises(CannotStart, match="local/out/etc cannot be mounted, because a link in it leads out"):
        build_body(order, volumes=["local/out/etc:/x"])
    with pytest.raises(CannotStart, match="local/out cannot be mounted"):
        build_body(order, mount=[{"type": "bind", "source": "local/out", "target": "/x"}])
