"""A figure: what was measured, in which unit, against what it is to reach."""

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`baseline`: the same without us, in the same run; then `at_least` and `at_most` are fractions of it."""

    value: float
    unit: str
    baseline: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    def compute_relative_value(self) -> float:
        """What is compared with the bound."""
        return self.value if self.baseline is None else self.value / self.baseline

    def is_reached(self) -> bool:
        measured = self.compute_relative_value()
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )


Figures = dict[str, Figure]


def print_table(figures: Figures) -> None:
    width = max(map(len, figures), default=0)
    for name, figure in figures.items():
        print(f"  {name:<{width}}  {format_row(figure)}")


def format_row(figure: Figure) -> str:
    parts = [f"{figure.value:>12,.6g} {figure.unit}"]
    if figure.baseline is not None:
        parts.append(f"{figure.compute_relative_value():.2f} of {figure.baseline:,.6g} bare")
    for bound, words in ((figure.at_least, "at least"), (figure.at_most, "at most")):
        if bound is not None:
            parts.append(f"to reach: {words} {bound:,.6g}" + ("" if figure.is_reached() else "  MISSED"))
    return "; ".join(part for part in (*parts, figure.note) if part)
