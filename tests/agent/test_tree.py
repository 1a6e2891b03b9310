"""The process tree: which processes run after each event."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wharf.agent.supervision.process_tree import (
    MAX_SILENCE_BEFORE_READY_S,
    AnnounceReady,
    BeginPart,
    Effect,
    FinishTree,
    KillPart,
    LogPartEnded,
    LogPartKilled,
    PartAlive,
    PartEnded,
    PartReady,
    ProcessSpec,
    ProcessTree,
    SpawnPart,
    StopPart,
    StopRequested,
    TimerFired,
)

PARTS = (
    ProcessSpec("store"),
    ProcessSpec("api", ("store",)),
    ProcessSpec("brain", ("store",)),
    ProcessSpec("node", ("api",)),
)


def build_running_tree() -> ProcessTree:
    tree = ProcessTree(PARTS)
    tree.start(0.0)
    for name in ("store", "api", "brain", "node"):
        tree.handle_event(PartReady(name), 0.0)
    return tree


def test_all_parts_load_at_once_and_only_the_lowest_begins() -> None:
    assert ProcessTree(PARTS).start(0.0) == [
        SpawnPart("store"),
        SpawnPart("api"),
        SpawnPart("brain"),
        SpawnPart("node"),
        BeginPart("store"),
    ]


def test_a_part_begins_when_the_parts_it_depends_on_are_ready() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    assert tree.handle_event(PartReady("store"), 0.1) == [BeginPart("api"), BeginPart("brain")]
    assert tree.handle_event(PartReady("brain"), 0.1) == []
    assert tree.handle_event(PartReady("api"), 0.2) == [BeginPart("node")]
    assert tree.handle_event(PartReady("node"), 0.3) == [AnnounceReady()]


def test_a_part_that_ends_is_restarted_alone_after_a_growing_delay() -> None:
    tree = build_running_tree()

    assert tree.handle_event(PartEnded("api", "killed by SIGKILL"), 5.0) == [
        LogPartEnded("api", "killed by SIGKILL", 0.1)
    ]
    assert tree.next_deadline_s() == 5.1
    assert tree.handle_event(TimerFired(), 5.1) == [SpawnPart("api"), BeginPart("api")]
    assert tree.handle_event(PartEnded("api", "exit code 1", "the disk is full"), 5.2) == [
        LogPartEnded("api", "exit code 1: the disk is full", 0.5)
    ]


def test_a_part_that_is_killed_several_times_within_seconds_is_restarted_soon_and_a_failing_one_is_not() -> None:
    pauses_s: dict[str, list[float]] = {}
    for reason in ("", "the disk is full"):
        tree, now_s = build_running_tree(), 5.0
        for _ in range(10):
            (ended,) = tree.handle_event(PartEnded("node", "killed by SIGKILL", reason), now_s)
            assert isinstance(ended, LogPartEnded)
            pauses_s.setdefault(reason, []).append(ended.restart_delay_s)
            now_s += ended.restart_delay_s
            tree.handle_event(TimerFired(), now_s)

    assert pauses_s[""] == [0.1, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
    assert pauses_s["the disk is full"] == [0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0, 30.0, 30.0]


def test_being_ready_again_is_not_announced_twice() -> None:
    tree = build_running_tree()
    tree.handle_event(PartEnded("node", "exit code 1"), 5.0)
    tree.handle_event(TimerFired(), 6.0)

    assert tree.handle_event(PartReady("node"), 6.1) == []


def test_the_restart_delay_is_reset_after_a_part_ran_for_a_while() -> None:
    tree = build_running_tree()
    tree.handle_event(PartEnded("api", "exit code 1"), 5.0)
    tree.handle_event(TimerFired(), 5.1)
    tree.handle_event(PartReady("api"), 5.2)

    assert tree.handle_event(PartEnded("api", "exit code 1"), 100.0) == [LogPartEnded("api", "exit code 1", 0.1)]


def test_a_part_that_reports_a_start_error_ends_the_agent_with_that_error() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    stopping = tree.handle_event(PartEnded("store", "exit code 1", "the log is damaged"), 0.2)
    ended = [tree.handle_event(PartEnded(name, "exit code 0"), 0.3) for name in ("node", "api", "brain")]

    assert stopping == [StopPart("brain"), StopPart("node")]
    assert ended == [[StopPart("api")], [], [FinishTree("the log is damaged")]]


def test_a_part_that_ends_too_often_before_all_parts_are_ready_ends_the_agent() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    for _ in range(2):
        tree.handle_event(PartEnded("store", "exit code 1"), 1.0)
        tree.handle_event(TimerFired(), 9.0)

    assert tree.handle_event(PartEnded("store", "exit code 1"), 9.1) == [
        FinishTree("store ended 3 times before it was ready (exit code 1)")
    ]


def test_parts_stop_in_the_reverse_order_of_their_start() -> None:
    tree = build_running_tree()

    assert tree.handle_event(StopRequested(), 9.0) == [StopPart("brain"), StopPart("node")]
    assert tree.handle_event(PartEnded("node", "exit code 0"), 9.1) == [StopPart("api")]
    assert tree.handle_event(PartEnded("api", "exit code 0"), 9.2) == []
    assert tree.handle_event(PartEnded("brain", "exit code 0"), 9.3) == [StopPart("store")]
    assert tree.handle_event(PartEnded("store", "exit code 0"), 9.4) == [FinishTree()]


def test_a_part_that_does_not_stop_in_time_is_killed() -> None:
    tree = ProcessTree((ProcessSpec("store", grace_s=2.0),))
    tree.start(0.0)
    tree.handle_event(StopRequested(), 1.0)

    assert tree.next_deadline_s() == 3.0
    assert tree.handle_event(TimerFired(), 3.0) == [
        LogPartKilled("store"),
        KillPart("store"),
    ]
    assert tree.handle_event(PartEnded("store", "killed by SIGKILL"), 3.1) == [FinishTree()]


def test_a_second_stop_request_kills_all_running_parts() -> None:
    tree = build_running_tree()
    tree.handle_event(StopRequested(), 9.0)
    tree.handle_event(PartEnded("node", "exit code 0"), 9.1)

    assert tree.handle_event(StopRequested(), 9.6) == [KillPart("store"), KillPart("api"), KillPart("brain")]


def test_two_stop_requests_at_once_count_as_one() -> None:
    tree = build_running_tree()
    tree.handle_event(StopRequested(), 9.0)

    assert tree.handle_event(StopRequested(), 9.1) == []


def test_a_part_that_waits_for_its_restart_is_not_started_after_a_stop_request() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    tree.handle_event(PartReady("store"), 0.1)
    tree.handle_event(PartEnded("store", "exit code 1"), 1.0)

    assert tree.handle_event(StopRequested(), 1.01) == [FinishTree()]
    assert (tree.next_deadline_s(), tree.handle_event(TimerFired(), 9.0)) == (None, [])


def test_a_silent_part_is_killed_and_restarted_and_logged_once() -> None:
    tree = build_running_tree()
    for name in ("api", "brain", "node"):
        tree.handle_event(PartAlive(name), 15.0)
    tree.handle_event(PartAlive("store"), 5.0)
    assert tree.handle_event(TimerFired(), 24.9) == []

    assert tree.handle_event(TimerFired(), 25.0) == [KillPart("store")]
    assert tree.handle_event(TimerFired(), 25.1) == []
    assert tree.handle_event(PartEnded("store", "killed by SIGKILL"), 25.2) == [
        LogPartEnded("store", "killed: no sign of life for 20 s", 0.1)
    ]


def test_each_part_has_its_own_limit_of_silence() -> None:
    tree = ProcessTree([ProcessSpec("store", max_silence_s=60.0)])
    tree.start(0.0)
    tree.handle_event(PartReady("store"), 0.0)

    assert (tree.next_deadline_s(), tree.handle_event(TimerFired(), 59.9)) == (60.0, [])
    assert tree.handle_event(TimerFired(), 60.0) == [KillPart("store")]


def test_a_part_that_is_not_ready_yet_may_load_for_long() -> None:
    tree = ProcessTree([ProcessSpec("store")])
    tree.start(0.0)

    assert tree.handle_event(TimerFired(), MAX_SILENCE_BEFORE_READY_S - 1.0) == []
    assert tree.handle_event(TimerFired(), MAX_SILENCE_BEFORE_READY_S) == [KillPart("store")]


def test_no_part_is_killed_for_silence_after_the_whole_machine_was_suspended() -> None:
    tree = build_running_tree()

    assert tree.handle_event(TimerFired(), 500.0) == []
    assert tree.handle_event(TimerFired(), 520.0) == [
        KillPart("store"),
        KillPart("api"),
        KillPart("brain"),
        KillPart("node"),
    ]


def test_a_silent_part_has_only_its_grace_period_to_stop() -> None:
    tree = ProcessTree([ProcessSpec("node", grace_s=3.0)])
    tree.start(0.0)
    tree.handle_event(PartReady("node"), 0.0)
    tree.handle_event(StopRequested(), 19.0)

    assert tree.handle_event(TimerFired(), 20.5) == []
    assert tree.handle_event(TimerFired(), 22.0) == [
        LogPartKilled("node"),
        KillPart("node"),
    ]


class AnyHistory(RuleBasedStateMachine):
    """Simulated processes that obey the effects of the tree and may end at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.tree = ProcessTree(PARTS)
        self.loading: set[str] = set()
        self.running: set[str] = set()
        self.finish_count = 0
        self.is_stop_requested = False
        self.apply_effects(self.tree.start(0.0))

    @property
    def living_parts(self) -> set[str]:
        return self.loading | self.running

    def apply_effects(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SpawnPart(name):
                    assert name not in self.living_parts
                    assert not self.is_stop_requested
                    self.loading.add(name)
                case BeginPart(name):
                    self.loading.remove(name)
                    self.running.add(name)
                case StopPart(name) | KillPart(name):
                    assert name in self.living_parts
                case FinishTree():
                    assert not self.living_parts
                    self.finish_count += 1
                case _:
                    pass

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def report_part_ready(self, data: st.DataObject) -> None:
        self.apply_effects(
            self.tree.handle_event(PartReady(data.draw(st.sampled_from(sorted(self.running)))), self.now_s)
        )

    @precondition(lambda self: self.living_parts)
    @rule(data=st.data(), reason=st.sampled_from(["", "broken"]))
    def end_part(self, data: st.DataObject, reason: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.living_parts)))
        self.loading.discard(name)
        self.running.discard(name)
        self.apply_effects(self.tree.handle_event(PartEnded(name, "exit code 1", reason), self.now_s))

    @rule(name=st.sampled_from([part.name for part in PARTS]))
    def report_part_alive(self, name: str) -> None:
        self.apply_effects(self.tree.handle_event(PartAlive(name), self.now_s))

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 100.0]))
    def advance_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.apply_effects(self.tree.handle_event(TimerFired(), self.now_s))

    @precondition(lambda self: self.living_parts)
    @rule()
    def request_stop(self) -> None:
        self.is_stop_requested = True
        self.apply_effects(self.tree.handle_event(StopRequested(), self.now_s))

    @invariant()
    def finishes_once_and_only_without_processes(self) -> None:
        assert self.finish_count <= 1
        assert not (self.finish_count and self.living_parts)

    @invariant()
    def without_processes_a_deadline_is_set_or_the_tree_has_finished(self) -> None:
        if not self.living_parts and not self.finish_count:
            assert self.tree.next_deadline_s() is not None

    def teardown(self) -> None:
        """Check that the tree finishes after a stop request once every process has ended."""
        if not self.finish_count:
            self.apply_effects(self.tree.handle_event(StopRequested(), self.now_s))
        for _ in range(len(PARTS)):
            for name in sorted(self.living_parts):
                self.loading.discard(name)
                self.running.discard(name)
                self.apply_effects(self.tree.handle_event(PartEnded(name, "exit code 0"), self.now_s))
        assert self.finish_count == 1


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=30)
