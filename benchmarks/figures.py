"""A figure: a measured value with its unit, its baseline and its target."""

from typing import Final

import msgspec

NOISE_FACTOR: Final = 2.0
"""A busy or slower machine takes up to twice as long. A figure that misses its target by more is a failure."""


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured value. `baseline` is that of a simpler program in the same run.

    `at_least` and `at_most` are the target. With a baseline, they are fractions of it.
    """

    value: float
    unit: str
    baseline: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    def compute_relative_value(self) -> float:
        """Return the value that is compared with the target."""
        return self.value if self.baseline is None else self.value / self.baseline

    def meets_target(self) -> bool:
        relative_value = self.compute_relative_value()
        return (self.at_least is None or relative_value >= self.at_least) and (
            self.at_most is None or relative_value <= self.at_most
        )

    def describe_failure(self) -> str:
        """Return a sentence if the value misses its target by more than noise, else "". A target of 0 has no noise."""
        unit = self.unit if self.baseline is None else f"of the baseline of {self.baseline:,.6g} {self.unit}"
        measured = f"{self.compute_relative_value():,.6g} {unit}"
        if self.at_least is not None and self.compute_relative_value() * NOISE_FACTOR < self.at_least:
            return f"{measured} is less than half of the target, at least {self.at_least:,.6g}"
        if self.at_most is not None and self.compute_relative_value() > self.at_most * NOISE_FACTOR:
            return f"{measured} is more than twice the target, at most {self.at_most:,.6g}"
        return ""


Figures = dict[str, Figure]


def print_table(figures: Figures) -> None:
    width = max(map(len, figures), default=0)
    for name, figure in figures.items():
        print(f"  {name:<{width}}  {format_row(figure)}")


def format_row(figure: Figure) -> str:
    """Return a line such as `3,140 commits/s; 0.45 of baseline 6,900; target: at least 0.6  MISSED`."""
    parts = [f"{figure.value:>12,.6g} {figure.unit}"]
    if figure.baseline is not None:
        parts.append(f"{figure.compute_relative_value():.2f} of baseline {figure.baseline:,.6g}")
    for bound, words in ((figure.at_least, "at least"), (figure.at_most, "at most")):
        if bound is not None:
            parts.append(f"target: {words} {bound:,.6g}" + ("" if figure.meets_target() else "  MISSED"))
    return "; ".join(part for part in (*parts, figure.note) if part)
