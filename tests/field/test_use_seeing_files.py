"""What people find in the files of a run; the row of the list is in each test's name."""

import contextlib
import os
import time

from mmgrpo.observe import atomic
from mmgrpo.observe.runfolder import RunFolder


def test_t06_what_a_killed_run_left_is_removed_at_the_next_start_and_nothing_else(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.evaluations.mkdir()

    def killed(source, target):
        raise KeyboardInterrupt  # nothing runs after a kill -9: the file stays

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "replace", killed)
        for path in (folder.origin, folder.evaluations / "step_000001.json"):
            with contextlib.suppress(KeyboardInterrupt):
                atomic.write_atomic(path, "{}")
    (tmp_path / ".run.json.abcd_123").write_text("an older version's")
    (folder.evaluations / ".step_000001.jsonl.x9k2m4a_").write_text("an older version's")
    (tmp_path / ".gitignore").write_text("mine")
    (tmp_path / ".notes.tmp").write_text("being written now")
    left = [path for path in tmp_path.rglob(".*") if path.name not in (".gitignore", ".notes.tmp")]
    assert len(left) == 4
    for path in [*left, tmp_path / ".gitignore"]:
        os.utime(path, (time.time() - 3600,) * 2)
    with folder.held():
        pass
    assert sorted(path.name for path in tmp_path.rglob(".*")) == [".gitignore", ".notes.tmp"]
