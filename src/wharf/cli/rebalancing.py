"""`wharf operator rebalance`: what would stand better on another node, and moving it there."""

from typing import TYPE_CHECKING

import click

from wharf.cli.speaking import Speaking, Talk

if TYPE_CHECKING:
    from wharf.model.rebalancing import Rebalancing


@click.command(cls=Speaking)
@click.option("--plan", is_flag=True, help="Only say which allocations would move and what is gained.")
def rebalance(talk: Talk, plan: bool) -> None:
    """Move allocations of services that would stand better on another node.

    As many of each group at a time as its migrate block allows. What is held back goes when the command is run again.

    wharf operator rebalance --plan
    """
    told = talk.client.operator.rebalance(plan=plan)
    talk.show(told, lambda: rebalancing_told(told, is_plan=plan))


def rebalancing_told(told: "Rebalancing", *, is_plan: bool) -> str:
    """One sentence first, the table after."""
    from wharf.cli.tables import table

    text = told.text[:1].upper() + told.text[1:] + "."
    if not told.moves:
        return text
    if not is_plan:
        held = len(told.moves) - told.moving
        text += f"\n{told.moving} moves are begun now" + (f", {held} are held back by migrate limits." if held else ".")
    rows = [
        (each.name, each.from_node, each.to_node, f"{each.score_before:.2f}", f"{each.score_after:.2f}")
        for each in told.moves
    ]
    return f"{text}\n\n{table(('Allocation', 'From', 'To', 'Score', 'Score there'), rows)}"
