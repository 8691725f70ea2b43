"""Makes atlas.ipynb from source.py: `python notebooks/build.py`. Cells begin at lines with `# %%`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE, NOTEBOOK = HERE / "source.py", HERE / "atlas.ipynb"


def cells_of(text: str) -> list[dict[str, Any]]:
    """The cells of a source, as notebooks hold them; outputs are left out."""
    cells = []
    for number, part in enumerate(text.split("# %%")[1:]):
        head, _, body = part.partition("\n")
        kind = "markdown" if "[markdown]" in head else "code"
        lines = body.strip("\n").split("\n")
        if kind == "markdown":
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        shown = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number:02}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append({**cell, "source": shown})
    return cells


def notebook_of(text: str) -> str:
    """The whole notebook as text."""
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    book = {"cells": cells_of(text), "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook_of(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
