"""Lines on the clients' own files: how many rows are used, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_LISTED = 12
"""Clients that are listed one by one; of more, those with warnings."""
TOLD = {"dropped": "dropped", "conflicts": "in conflict", "truncated": "truncated"}


def data_lines(clients: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line a client, its warnings by its name below; of many clients their sum first."""
    lines = []
    chosen = dict(clients)
    if len(clients) > MOST_LISTED:
        keys = ("rows", "used", "train", "validation", "test", "duplicates", *TOLD)
        total = {key: sum(facts[key] for facts in clients.values()) for key in keys}
        lines.append(f"data  {len(clients)} clients: {counts_text(total)}")
        warned = {client: facts for client, facts in clients.items() if facts["warnings"]}
        chosen = dict(list(warned.items())[:MOST_LISTED])
    for client, facts in chosen.items():
        lines.append(f"data  {client}: {counts_text(facts)}")
        lines += [f"  {client}: {warning}" for warning in facts["warnings"]]
    left = sum(bool(f["warnings"]) for c, f in clients.items() if c not in chosen)
    if left:
        lines.append(f"  warnings of {left} more clients are in the run's events and summary")
    return lines


def counts_text(facts: Mapping[str, Any]) -> str:
    """Such as ``100 rows, 96 used (48 train, 19 validation, 29 test), 3 duplicates, 1 dropped``."""
    splits = ", ".join(f"{facts[split]} {split}" for split in ("train", "validation", "test"))
    doubles = f"{facts['duplicates']} duplicate{'' if facts['duplicates'] == 1 else 's'}"
    others = ", ".join(f"{facts[key]} {word}" for key, word in TOLD.items())
    return f"{facts['rows']} rows, {facts['used']} used ({splits}), {doubles}, {others}"
