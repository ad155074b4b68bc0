"""The notebook runs from top to bottom, as a user runs it, and shows what it promises."""

import json
import re
import time
from pathlib import Path

import pytest

import mmgrpo

NOTEBOOK = Path(mmgrpo.__file__).resolve().parent.parent / "examples" / "notebook.ipynb"
CELL_SECONDS = 180
CPU_SECONDS = 60


def cells():
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def text_of(cell):
    """Everything that a cell printed or showed."""
    told = []
    for output in cell["outputs"]:
        told.append(output.get("text", ""))
        told += [str(value) for value in output.get("data", {}).values()]
    return "\n".join(told)


def test_it_is_kept_without_outputs():
    code = [cell for cell in cells() if cell["cell_type"] == "code"]
    assert code
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == []


@pytest.mark.slow
def test_it_runs_within_a_minute_and_shows_metrics_pictures_and_a_comparison(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parent.parent))
    book = nbformat.read(NOTEBOOK, as_version=4)
    # the kernel tells its own processor time, so that a busy machine does not fail the test
    book.cells.append(nbformat.v4.new_code_cell("import time; print('cpu', time.process_time())"))
    start = time.monotonic()
    client = nbclient.NotebookClient(
        book, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    seconds = time.monotonic() - start
    told = "\n".join(text_of(cell) for cell in book.cells if cell["cell_type"] == "code")
    assert float(re.search(r"cpu ([\d.]+)", told)[1]) < CPU_SECONDS, f"{seconds:.0f} s on the clock"
    assert "[1.0, 0.5, 0.0]" in told, "the reward by itself"
    assert len(re.findall(r"^ +[1-5]( +[\d.]+){5}$", told, re.M)) >= 15, "five steps of three tables"
    assert told.count("data:image/png;base64,") == 3, "three pictures"
    assert "truth: &lt;answer&gt;" in told
    assert len(re.findall(r"^temperature \S+: accuracy", told, re.M)) == 2
    assert (tmp_path / "runs" / "quickstart" / "metrics.jsonl").is_file()
