"""The notebook runs to its end, and draws its plots."""

import os
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "x86-lazy-tlb.ipynb"


@pytest.mark.skipif("SHOOTDOWN_SOAK" not in os.environ, reason="takes a minute")
def test_notebook_runs_and_plots():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
