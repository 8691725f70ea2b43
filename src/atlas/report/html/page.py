"""A document as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from atlas.errors import InputError
from atlas.report.colours import css_variables
from atlas.report.html.document import Document, run_document, runs_document, study_document
from atlas.runs.files import write_text_atomic, writing

SCRIPTS = ("base.js", "axes.js", "lines.js", "marks.js", "heat.js", "tables.js", "page.js")
"""In the order in which they lean on each other."""


@cache
def asset(name: str) -> str:
    """A file of `assets/`."""
    return (resources.files("atlas.report.html") / "assets" / name).read_text("utf-8")


def style() -> str:
    """The style sheet, with the colours of the palette."""
    return css_variables() + asset("page.css")


def script() -> str:
    """All charts as one script."""
    return "\n".join(asset(name) for name in SCRIPTS)


def render(document: Document) -> str:
    """The page of a document.

    Texts come as JSON in which nothing can end the script element, and become text nodes; a policy
    in the page lets no script run but the page's own.
    """
    code = script() + "\nAtlas.openReport();\n"
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    template = Environment(autoescape=True).from_string(asset("report.html.j2"))
    return template.render(
        document=document,
        script_hash=Markup(f"sha256-{digest}"),  # noqa: S704 - base64
        style=Markup(style()),  # noqa: S704 - our own
        script=Markup(code),  # noqa: S704 - our own
        data=Markup(embedded(document)),  # noqa: S704 - escaped there
    )


def embedded(document: Document) -> str:
    """JSON that is safe inside a script element."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def open_document(paths: Sequence[Path]) -> Document:
    """What a report on some folders shows: a run, several, or a study.

    Raises:
        InputError: One of them is neither a run nor a study, or a study stands among others.
    """
    studies = [path for path in paths if (path / "compare.json").is_file()]
    if not paths:
        raise InputError("name at least one run or study")
    if studies and len(paths) > 1:
        raise InputError(
            f"{studies[0]}: a study has a report of its own; allowed beside others: runs"
        )
    if studies:
        return study_document(read_table(studies[0]), studies[0])
    return run_document(paths[0]) if len(paths) == 1 else runs_document(paths)


def read_table(folder: Path) -> dict[str, object]:
    """What a study's `compare.json` holds.

    Raises:
        InputError: It is not a table of a study.
    """
    path = folder / "compare.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list) or not found["rows"]:
        raise InputError(f"{path}: rows missing")
    return found


def write_report(paths: Sequence[Path], to: Path | None = None) -> Path:
    """`make_report`; returns the file."""
    return Path(make_report(paths, to)["report"])


def make_report(paths: Sequence[Path], to: Path | None = None) -> dict[str, Any]:
    """Write the report of a run, of several, or of a study; tells where it is and what it lacks.

    Args:
        paths: Run folders, or one study.
        to: The file; by default `report.html` in the first folder.

    Raises:
        InputError: A folder is none, or the file cannot be written.
    """
    document = open_document(paths)
    target = to or paths[0] / "report.html"
    with writing(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(target, render(document))
    return {
        "report": str(target),
        "title": document["title"],
        "sections": [section["id"] for section in document["sections"]],
        "missing": document["missing"],
    }
