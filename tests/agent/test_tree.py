"""Which processes should run: events in, effects out."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wharf.agent.tree import (
    SILENCE_BEFORE_READY_S,
    AnnounceReady,
    AskToStop,
    Effect,
    Ended,
    Finish,
    Kill,
    LetGo,
    Lived,
    Part,
    ProcessTree,
    Readied,
    Spawn,
    StopAsked,
    TimePassed,
    Warn,
)

PARTS = (Part("store"), Part("api", ("store",)), Part("brain", ("store",)), Part("node", ("api",)))


def a_running_tree() -> ProcessTree:
    tree = ProcessTree(PARTS)
    tree.start(0.0)
    for name in ("store", "api", "brain", "node"):
        tree.on(Readied(name), 0.0)
    return tree


def test_all_parts_load_at_once_and_only_the_lowest_is_let_go() -> None:
    assert ProcessTree(PARTS).start(0.0) == [
        Spawn("store"),
        Spawn("api"),
        Spawn("brain"),
        Spawn("node"),
        LetGo("store"),
    ]


def test_a_part_is_let_go_when_those_it_stands_on_are_ready() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    assert tree.on(Readied("store"), 0.1) == [LetGo("api"), LetGo("brain")]
    assert tree.on(Readied("brain"), 0.1) == []
    assert tree.on(Readied("api"), 0.2) == [LetGo("node")]
    assert tree.on(Readied("node"), 0.3) == [AnnounceReady()]


def test_a_part_that_ends_is_started_again_alone_after_a_pause_that_grows() -> None:
    tree = a_running_tree()

    assert tree.on(Ended("api", "killed by SIGKILL"), 5.0) == [
        Warn("api ended (killed by SIGKILL); it starts again in 0.1 s")
    ]
    assert tree.next_due_s() == 5.1
    assert tree.on(TimePassed(), 5.1) == [Spawn("api"), LetGo("api")]
    assert tree.on(Ended("api", "exit code 1", "the disk is full"), 5.2) == [
        Warn("api ended (exit code 1): the disk is full; it starts again in 0.5 s")
    ]


def test_being_ready_again_is_not_announced_twice() -> None:
    tree = a_running_tree()
    tree.on(Ended("node", "exit code 1"), 5.0)
    tree.on(TimePassed(), 6.0)

    assert tree.on(Readied("node"), 6.1) == []


def test_ends_are_forgotten_when_a_part_ran_for_a_while() -> None:
    tree = a_running_tree()
    tree.on(Ended("api", "exit code 1"), 5.0)
    tree.on(TimePassed(), 5.1)
    tree.on(Readied("api"), 5.2)

    assert tree.on(Ended("api", "exit code 1"), 100.0) == [Warn("api ended (exit code 1); it starts again in 0.1 s")]


def test_a_part_that_says_why_it_cannot_start_ends_the_agent_with_its_words() -> None:
    tree = ProcessTree(PARTS)
    tree.start(0.0)

    stopping = tree.on(Ended("store", "exit code 1", "the log is damaged"), 0.2)
    ended = [tree.on(Ended(name, "exit code 0"), 0.3) for name in ("node", "api", "brain")]

    assert stopping == [AskToStop("brain"), AskToStop("node")]
    assert ended == [[AskToStop("api")], [], [Finish("the log is damaged")]]


def test_a_part_that_ends_too_often_before_all_was_ready_ends_the_agent() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    for _ in range(2):
        tree.on(Ended("store", "exit code 1"), 1.0)
        tree.on(TimePassed(), 9.0)

    assert tree.on(Ended("store", "exit code 1"), 9.1) == [
        Finish("store ended 3 times before it was ready (exit code 1)")
    ]


def test_parts_stop_against_the_order_in_which_they_started() -> None:
    tree = a_running_tree()

    assert tree.on(StopAsked(), 9.0) == [AskToStop("brain"), AskToStop("node")]
    assert tree.on(Ended("node", "exit code 0"), 9.1) == [AskToStop("api")]
    assert tree.on(Ended("api", "exit code 0"), 9.2) == []
    assert tree.on(Ended("brain", "exit code 0"), 9.3) == [AskToStop("store")]
    assert tree.on(Ended("store", "exit code 0"), 9.4) == [Finish()]


def test_a_part_that_does_not_stop_in_time_is_killed() -> None:
    tree = ProcessTree((Part("store", grace_s=2.0),))
    tree.start(0.0)
    tree.on(StopAsked(), 1.0)

    assert tree.next_due_s() == 3.0
    assert tree.on(TimePassed(), 3.0) == [Warn("store did not stop in time and is killed"), Kill("store")]
    assert tree.on(Ended("store", "killed by SIGKILL"), 3.1) == [Finish()]


def test_a_second_request_to_stop_kills_all_that_lives() -> None:
    tree = a_running_tree()
    tree.on(StopAsked(), 9.0)
    tree.on(Ended("node", "exit code 0"), 9.1)

    assert tree.on(StopAsked(), 9.6) == [Kill("store"), Kill("api"), Kill("brain")]


def test_a_request_to_stop_that_comes_twice_at_once_is_one() -> None:
    tree = a_running_tree()
    tree.on(StopAsked(), 9.0)

    assert tree.on(StopAsked(), 9.1) == []


def test_a_part_that_rests_is_not_started_again_after_a_request_to_stop() -> None:
    tree = ProcessTree(PARTS[:1])
    tree.start(0.0)
    tree.on(Readied("store"), 0.1)
    tree.on(Ended("store", "exit code 1"), 1.0)

    assert tree.on(StopAsked(), 1.01) == [Finish()]
    assert (tree.next_due_s(), tree.on(TimePassed(), 9.0)) == (None, [])


def test_a_part_that_falls_silent_is_killed_and_started_again_with_one_line() -> None:
    tree = a_running_tree()
    for name in ("api", "brain", "node"):
        tree.on(Lived(name), 15.0)
    tree.on(Lived("store"), 5.0)
    assert tree.on(TimePassed(), 24.9) == []

    assert tree.on(TimePassed(), 25.0) == [Kill("store")]
    assert tree.on(TimePassed(), 25.1) == []
    assert tree.on(Ended("store", "killed by SIGKILL"), 25.2) == [
        Warn("store ended (killed: no sign of life for 20 s); it starts again in 0.1 s")
    ]


def test_each_part_may_be_silent_for_as_long_as_it_is_allowed_to() -> None:
    tree = ProcessTree([Part("store", silence_s=60.0)])
    tree.start(0.0)
    tree.on(Readied("store"), 0.0)

    assert (tree.next_due_s(), tree.on(TimePassed(), 59.9)) == (60.0, [])
    assert tree.on(TimePassed(), 60.0) == [Kill("store")]


def test_a_part_that_is_not_ready_yet_may_load_for_long() -> None:
    tree = ProcessTree([Part("store")])
    tree.start(0.0)

    assert tree.on(TimePassed(), SILENCE_BEFORE_READY_S - 1.0) == []
    assert tree.on(TimePassed(), SILENCE_BEFORE_READY_S) == [Kill("store")]


def test_after_the_whole_machine_stood_still_nobody_is_killed_for_its_silence() -> None:
    tree = a_running_tree()

    assert tree.on(TimePassed(), 500.0) == []
    assert tree.on(TimePassed(), 520.0) == [Kill("store"), Kill("api"), Kill("brain"), Kill("node")]


def test_a_silent_part_that_is_asked_to_stop_has_its_time_to_stop_and_no_more() -> None:
    tree = ProcessTree([Part("node", grace_s=3.0)])
    tree.start(0.0)
    tree.on(Readied("node"), 0.0)
    tree.on(StopAsked(), 19.0)

    assert tree.on(TimePassed(), 20.5) == []
    assert tree.on(TimePassed(), 22.0) == [Warn("node did not stop in time and is killed"), Kill("node")]


class AnyHistory(RuleBasedStateMachine):
    """A little world of processes that does what it is told, and ends whenever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.tree = ProcessTree(PARTS)
        self.loading: set[str] = set()
        self.free: set[str] = set()
        self.finishes = 0
        self.stop_asked = False
        self.do(self.tree.start(0.0))

    @property
    def living(self) -> set[str]:
        return self.loading | self.free

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn(name):
                    assert name not in self.living
                    assert not self.stop_asked
                    self.loading.add(name)
                case LetGo(name):
                    self.loading.remove(name)
                    self.free.add(name)
                case AskToStop(name) | Kill(name):
                    assert name in self.living
                case Finish():
                    assert not self.living
                    self.finishes += 1
                case _:
                    pass

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def one_is_ready(self, data: st.DataObject) -> None:
        self.do(self.tree.on(Readied(data.draw(st.sampled_from(sorted(self.free)))), self.now_s))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), why=st.sampled_from(["", "broken"]))
    def one_ends(self, data: st.DataObject, why: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.living)))
        self.loading.discard(name)
        self.free.discard(name)
        self.do(self.tree.on(Ended(name, "exit code 1", why), self.now_s))

    @rule(name=st.sampled_from([part.name for part in PARTS]))
    def one_gives_a_sign_of_life(self, name: str) -> None:
        self.do(self.tree.on(Lived(name), self.now_s))

    @rule(seconds=st.sampled_from([0.05, 0.5, 5.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.do(self.tree.on(TimePassed(), self.now_s))

    @precondition(lambda self: self.living)
    @rule()
    def stop_is_asked(self) -> None:
        self.stop_asked = True
        self.do(self.tree.on(StopAsked(), self.now_s))

    @invariant()
    def it_finishes_once_and_only_with_nothing_left(self) -> None:
        assert self.finishes <= 1
        assert not (self.finishes and self.living)

    @invariant()
    def whatever_does_not_live_is_due_or_the_end_has_come(self) -> None:
        if not self.living and not self.finishes:
            assert self.tree.next_due_s() is not None

    def teardown(self) -> None:
        """Whatever happened before: asked to stop, and every process obeying, it finishes."""
        if not self.finishes:
            self.do(self.tree.on(StopAsked(), self.now_s))
        for _ in range(len(PARTS)):
            for name in sorted(self.living):
                self.loading.discard(name)
                self.free.discard(name)
                self.do(self.tree.on(Ended(name, "exit code 0"), self.now_s))
        assert self.finishes == 1


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=30)
