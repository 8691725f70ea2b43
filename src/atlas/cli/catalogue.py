"""Verbs that list what there is: presets, strategies and settings."""

from __future__ import annotations

from typing import Annotated

import typer

from atlas.cli.common import Json, show_result


def presets(as_json: Json = False) -> None:
    """List the presets: whole runs by name."""
    from atlas.config.describe import list_presets
    from atlas.report.tables.catalogue import presets_table

    rows = list_presets()
    show_result(rows, as_json, lambda: presets_table(rows))


def strategies(as_json: Json = False) -> None:
    """List the strategies: who learns from whom, and how."""
    from atlas.federation.strategies import list_strategies
    from atlas.report.tables.catalogue import strategies_table

    rows = list_strategies()
    show_result(rows, as_json, lambda: strategies_table(rows))


def settings(
    key: Annotated[
        str | None, typer.Argument(help="A setting, or a block such as train; none: all.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="federation, memory or grokking; none: all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the settings: type, default, what is allowed, what they do."""
    from atlas.config.describe import find_settings
    from atlas.config.load import check_kind
    from atlas.report.tables.catalogue import settings_view

    rows = [facts.plain() for facts in find_settings(key, check_kind(kind))]
    show_result(rows, as_json, lambda: settings_view(rows))
