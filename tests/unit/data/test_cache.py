"""The cache gives what was made, makes it once, and forgets nothing that changes the result."""

from __future__ import annotations

import io
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.media.cache import ContentCache, num_bytes
from mmgrpo.media.cached_processor import content_key
from mmgrpo.types import Decoded, Media


class Plain:
    """Something that may be written only where it is named."""

    def __init__(self) -> None:
        self.number = 4


def medium(source: Any, *, kind: str = "image", **keys: Any) -> Media:
    return Media(kind=kind, source=source, name="a row", **keys)  # type: ignore[arg-type]


VALUES: dict[str, Any] = {
    "tensors": {"pixels": torch.arange(6.0).reshape(2, 3), "grid": torch.tensor([[1, 2, 2]])},
    "array": np.arange(6, dtype=np.uint8).reshape(1, 2, 3),
    "picture": Decoded(kind="image", data=Image.new("RGB", (3, 2), (9, 8, 7)), name="a"),
    "sound": Decoded(kind="audio", data=np.linspace(0, 1, 5, dtype=np.float32), rate=16000.0),
    "clip": Decoded(kind="video", data=np.zeros((2, 4, 6, 3), np.uint8), rate=0.5, times=(0.0, 1.5)),
    "nested": {"rows": [[1, 2], [3]], "pair": (1.5, None), "name": "x", "count": np.float32(2.0)},
}


@pytest.fixture(params=["memory", "folder", "both"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> ContentCache:
    folder = None if request.param == "memory" else tmp_path / "cache"
    return ContentCache(max_bytes=0 if request.param == "folder" else 10**6, folder=folder)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, Decoded):
        return same(one.data, two.data) and (one.kind, one.rate, one.times, one.name) == (
            two.kind, two.rate, two.times, two.name,
        )  # fmt: skip
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, np.ndarray | Image.Image):
        return np.array_equal(np.array(one), np.array(two)) and type(one) is type(two)
    return bool(one == two)


@pytest.mark.parametrize("what", VALUES)
def test_a_value_is_made_once_and_found_as_it_was(what: str, cache: ContentCache):
    first = cache.get("k", lambda: VALUES[what])
    second = cache.get("k", lambda: VALUES[what])
    assert cache.made == 1
    assert same(first, VALUES[what])
    assert same(second, VALUES[what])


def test_the_folder_outlives_the_process_and_a_damaged_file_is_made_anew(tmp_path: Path):
    ContentCache(folder=tmp_path / "c").get("k", lambda: {"x": torch.ones(9)})
    again = ContentCache(folder=tmp_path / "c")
    again.get("k", lambda: {"x": torch.ones(9)})
    assert again.made == 0
    (file,) = (tmp_path / "c").iterdir()
    whole = file.read_bytes()
    flipped = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 9)]
    for content in (b"", whole[:100], *flipped):
        file.write_bytes(content)
        damaged = ContentCache(folder=tmp_path / "c")
        assert damaged.get("k", lambda: {"x": torch.ones(9)})["x"].tolist() == [1] * 9
        assert damaged.made == 1


def test_a_folder_that_cannot_be_written_is_told_once_and_costs_no_value(tmp_path: Path):
    (tmp_path / "file").touch()
    cache = ContentCache(folder=tmp_path / "file" / "inside")
    with pytest.warns(UserWarning, match="media cache cannot be written") as told:
        assert [cache.get(key, lambda: 5) for key in "ab"] == [5, 5]
    assert len(told) == 1


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file grow beyond 100 kB."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_full_leaves_no_part_of_a_file(tmp_path: Path):
    cache = ContentCache(folder=tmp_path / "c")
    with pytest.warns(UserWarning, match="media cache cannot be written"):
        assert cache.get("k", lambda: torch.ones(100_000)).sum() == 100_000
    assert list((tmp_path / "c").iterdir()) == []


def test_files_have_the_rights_that_other_users_of_the_folder_need(tmp_path: Path):
    ContentCache(folder=tmp_path / "c").get("k", lambda: 1)
    plain = tmp_path / "plain"
    plain.touch()
    assert (tmp_path / "c" / "k.pt").stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_a_picture_of_any_mode_is_found_as_it_was_or_is_not_written(mode: str, tmp_path: Path):
    picture = Image.new(mode, (9, 2))
    if mode == "P":
        picture.putpalette(list(range(255, -1, -1)) * 3)
    ContentCache(folder=tmp_path / "c").get("k", lambda: picture)
    again = ContentCache(folder=tmp_path / "c")
    found = again.get("k", lambda: picture)
    assert (found.mode, found.size, found.tobytes()) == (mode, (9, 2), picture.tobytes())
    assert again.made == ("P" in mode), "a palette is not written"


def test_a_type_that_is_not_named_is_kept_in_memory_alone(tmp_path: Path):
    ContentCache(folder=tmp_path / "c").get("k", Plain)
    assert not list(tmp_path.rglob("*.pt"))
    named = ContentCache(folder=tmp_path / "c", plain=(Plain,))
    named.get("k", Plain)
    again = ContentCache(folder=tmp_path / "c", plain=(Plain,))
    assert again.get("k", Plain).number == 4
    assert (named.made, again.made) == (1, 0)
    stranger = ContentCache(folder=tmp_path / "c")
    stranger.get("k", lambda: 1)
    assert stranger.made == 1, "a file with a type that was not named is not read"


def test_what_fails_is_raised_and_tried_again(cache: ContentCache):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get("k", lambda: 1 // 0)
    assert cache.get("k", lambda: 7) == 7


@pytest.mark.parametrize("max_bytes", [1000, 0])
def test_threads_that_ask_for_one_key_at_once_make_it_once(max_bytes: int):
    cache = ContentCache(max_bytes=max_bytes)
    ready = threading.Barrier(4)

    def make() -> int:
        time.sleep(0.05)
        return 5

    def ask() -> None:
        ready.wait()
        found.append(cache.get("k", make))

    found: list[int] = []
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, cache.made) == ([5] * 4, 1)


def test_threads_that_read_one_folder_find_all_that_is_in_it(tmp_path: Path):
    keys = [str(i) for i in range(40)]
    filled = ContentCache(folder=tmp_path / "c", plain=(Plain,))
    for key in keys:
        filled.get(key, lambda: [Plain(), torch.ones(500)])
    cache = ContentCache(folder=tmp_path / "c", plain=(Plain,))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: cache.get(keys[i % 40], Plain), range(240)))
    assert cache.made == 0


def test_each_of_several_threads_gets_its_own_error():
    cache, ready = ContentCache(max_bytes=9), threading.Barrier(3)

    def ask(number: int) -> str:
        def fail() -> None:
            time.sleep(0.02)
            raise ValueError(f"row {number}")

        ready.wait()
        with pytest.raises(ValueError, match="row") as told:
            cache.get("k", fail)
        return str(told.value)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ask, range(3))) == ["row 0", "row 1", "row 2"]


def test_memory_never_holds_more_than_its_limit_and_forgets_the_oldest():
    one = num_bytes(torch.ones(8))
    cache = ContentCache(max_bytes=2 * one)
    for key in "abac":
        cache.get(key, lambda: torch.ones(8))
        assert cache.held_bytes <= 2 * one
    made = cache.made
    cache.get("a", lambda: torch.ones(8))
    assert cache.made == made, "used lately"
    cache.get("b", lambda: torch.ones(8))
    assert cache.made == made + 1, "the oldest went"


def test_a_value_larger_than_the_limit_is_not_held():
    cache = ContentCache(max_bytes=10)
    for _ in range(2):
        cache.get("k", lambda: torch.ones(8))
    assert (cache.made, cache.held_bytes) == (2, 0)


def test_a_file_that_is_replaced_has_another_key(tmp_path: Path):
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8), (9, 0, 0)).save(path)
    before, facts = content_key(medium(path), "f"), path.stat()
    Image.new("RGB", (8, 8), (70, 0, 0)).save(path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert path.stat().st_size == facts.st_size
    assert before != content_key(medium(path), "f")


def test_a_path_written_as_text_counts_as_the_file(tmp_path: Path):
    path = tmp_path / "a.png"
    keys = []
    for size in (8, 9):
        Image.new("RGB", (size, size)).save(path)
        keys += [content_key(medium(str(path)), "f"), content_key(medium({"path": str(path)}), "f")]
    assert len(set(keys)) == 4
    assert None not in keys


def png(image: Image.Image, **keys: Any) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", **keys)
    return Image.open(io.BytesIO(buffer.getvalue()))


def turned(orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return png(Image.new("RGB", (4, 6)), exif=exif)


def palette(alpha: int) -> Image.Image:
    image = Image.new("P", (2, 2))
    image.putpalette([1, 2, 3, alpha] * 256, "RGBA")
    return image


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "pixels": (lambda: Image.new("RGB", (4, 4)), lambda: Image.new("RGB", (4, 4), (1, 0, 0))),
    "shape": (lambda: Image.new("RGB", (2, 8)), lambda: Image.new("RGB", (8, 2))),
    "orientation": (lambda: turned(1), lambda: turned(6)),
    "array": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "bytes": (lambda: b"a", lambda: b"b"),
    "text": (lambda: "data:,a", lambda: "data:,b"),
    "type": (lambda: b"data:,a", lambda: "data:,a"),
    "type of a number": (lambda: [1], lambda: [1.0]),
    "transparency of a palette": (lambda: palette(255), lambda: palette(9)),
    "frames": (lambda: [b"a", b"b"], lambda: [b"b", b"a"]),
    "dictionary": (lambda: {"bytes": b"a"}, lambda: {"bytes": b"b"}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_media_that_differ_have_other_keys_and_equal_ones_the_same(what: str):
    one, two = DIFFERENT[what]
    keys = [content_key(medium(make()), "f") for make in (one, one, two)]
    assert keys[0] == keys[1] != keys[2]
    assert None not in keys


def test_a_name_counts_where_it_is_said_to():
    one, two = (Media(kind="image", source=b"a", name=name) for name in ("a.png", "a.dcm"))
    assert content_key(one, "f", by_name=True) != content_key(two, "f", by_name=True)


def test_rate_and_kind_are_part_of_the_key_and_the_name_is_not():
    base = medium(b"a", kind="audio", rate=8000.0)
    others = [medium(b"a", kind="audio", rate=16000.0), medium(b"a", kind="video", rate=8000.0)]
    assert len({content_key(one, "f") for one in (base, *others)}) == 3
    assert content_key(Media(kind="audio", source=b"a", rate=8000.0, name="another row"), "f") == content_key(
        base, "f"
    )


def test_what_cannot_be_told_has_no_key(tmp_path: Path):
    frames = [Image.new("RGB", (4, 4), (i * 9, 0, 0)) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, format="GIF", save_all=True, append_images=frames[1:])
    animation = Image.open(io.BytesIO(buffer.getvalue()))
    assert content_key(medium(object()), "f") is None
    assert content_key(medium(animation), "f") is None
    assert content_key(medium(tmp_path / "missing.png"), "f") is None
    assert content_key(medium(tmp_path), "f") is None, "what lies in a folder changes without it"
    assert content_key(medium(np.array([[1], None], dtype=object)), "f") is None, "addresses"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "GIF", "WEBP"])
def test_a_picture_that_is_damaged_has_no_key_or_one_of_what_is_left(form: str):
    buffer = io.BytesIO()
    Image.effect_noise((40, 40), 80).convert("RGB").save(buffer, format=form)
    whole = buffer.getvalue()
    for place in range(20, len(whole), max(1, len(whole) // 40)):
        for content in (whole[:place], whole[:place] + bytes(8) + whole[place + 8 :]):
            try:
                image = Image.open(io.BytesIO(content))
            except Exception:  # whatever opening raises is not asked here
                continue
            content_key(medium(image), "f")
