"""Hypothesis strategies for submitted job specifications as JSON objects.

Most are valid, some are not. Fields are missing, null, empty or set, in any combination.
"""

from typing import Any

from hypothesis import strategies as st

SECOND = 1_000_000_000

names = st.sampled_from(["web", "db", "a-b", "x", "Work_1"])
words = st.sampled_from(
    ["", "host", "restart", "signal", "noop", "checks", "delay", "fail", "local/x", "${JOB}-x", "${BASE}"]
)
durations = st.sampled_from([0, SECOND, 5 * SECOND, 30 * SECOND, 600 * SECOND, 86_400 * SECOND])
counts = st.integers(-1, 5)
texts = st.dictionaries(names, st.text(max_size=4), max_size=2)
flags = st.booleans()


def block(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for an object with any of these fields, each of which may be null."""
    return st.fixed_dictionaries({}, optional={name: st.none() | value for name, value in fields.items()})


def short_list(element: st.SearchStrategy[Any], max_size: int = 2) -> st.SearchStrategy[list[Any]]:
    """Return a strategy for a list of at most `max_size` elements."""
    return st.lists(element, max_size=max_size)


constraints = short_list(
    block(LTarget=words, RTarget=words, Operand=st.sampled_from(["=", "is_set", "distinct_hosts", ""]))
)
affinities = short_list(block(LTarget=words, RTarget=words, Operand=words, Weight=counts))
spreads = short_list(block(Attribute=words, Weight=counts, SpreadTarget=short_list(block(Value=names, Percent=counts))))
restart = block(Attempts=counts, Interval=durations, Delay=durations, Mode=words, RenderTemplates=flags)
reschedule = block(
    Attempts=counts, Interval=durations, Delay=durations, DelayFunction=words, MaxDelay=durations, Unlimited=flags
)
update = block(
    Stagger=durations, MaxParallel=counts, HealthCheck=words, MinHealthyTime=durations, HealthyDeadline=durations,
    ProgressDeadline=durations, AutoRevert=flags, AutoPromote=flags, Canary=counts,
)  # fmt: skip
migrate = block(MaxParallel=counts, HealthCheck=words, MinHealthyTime=durations, HealthyDeadline=durations)
ports = short_list(block(Label=names, Value=counts, To=counts, HostNetwork=words))
networks = short_list(block(
    Mode=words, Hostname=names, MBits=counts, ReservedPorts=ports, DynamicPorts=ports, DNS=block(Servers=short_list(names)),
    CNI=block(Args=texts),
), 1)  # fmt: skip
check_restart = block(Limit=counts, Grace=durations, IgnoreWarnings=flags)
services = short_list(block(
    Name=words, Provider=st.sampled_from(["", "wharf", "nomad", "consul"]), PortLabel=names, AddressMode=words, Tags=short_list(names),
    Meta=texts, OnUpdate=words, CheckRestart=check_restart, TaskName=names,
    Checks=short_list(block(Name=names, Type=words, Path=words, Interval=durations, Timeout=durations, CheckRestart=check_restart)),
))  # fmt: skip
resources = block(
    CPU=counts, Cores=counts, MemoryMB=counts, MemoryMaxMB=counts, DiskMB=counts, IOPS=counts, Networks=networks,
    Devices=short_list(block(Name=names, Count=counts, Constraints=constraints)), NUMA=block(Affinity=words, Devices=short_list(names)),
)  # fmt: skip
tasks = short_list(block(
    Name=names, Driver=names, Config=texts, Env=texts, Meta=texts, Resources=resources, RestartPolicy=restart,
    Services=services, KillTimeout=durations, KillSignal=words, LogConfig=block(MaxFiles=counts, MaxFileSizeMB=counts),
    Templates=short_list(block(DestPath=words, EmbeddedTmpl=words, ChangeMode=words, ChangeSignal=words, Perms=words)),
    Artifacts=short_list(block(GetterSource=st.sampled_from(["", "https://host/a/file.txt?x=1"]), GetterMode=st.sampled_from(["", "file", "dir"]), RelativeDest=words)),
    Vault=block(Role=names, ChangeMode=words), Identity=block(Name=names, Audience=short_list(names), ChangeSignal=words),
    Identities=short_list(block(Name=names, TTL=durations)), VolumeMounts=short_list(block(Volume=names, PropagationMode=words)),
    Lifecycle=block(Hook=words), Actions=short_list(block(Name=names, Command=words, Args=short_list(names))), Constraints=constraints,
    Consul=block(Cluster=words), Leader=flags,
))  # fmt: skip
groups = short_list(block(
    Name=names, Count=counts, Tasks=tasks, RestartPolicy=restart, ReschedulePolicy=reschedule, Update=update, Migrate=migrate,
    Networks=networks, Services=services, Constraints=constraints, Affinities=affinities, Spreads=spreads, Meta=texts,
    Scaling=block(Min=counts, Max=counts, Policy=texts, Type=words), Disconnect=block(LostAfter=durations, Reconcile=words),
    Volumes=st.dictionaries(names, block(Type=st.sampled_from(["host", "csi", "other"]), Source=words, MountOptions=block(FSType=words)), max_size=2),
    EphemeralDisk=block(SizeMB=counts), MaxClientDisconnect=durations, StopAfterClientDisconnect=durations,
    PreventRescheduleOnLost=flags, ShutdownDelay=durations,
))  # fmt: skip
jobs = st.builds(
    lambda required, optional: required | optional,
    st.fixed_dictionaries({"ID": names}),
    block(
        Name=names, Type=st.sampled_from(["service", "batch", "system", "sysbatch", "", "odd"]), Priority=counts, Region=words,
        Namespace=words, Datacenters=short_list(names), NodePool=words, TaskGroups=groups, Update=update, Reschedule=reschedule,
        Migrate=migrate, Constraints=constraints, Affinities=affinities, Spreads=spreads, Meta=texts,
        Periodic=block(Spec=st.just("0 3 * * *"), Specs=short_list(st.just("@daily")), TimeZone=words),
        ParameterizedJob=block(Payload=words, MetaRequired=short_list(names)), UI=block(Description=words, Links=short_list(block(Url=words))),
        ConsulNamespace=words, VaultNamespace=words, Stop=flags, Payload=st.just("eA=="),
    ),
)  # fmt: skip
