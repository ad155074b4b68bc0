"""One picture looks the same however a row names it; what cannot be read is refused by name."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import os
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from mmgrpo.errors import MediaError
from mmgrpo.media.arrays import array_to_image
from mmgrpo.media.image import to_rgb
from mmgrpo.types import Decoded, Media
from tests.decoding import decode, verify


def gradient(width: int = 40, height: int = 20) -> Image.Image:
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, 255 - across], axis=-1).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def read(source: object, name: str = "the picture", **options: object) -> Image.Image:
    made = decode(Media(kind="image", source=source, name=name), **options)
    assert isinstance(made, Decoded)
    return made.data


def same(a: Image.Image, b: Image.Image) -> bool:
    return a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes()


# Every way to name a picture


def test_every_source_gives_the_same_pixels(tmp_path: Path):
    picture, data = gradient(), encoded(gradient())
    path = tmp_path / "ein Bild %20 图.PNG"
    path.write_bytes(data)
    text = base64.b64encode(data).decode()
    sources = [
        path,
        str(path),
        path.as_uri(),
        data,
        bytearray(data),
        {"bytes": data, "path": None},
        {"bytes": None, "path": str(path)},
        {"bytes": data, "path": "not/there.png"},
        "data:image/png;base64," + text,
        text,
        "\n".join(text[i : i + 76] for i in range(0, len(text), 76)),
        base64.urlsafe_b64encode(data).decode().rstrip("="),
        picture,
        Image.open(io.BytesIO(data)),
        np.asarray(picture),
        torch.from_numpy(np.array(picture)).permute(2, 0, 1),
    ]
    for source in sources:
        assert same(read(source), picture), source if isinstance(source, str) else type(source)


def test_the_ending_of_the_name_does_not_matter(tmp_path: Path):
    path = tmp_path / "really_a_png.jpg"
    path.write_bytes(encoded(gradient()))
    assert same(read(path), gradient())


def test_the_picture_given_is_neither_changed_nor_shared():
    picture = gradient()
    before = picture.tobytes()
    made = read(picture)
    made.putpixel((0, 0), (1, 2, 3))
    assert picture.tobytes() == before


def test_no_file_stays_open(tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(gradient()))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = [read(path) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 50


def test_names_are_kept():
    assert decode(Media(kind="image", source=gradient(), name="row 3, column image")).name == "row 3, column image"


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_cameras_orientation_is_applied_once_on_every_path(orientation: int, kind: str, tmp_path: Path):
    upright = Image.new("RGB", (64, 32), "black")
    upright.paste("white", (0, 0, 32, 16))  # the upper left quarter
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # how a camera stores it: the inverse transpose
    stored = upright if orientation == 1 else upright.transpose(Image.Transpose(turns[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(stored, kind, exif=exif, **({"quality": 95} if kind != "PNG" else {}))
    path = tmp_path / "x"
    path.write_bytes(data)
    for source in (path, data, {"bytes": data}, "data:;base64," + base64.b64encode(data).decode(),
                   Image.open(io.BytesIO(data))):  # fmt: skip
        made = read(source)
        assert made.size == (64, 32)
        assert made.getpixel((10, 6))[0] > 230
        assert max(made.getpixel((50, 6))[0], made.getpixel((10, 26))[0], made.getpixel((50, 26))[0]) < 25
        again = read(encoded(made))
        assert same(again, made), "a saved picture must not turn again"


def test_damaged_exif_leaves_the_picture_usable_and_says_so():
    data = encoded(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    with pytest.warns(UserWarning, match=r"EXIF|exif"):
        made = read(data)
    assert made.size == (40, 20)


# Modes


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "YCbCr", "HSV", "CMYK", "RGBA", "RGBa", "LA", "La", "PA"])
def test_every_mode_becomes_rgb(mode: str):
    route = {"RGBa": ["RGBA", "RGBa"], "La": ["LA", "La"], "PA": ["P", "PA"]}.get(mode, [mode])
    source = gradient()
    for step in route:
        source = source.quantize(256) if step == "P" else source.convert(step)
    assert source.mode == mode
    made = to_rgb(source, background=(255, 255, 255), name="x")
    assert made.mode == "RGB"
    truth = gradient() if mode not in ("1", "L", "LA", "La") else gradient().convert("L").convert("RGB")
    if mode != "1":
        assert np.abs(np.asarray(made, int) - np.asarray(truth, int)).mean() < 5


@pytest.mark.parametrize("hidden", [(255, 0, 0), (0, 0, 0)])
def test_transparent_pixels_show_the_background_not_what_is_hidden_under_them(hidden: tuple[int, int, int]):
    clear = Image.new("RGBA", (4, 4), (*hidden, 0))
    half = Image.new("RGBA", (4, 4), (*hidden, 128))
    palette = clear.convert("RGB").quantize(4)
    palette.info["transparency"] = palette.getpixel((0, 0))
    keyed = Image.new("RGB", (4, 4), hidden)
    keyed.info["transparency"] = hidden
    for picture in (clear, palette, keyed, read_back(clear), read_back(palette), clear.convert("LA")):
        assert read(picture).getpixel((1, 1)) == (255, 255, 255)
        assert read(picture, background=(1, 2, 3)).getpixel((1, 1)) == (1, 2, 3)
    expected = tuple(round(h * 128 / 255 + 255 * 127 / 255) for h in hidden)
    assert np.abs(np.subtract(read(half).getpixel((0, 0)), expected)).max() <= 1


def read_back(image: Image.Image) -> bytes:
    return encoded(image)


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_sixteen_bit_grey_is_divided_by_65535_and_never_stretched(dtype: str):
    ramp = np.linspace(0, 65535, 64 * 64).astype(dtype).reshape(64, 64)
    for source in (Image.fromarray(ramp.astype("<u2")), encoded(Image.fromarray(ramp.astype("<u2"))), ramp):
        made = np.asarray(read(source))[..., 0]
        assert np.array_equal(made, np.rint(ramp / 257))
    narrow = np.full((4, 4), 650, np.uint16)
    assert np.asarray(read(narrow)).max() == round(650 / 257)


def test_floats_are_shares_or_bytes_and_anything_else_is_refused():
    assert read(np.full((2, 2), 0.5, np.float32)).getpixel((0, 0)) == (128, 128, 128)
    assert read(np.full((2, 2), 128.0)).getpixel((0, 0)) == (128, 128, 128)
    assert read(Image.fromarray(np.full((2, 2), 0.5, np.float32))).getpixel((0, 0)) == (128, 128, 128)
    for wrong in (np.full((2, 2), 256.0), np.full((2, 2), -0.1), np.full((2, 2), np.nan), np.full((2, 2), np.inf)):
        with pytest.raises(MediaError, match="the picture"):
            read(wrong)


def test_wide_integers_outside_sixteen_bits_are_refused():
    with pytest.raises(MediaError, match="outside their range"):
        read(Image.fromarray(np.full((2, 2), 70_000, np.int32)))
    with pytest.raises(MediaError, match="type without a rule"):
        read(np.zeros((2, 2), np.complex64))


@pytest.mark.parametrize("shape", [(4,), (5, 5, 2), (2, 5, 5), (1, 4, 4, 3), (0, 4), (4, 0, 3)])
def test_arrays_of_other_shapes_are_refused_with_their_shape(shape: tuple[int, ...]):
    with pytest.raises(MediaError) as caught:
        read(np.zeros(shape, np.uint8))
    assert str(list(shape)) in str(caught.value)


def test_channels_may_come_first_or_last():
    first = np.zeros((3, 5, 7), np.uint8)
    first[1] = 9
    assert array_to_image(first, name="x").size == (7, 5)
    assert array_to_image(first, name="x").getpixel((0, 0)) == (0, 9, 0)
    assert array_to_image(np.ones((5, 7, 1), bool), name="x").getpixel((0, 0)) == 255


def test_results_carry_no_metadata():
    data = encoded(gradient().quantize(8), "GIF", comment="secret", transparency=0)
    assert read(data).info == {}


# Animations


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_an_animation_gives_its_first_frame_and_one_warning_with_the_count(kind: str):
    frames = [Image.new("RGB", (8, 8), (i * 60, 0, 255 - i * 60)) for i in range(4)]
    lossless = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **lossless)
    with pytest.warns(UserWarning, match="4 frames") as caught:
        made = read(data, name="clip")
    assert len(caught) == 1
    assert "clip" in str(caught[0].message)
    assert np.abs(np.subtract(made.getpixel((3, 3)), (0, 0, 255))).max() <= 2


# What cannot be read


def test_a_missing_file_is_named_with_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MediaError, match="does not exist") as caught:
        read("img/no.png")
    assert str(tmp_path / "img/no.png") in str(caught.value)
    with pytest.raises(MediaError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_cut_off_files_are_found_by_decoding_and_by_the_check(kind: str):
    noise = Image.fromarray(np.random.RandomState(0).randint(0, 255, (64, 64, 3), np.uint8))
    whole = encoded(noise, kind)
    verify(Media(kind="image", source=whole, name="x"))
    for share in (0.9, 0.5, 0.05):
        cut = whole[: int(len(whole) * share)]
        for check in (decode, verify):
            with pytest.raises(MediaError, match="row 3"):
                check(Media(kind="image", source=cut, name="row 3"))


@pytest.mark.parametrize("junk", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"hello" * 20, b"%!PS-Adobe-3.0 EPSF-3.0"])
def test_what_is_no_picture_is_refused(junk: bytes):
    with pytest.raises(MediaError):
        read(junk)


def test_other_types_are_refused():
    with pytest.raises(MediaError, match="got: int"):
        read(3)
    with pytest.raises(MediaError, match="no media item"):
        read({"url": "x"})
    with pytest.raises(MediaError, match="No adapter reads this smell"):
        decode(Media(kind="smell", source="x.png", name="x"))


@pytest.mark.parametrize("address", ["http://example.com/a.png", "HTTPS://example.com/a.png"])
def test_the_network_is_never_read(address: str):
    with pytest.raises(MediaError, match="network"):
        read(address)


@pytest.mark.parametrize("text", ["data:image/png;base64", "data:image/png;base64,%%%", "data:image/png;base64,AAAA"])
def test_malformed_addresses_are_refused(text: str):
    with pytest.raises(MediaError):
        read(text)


def test_huge_pictures_are_refused_before_they_are_decoded():
    bomb = encoded(Image.new("1", (20_000, 20_000)), optimize=True)
    assert len(bomb) < 200_000
    tracemalloc.start()
    with pytest.raises(MediaError):
        read(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_the_size_limit_can_be_set_and_is_named():
    with pytest.raises(MediaError, match="40 x 20 = 800 pixels"):
        read(gradient(), max_pixels_decoded=799)
    assert read(gradient(), max_pixels_decoded=800).size == (40, 20)


def test_the_check_does_not_look_at_pictures_in_memory():
    verify(Media(kind="image", source=gradient(), name="x"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bytes_raise_only_media_errors(data: st.DataObject):
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"]))
    whole = bytearray(encoded(gradient(16, 8), kind))
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(MediaError):
            assert read(bytes(whole), max_pixels_decoded=1_000_000).mode == "RGB"


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_read():
    assert read(encoded(gradient(), "AVIF", quality=100)).size == (40, 20)


def test_rows_that_share_a_picture_not_yet_read_all_see_it(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    for _ in range(4):
        with Image.open(tmp_path / "a.png") as image, ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: np.asarray(decode(Media(kind="image", source=image)).data), range(8)))
        assert all(np.array_equal(one, noise) for one in found)
