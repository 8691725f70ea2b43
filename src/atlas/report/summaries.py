"""The table of a finished run, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from atlas.report.memory_tables import memory_table
from atlas.report.tables.runs import client_table


def summary_table(found: Mapping[str, Any]) -> Table:
    """Of a run as `describe_run` gives it."""
    if found["kind"] == "memory":
        return memory_table(found["summary"])
    return client_table(found["summary"], found["tasks"])
