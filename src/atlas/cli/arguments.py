"""Arguments that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds run folders.")]
Client = Annotated[str, typer.Option("--client", help="Client id.")]
Run = Annotated[str, typer.Argument(help="A run folder, or the name of one under --out.")]
Source = Annotated[str, typer.Argument(help="A preset's name or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value settings.")]
RUNS = Path("runs")
