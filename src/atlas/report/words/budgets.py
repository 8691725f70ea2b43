"""What memory budgets came to: to whom less was granted, and whose training does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atlas.config.plan import MAKE_ROOM
from atlas.report.words.english import counted, listed

Grant = Mapping[str, Any]


def granted_line(grants: Sequence[Grant]) -> str:
    """The ranks that clients were given, what those take of budgets, and whom they are too much."""
    ranks = [rank for grant in grants for rank in grant["ranks"]]
    shares = [budget_share(grant) for grant in grants]
    line = f"ranks  {counted(len(grants), 'client')}, {_span(ranks)}, {_span(shares)} % of budget"
    by_client = {grant["client"]: grant for grant in grants}
    for told, clients in (("lowered", lowered(by_client)), ("does not fit", beyond(by_client))):
        line += f"; {told}: {listed(clients)}" if clients else ""
    return line


def budget_words(budgets: Mapping[str, Grant]) -> Iterator[str]:
    """Who got less than the cost model would give, and who would run out of memory."""
    if less := lowered(budgets):
        yield f"A trial step took more than the budget, so less was granted: {listed(less)}."
    if over := beyond(budgets):
        share = max(budget_share(budgets[client]) for client in over)
        most = "up to " if len(over) > 1 else ""
        yield (
            f"Training does not fit into the memory of {listed(over)}: a step takes {most}{share} "
            f"% of the budget; {MAKE_ROOM}."
        )


def budget_share(grant: Grant) -> int:
    """Per cent of the budget that a step takes: as measured, or by the model where it was not.

    Rounded up: what is beyond its budget never reads as 100 %.
    """
    took: int = grant["used"] if grant["measured"] is None else grant["measured"]
    budget: int = grant["budget"]
    return math.ceil(100 * took / budget)


def lowered(grants: Mapping[str, Grant]) -> list[str]:
    """Whose ranks, or blocks, a trial step lowered; summaries of earlier versions do not say."""
    return [client for client, grant in grants.items() if grant.get("lowered")]


def beyond(grants: Mapping[str, Grant]) -> list[str]:
    """Whose step takes more than the budget."""
    return [client for client, grant in grants.items() if not grant["valid"]]


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least} to {most}"
