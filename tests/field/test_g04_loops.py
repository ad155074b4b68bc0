"""Field case G04: training and evaluating where an event loop already runs, in a thread, and in a notebook."""

import asyncio
import io
import threading

import pytest
from rich.console import Console

import mmgrpo

QUIET = Console(file=io.StringIO())


async def patient(completions, **columns):
    await asyncio.sleep(0.001)
    return [float(len(text)) for text in completions]


def test_g04_train_and_evaluate_work_inside_a_running_loop_also_with_asynchronous_rewards(train):
    async def cell():
        run = train(rewards=[patient], eval={})
        return run, run.evaluate(limit=2), mmgrpo.evaluate(run.path, rewards=[patient], console=QUIET)

    run, again, offline = asyncio.run(cell())
    assert run.steps == 3
    assert again.greedy.rows == 2
    assert offline.greedy_rows == run.after.greedy_rows


def test_g04_train_works_in_a_thread(train):
    found = []
    thread = threading.Thread(target=lambda: found.append(train(train={"max_seconds": 1e-9})))
    thread.start()
    thread.join()
    assert (found[0].steps, found[0].stopped) == (0, "the time limit of 1e-09 seconds")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what Jupyter's own libraries warn of is not ours
def test_g04_a_notebook_trains_evaluates_and_generates(yaml_file, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    pytest.importorskip("ipykernel")
    cells = [
        "import mmgrpo",
        f"run = mmgrpo.train({str(yaml_file(eval={}))!r}, train={{'num_steps': 2}}, on_step=lambda step, m: None)",
        "print(len(run.metrics()), run.evaluate(limit=2).greedy.rows, len(run.generate(run.samples()[0], count=2)))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    done = client(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert done.cells[-1].outputs[-1]["text"] == "2 2 2\n"
