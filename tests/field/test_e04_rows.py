"""Field case of evaluation rows: the truths of real files are what rewards can compare with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import mmgrpo
from mmgrpo.config.data import Columns, Files, Template
from mmgrpo.config.load import load_config
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import open_rows

DATA = Path(os.environ.get("MMGRPO_FIELD_DATA", "../shared/data")).absolute()
SUPER = DATA / "clevr" / "superclevr_test200_counting_problems.jsonl"
WORDS = DATA / "text" / "gsm8k_test_first200.jsonl"
FILES = Path(mmgrpo.__file__).resolve().parent.parent / "datasets_configs"


@pytest.mark.skipif(not SUPER.is_file(), reason="MMGRPO_FIELD_DATA names no folder of real files")
def test_e04_two_hundred_counting_rows_have_whole_numbers_from_three_to_ten_as_truths():
    samples = Samples(open_rows(Files(path=str(SUPER)), base=DATA), columns=Columns(), template=Template())
    assert samples.form.name == "r1v"
    truths = [mmgrpo.read_ground_truth(sample.answer) for sample in samples]
    assert len(truths) == 200
    assert all(isinstance(truth, int) and 3 <= truth <= 10 for truth in truths)
    assert all(len(sample.media) == 1 for sample in samples)


@pytest.mark.skipif(not WORDS.is_file(), reason="MMGRPO_FIELD_DATA names no folder of real files")
def test_word_problems_have_numbers_as_truths():
    values = {"data.config": str(FILES / "gsm8k.yaml"), "model.name": "tiny:qwen2_5_vl"}
    data = load_config(None, values).data
    samples = Samples(open_rows(Files(path=str(WORDS)), base=DATA), columns=data.columns, template=data.template)
    assert all(mmgrpo.to_number(sample.answer) is not None for sample in samples)
