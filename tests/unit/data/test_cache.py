"""The cache gives what the processor gave, under the row that asks, and forgets nothing that changes the result."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.data.cache import PromptCache, size_of
from mmgrpo.data.content import key_of
from mmgrpo.types import Decoded, Media, Prompt, Sample


def sample_of(source: Any, *, kind: str = "image", number: int = 0, **keys: Any) -> Sample:
    medium = Media(kind=kind, source=source, name=f"row {number}", **keys)  # type: ignore[arg-type]
    message = {"role": "user", "content": [{"type": kind}, {"type": "text", "text": "?"}]}
    return Sample(id=str(number), messages=(message,), media=(medium,), answer=number, extras={"n": number})


def encode(sample: Sample, occurrence: int) -> Prompt:
    """Make a prompt that tells its picture: one tensor holds the pixels."""
    source = sample.media[0].source
    picture = source if isinstance(source, Image.Image) else Image.open(source)
    pixels = torch.from_numpy(np.array(picture.convert("RGB")))
    return Prompt(
        sample=sample,
        text="?",
        token_ids=torch.tensor([1, 2]),
        model_inputs={"pixels": pixels, "grid": [1, 2]},
        media=(Decoded(kind="image", data=picture.convert("RGB"), name=sample.media[0].name),),
        occurrence=occurrence,
        prefill="<think>",
    )


def save(path: Path, red: int, side: int = 8) -> Path:
    Image.new("RGB", (side, side), (red, 0, 0)).save(path)
    return path


@pytest.fixture(params=["memory", "folder", "both"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> PromptCache:
    folder = None if request.param == "memory" else tmp_path / "cache"
    return PromptCache(encode, fingerprint="f", max_bytes=0 if request.param == "folder" else 10**6, folder=folder)


def test_a_prompt_is_made_once_and_handed_out_under_the_row_that_asks(cache: PromptCache, tmp_path: Path):
    path = save(tmp_path / "a.png", 9)
    first, second = cache(sample_of(path, number=1), 5), cache(sample_of(path, number=2), 6)
    assert cache.made == 1
    assert (second.sample.id, second.sample.answer, second.sample.extras, second.occurrence) == ("2", 2, {"n": 2}, 6)
    assert torch.equal(first.model_inputs["pixels"], second.model_inputs["pixels"])
    assert second.model_inputs["grid"] == [1, 2]
    assert second.media[0].data.tobytes() == first.media[0].data.tobytes()
    assert (second.text, second.prefill, second.token_ids.tolist()) == ("?", "<think>", [1, 2])


def test_a_file_that_is_replaced_between_epochs_is_read_again(cache: PromptCache, tmp_path: Path):
    path = save(tmp_path / "a.png", 9)
    assert cache(sample_of(path), 0).model_inputs["pixels"][0, 0, 0] == 9
    facts = path.stat()
    save(path, 70)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert path.stat().st_size == facts.st_size
    assert cache(sample_of(path), 1).model_inputs["pixels"][0, 0, 0] == 70
    assert cache.made == 2


def test_the_folder_outlives_the_process_and_a_damaged_file_is_made_anew(tmp_path: Path):
    path = save(tmp_path / "a.png", 9)
    PromptCache(encode, fingerprint="f", folder=tmp_path / "c")(sample_of(path), 0)
    again = PromptCache(encode, fingerprint="f", folder=tmp_path / "c")
    again(sample_of(path), 0)
    assert again.made == 0
    other = PromptCache(encode, fingerprint="g", folder=tmp_path / "c")
    other(sample_of(path), 0)
    assert other.made == 1, "other settings of the processor are another prompt"
    for file in (tmp_path / "c").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    damaged = PromptCache(encode, fingerprint="f", folder=tmp_path / "c")
    assert damaged(sample_of(path), 0).model_inputs["pixels"][0, 0, 0] == 9
    assert damaged.made == 1


def test_memory_never_holds_more_than_its_limit_and_forgets_the_oldest(tmp_path: Path):
    paths = [save(tmp_path / f"{i}.png", i) for i in range(4)]
    one = size_of(encode(sample_of(paths[0]), 0))
    cache = PromptCache(encode, fingerprint="f", max_bytes=2 * one)
    for path in (paths[0], paths[1], paths[0], paths[2]):
        cache(sample_of(path), 0)
        assert cache.held_bytes <= 2 * one
    made = cache.made
    cache(sample_of(paths[0]), 0)
    assert cache.made == made, "used lately"
    cache(sample_of(paths[1]), 0)
    assert cache.made == made + 1, "the oldest went"


def test_a_prompt_larger_than_the_limit_is_not_held(tmp_path: Path):
    cache = PromptCache(encode, fingerprint="f", max_bytes=10)
    for _ in range(2):
        cache(sample_of(save(tmp_path / "a.png", 1)), 0)
    assert (cache.made, cache.held_bytes) == (2, 0)


def png(image: Image.Image, **keys: Any) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **keys)
    return Image.open(io.BytesIO(buffer.getvalue()))


def turned(orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return png(Image.new("RGB", (4, 6)), exif=exif)


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "pixels": (lambda: Image.new("RGB", (4, 4)), lambda: Image.new("RGB", (4, 4), (1, 0, 0))),
    "shape": (lambda: Image.new("RGB", (2, 8)), lambda: Image.new("RGB", (8, 2))),
    "orientation": (lambda: turned(1), lambda: turned(6)),
    "array": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "bytes": (lambda: b"a", lambda: b"b"),
    "text": (lambda: "data:,a", lambda: "data:,b"),
    "frames": (lambda: [b"a", b"b"], lambda: [b"b", b"a"]),
    "dictionary": (lambda: {"bytes": b"a"}, lambda: {"bytes": b"b"}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_media_that_differ_have_other_keys_and_equal_ones_the_same(what: str):
    one, two = DIFFERENT[what]
    keys = [key_of(sample_of(make()), "f") for make in (one, one, two)]
    assert keys[0] == keys[1] != keys[2]
    assert None not in keys


def test_rate_kind_and_messages_are_part_of_the_key():
    base = sample_of(b"a", kind="audio", rate=8000.0)
    others = [
        sample_of(b"a", kind="audio", rate=16000.0),
        sample_of(b"a", kind="video", rate=8000.0),
        replace(base, messages=({"role": "user", "content": "!"},)),
    ]
    assert len({key_of(one, "f") for one in (base, *others)}) == 4


def test_what_cannot_be_told_is_made_each_time():
    frames = [Image.new("RGB", (4, 4), (i * 9, 0, 0)) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:])
    animation = Image.open(io.BytesIO(buffer.getvalue()))
    assert key_of(sample_of(object()), "f") is None
    assert key_of(sample_of(animation), "f") is None
    cache = PromptCache(encode, fingerprint="f", max_bytes=10**6)
    for _ in range(2):
        cache(sample_of(animation), 0)
    assert cache.made == 2
