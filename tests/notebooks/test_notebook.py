"""The notebook is what its source makes, and runs from a clean start."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"


def builder():
    spec = importlib.util.spec_from_file_location("build", FOLDER / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_made_from_its_source():
    made = builder().notebook_of((FOLDER / "source.py").read_text(encoding="utf-8"))
    kept = (FOLDER / "atlas.ipynb").read_text(encoding="utf-8")
    assert kept == made, "run: python notebooks/build.py"


def test_cells_are_cut_where_the_source_says():
    text = "# %% [markdown]\n# A title\n#\n# words\n\n# %%\nx = 1\n\ny = 2\n"
    first, second = builder().cells_of(text)
    assert "".join(first["source"]) == "A title\n\nwords" and first["cell_type"] == "markdown"
    assert "".join(second["source"]) == "x = 1\n\ny = 2" and second["outputs"] == []


def test_every_part_is_there():
    text = (FOLDER / "source.py").read_text(encoding="utf-8")
    for part in ("pip", '"oracle"', '"eta"', '"clusters"', '"affinity"', '"ranks"', "simgrad",
                 "mosaic-adaptive", '"recall"', '"grokking"', "federate"):  # fmt: skip
        assert part in text


def test_the_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install -e '.[dev]'")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install -e '.[dev]'")
    import nbformat

    book = nbformat.read(FOLDER / "atlas.ipynb", as_version=4)
    nbformat.validate(book)
    monkeypatch.setenv("ATLAS_NOTEBOOK_SIZE", "tiny")
    monkeypatch.setenv("ATLAS_NOTEBOOK_OUT", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    tables = [o for o in outputs if "text/html" in o.get("data", {})]
    streams = [o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == "stdout"]
    assert len(pictures) >= 7 and len(tables) >= 5
    assert any("round 1/" in text for text in streams), "a notebook shows how far a run is"
    assert (tmp_path / "shops" / "summary.json").exists()
    assert not [json.dumps(o) for o in outputs if o["output_type"] == "error"]
