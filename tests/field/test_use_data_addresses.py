"""Faults found by use: texts that name media, as paths, addresses and base64."""

from __future__ import annotations

import base64
import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo.addresses import ENDINGS, PathPolicy, address_form, kind_of_ending, locate
from mmgrpo.config.data import Columns, Template
from mmgrpo.data.samples import Samples
from mmgrpo.data.sources import rows_from_python
from mmgrpo.errors import MediaError
from mmgrpo.media.sources import load_source


def noise_png(side: int = 100) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.RandomState(0).randint(0, 255, (side, side, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def refusal(value: Any, base: Path) -> str:
    rows = rows_from_python([{"image": value, "problem": "?", "solution": "1"}], base=base)
    with pytest.raises(MediaError) as error:
        Samples(rows, columns=Columns(), template=Template())[0]
    return str(error.value)


@pytest.mark.parametrize("spoil", [lambda text: text + "'", lambda text: f"{text},{text}", lambda text: "*" + text])
def test_r301_base64_with_a_stray_mark_is_refused_at_once_and_briefly(spoil, tmp_path: Path):
    text = spoil(base64.b64encode(noise_png(1000)).decode())
    assert len(text) > 3_000_000
    start = time.process_time()
    message = refusal(text, tmp_path)
    assert time.process_time() - start < 5  # it took hours
    assert len(message) < 1500
    assert "base64" in message
    with pytest.raises(MediaError):
        load_source(text, name="an image")


def test_r301_an_unknown_scheme_is_named_in_a_short_message(tmp_path: Path):
    message = refusal("base64://" + base64.b64encode(noise_png()).decode(), tmp_path)
    assert "base64://" in message
    assert len(message) < 1500


@pytest.mark.parametrize("address", ["s3://bucket/a.png", "hf://datasets/owner/name/a.png", "gs://bucket/a.png"])
def test_r309_addresses_of_other_services_are_told_by_their_name(address: str, tmp_path: Path):
    message = refusal(address, tmp_path)
    assert address.split("://")[0] + "://" in message
    assert "Download" in message


def test_r309_a_relative_file_address_is_told_as_one(tmp_path: Path):
    message = refusal("file://images/a.png", tmp_path)
    assert "names a host" in message
    assert "Write images/a.png" in message
    assert locate("file:a.png", PathPolicy(base=tmp_path), where="w") == tmp_path / "a.png"
    assert locate("file://localhost/a.png", PathPolicy(base=tmp_path), where="w") == Path("/a.png")


@pytest.mark.parametrize("text", ["C:\\a.png", "a:b.png", "a.png", "photos 1:2/a.png"])
def test_r309_a_colon_in_a_path_is_no_scheme(text: str):
    assert address_form(text) == "path"


def test_one_table_holds_the_endings_of_all_readers(tmp_path: Path):
    for kind, endings in ENDINGS.items():
        assert {kind_of_ending(f"a{ending}") for ending in endings} == {kind}
