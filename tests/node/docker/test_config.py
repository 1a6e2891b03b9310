"""What a job says of a container: what is refused, and what the engine is asked for."""

from typing import Any

import pytest

from wharf.node.drivers.docker.config import DockerConfigError, DockerSettings, parse_config
from wharf.node.drivers.docker.container import (
    ContainerContext,
    ContainerPort,
    build_container_body,
    make_container_name,
)
from wharf.node.drivers.docker.images import PullProgress, normalize_image_name
from wharf.node.drivers.docker.output_stream import FrameDecoder, OutputChunk
from wharf.node.drivers.docker.responses import LayerProgress, PullProgressLine

STRICT = DockerSettings()
OPEN = DockerSettings(volumes_enabled=True, allow_privileged=True)
PLACE = ContainerContext(
    allocation_id="a1",
    task="web",
    labels={"wharf.job": "shop"},
    environment={"B": "2", "A": "1"},
    allocation_folder="/data/a1/alloc",
    local_folder="/data/a1/web/local",
    secrets_folder="/data/a1/web/secrets",
    memory_mb=128,
    memory_max_mb=0,
    cpu_mhz=500,
    cpu_total_mhz=4_000,
    cores="",
    ports=(ContainerPort("http", "10.0.0.1", 21_000, 80), ContainerPort("other", "10.0.0.1", 21_001, 0)),
    volumes=(("/srv/files", "/files", True),),
    user="nobody",
    network="",
)


def body_of(place: ContainerContext = PLACE, **config: Any) -> dict[str, Any]:
    return build_container_body(parse_config({"image": "box", **config}, OPEN), place)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "image is missing: name the image to run"),
        ({"image": "x", "comand": "y"}, "comand is no key of a docker task: did you mean command?"),
        ({"image": "x", "pids_limit": "many"}, "Config: pids_limit: expected `int`, got `str`"),
        ({"image": "x", "privileged": True}, "privileged is not allowed on this node (its setting allow_privileged)"),
        ({"image": "x", "pid_mode": "host"}, 'pid_mode = "host" is not allowed on this node'),
        ({"image": "x", "cap_add": ["SYS_ADMIN"]}, "cap_add: SYS_ADMIN is not allowed on this node; allowed are audit_write"),
        ({"image": "x", "runtime": "odd"}, "runtime odd is not allowed; allowed are runc, crun, nvidia"),
        ({"image": "x", "volumes": ["/etc:/etc"]}, "volume /etc:/etc: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["../../x:/y"]}, "volume ../../x:/y: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["named:/y"]}, "volume named:/y: volumes outside the allocation are not allowed"),
        ({"image": "x", "volumes": ["/y"]}, "volume /y: write source:target, or source:target:ro"),
        ({"image": "x", "mount": {"target": "/y", "type": "odd"}}, "mount /y: type is odd; there are volume, bind and tmpfs"),
        ({"image": "x", "mount": [{"target": "/y", "type": "bind", "source": "/"}]}, "mount /y: volumes outside"),
        ({"image": "x", "ulimit": {"nofile": "x"}}, 'ulimit nofile is "x": write "soft:hard", or one number for both'),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_is_refused(config: dict[str, Any], told: str) -> None:
    with pytest.raises(DockerConfigError) as refused:
        parse_config(config, STRICT)

    assert told in str(refused.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(DockerConfigError) as refused:
        parse_config({"privileged": True, "imago": "x"}, STRICT)

    assert 3 == len(refused.value.problems)


def test_blocks_may_come_as_lists_of_one() -> None:
    config = {
        "image": "x",
        "auth": [{"username": "me"}],
        "logging": [{"type": "none"}],
        "mount": [{"target": "/t", "type": "tmpfs", "tmpfs_options": [{"size": 1_000}]}],
    }

    read = parse_config(config, STRICT)

    assert read.auth is not None
    assert read.mount[0].tmpfs_options is not None
    assert ("me", 1_000) == (read.auth.username, read.mount[0].tmpfs_options.size)


def test_a_container_is_named_after_its_task_and_allocation_and_carries_them_as_labels() -> None:
    labels = body_of(labels={"mine": "x", "wharf.alloc_id": "forged"})["Labels"]

    assert "web-a1" == make_container_name(PLACE)
    assert {"mine": "x", "wharf.job": "shop", "wharf.alloc_id": "a1"}.items() <= labels.items()


def test_the_folders_of_the_allocation_are_there() -> None:
    binds = body_of(volumes=["./conf:/etc/conf:ro", "/host:/h"])["HostConfig"]["Binds"]

    assert [
        "/data/a1/alloc:/alloc",
        "/data/a1/web/local:/local",
        "/data/a1/web/secrets:/secrets",
        "/srv/files:/files:ro",
        "/data/a1/web/conf:/etc/conf:ro",
        "/host:/h",
    ] == binds


def test_only_ports_that_are_named_are_published() -> None:
    body = body_of(ports=["http"])

    assert {"80/tcp": {}, "80/udp": {}} == body["ExposedPorts"]
    assert [{"HostIp": "10.0.0.1", "HostPort": "21000"}] == body["HostConfig"]["PortBindings"]["80/tcp"]


def test_a_folder_in_memory_is_open_unless_the_job_says_otherwise() -> None:
    mount = {"target": "/m", "type": "tmpfs", "tmpfs_options": {"size": 4_096}}

    assert {"SizeBytes": 4_096} == body_of(mount=[mount])["HostConfig"]["Mounts"][0]["TmpfsOptions"]


@pytest.mark.parametrize(
    ("place", "config", "limits"),
    [
        (PLACE, {}, {"Memory": 128 << 20, "MemorySwap": 128 << 20, "CpuShares": 500}),
        (PLACE._replace(memory_max_mb=256), {}, {"Memory": 256 << 20, "MemoryReservation": 128 << 20}),
        (PLACE, {"memory_hard_limit": 512}, {"Memory": 512 << 20, "MemoryReservation": 128 << 20}),
        (PLACE, {"cpu_hard_limit": True}, {"CpuPeriod": 100_000, "CpuQuota": 12_500}),
        (PLACE._replace(cores="2-3"), {}, {"CpusetCpus": "2-3"}),
        (
            PLACE._replace(network="/run/n0"),
            {"network_mode": "host"},
            {"NetworkMode": "ns:/run/n0", "PortBindings": {}},
        ),
        (PLACE, {"ulimit": {"nofile": "10:20"}}, {"Ulimits": [{"Name": "nofile", "Soft": 10, "Hard": 20}]}),
    ],
)
def test_limits_are_those_of_the_task(place: ContainerContext, config: dict[str, Any], limits: dict[str, Any]) -> None:
    assert limits.items() <= body_of(place, **config)["HostConfig"].items()


def test_what_the_job_leaves_out_is_the_engines_to_choose() -> None:
    body = body_of()

    assert not {"Cmd", "Entrypoint", "WorkingDir"} & body.keys()
    assert not {"CapAdd", "PidMode", "Ulimits", "Runtime"} & body["HostConfig"].keys()


def test_command_and_arguments_are_one_list() -> None:
    assert ["run", "-x"] == body_of(command="run", args=["-x"])["Cmd"]
    assert ["-x"] == body_of(args=["-x"])["Cmd"]


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


def test_progress_is_one_line() -> None:
    progress = PullProgress()
    assert "begun" == str(progress)
    progress.add_line(PullProgressLine(status="Pulling", stream=""))
    assert "Pulling" == str(progress)
    progress.add_line(PullProgressLine(id="a", progress_detail=LayerProgress(2_000_000, 5_000_000)))
    progress.add_line(PullProgressLine(id="b", progress_detail=LayerProgress(9_000_000, 5_000_000)))
    assert "7 of 10 MB in 2 layers" == str(progress)


@pytest.mark.parametrize("cut", [1, 3, 8, 9, 11, 100])
def test_output_and_errors_are_told_apart_wherever_the_bytes_are_cut(cut: int) -> None:
    data = b"\x01\0\0\0\0\0\0\x03abc\x02\0\0\0\0\0\0\x02xy\x01\0\0\0\0\0\0\0"
    frames, said = FrameDecoder(is_tty=False), {"stdout": b"", "stderr": b""}

    for begin in range(0, len(data), cut):
        for chunk in frames.feed(data[begin : begin + cut]):
            said[chunk.stream] += chunk.data

    assert {"stdout": b"abc", "stderr": b"xy"} == said


def test_a_terminal_has_one_stream() -> None:
    assert [OutputChunk("stdout", b"\x01raw")] == list(FrameDecoder(is_tty=True).feed(b"\x01raw"))


def test_device_files_that_the_task_was_given_are_beside_those_that_its_job_names() -> None:
    given = PLACE._replace(devices=(("/dev/card0", "/dev/card", "rw"),))

    devices = body_of(given, devices=[{"host_path": "/dev/fuse"}])["HostConfig"]["Devices"]

    assert [("/dev/fuse", "/dev/fuse"), ("/dev/card0", "/dev/card")] == [
        (each["PathOnHost"], each["PathInContainer"]) for each in devices
    ]
    assert "rw" == devices[1]["CgroupPermissions"]
