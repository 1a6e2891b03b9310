"""The second half of the six fixed seeds, in a separate file so that both halves run in parallel."""

from tests.simulation.test_seeds import simulate


def test_three_more_seeds_hold_every_invariant() -> None:
    process = simulate("--seeds", "3", "--first", "4")

    assert process.returncode == 0, process.stdout[-20_000:] + process.stderr[-5_000:]
