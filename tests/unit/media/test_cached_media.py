"""With the cache on, every family gets the very prompts that it gets without, and each content is worked on once."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image, ImageDraw

from mmgrpo.config.cache import Cache
from mmgrpo.config.data import Data, MediaAdapter
from mmgrpo.config.model import Model
from mmgrpo.config.schema import Config
from mmgrpo.errors import ConfigError
from mmgrpo.media.adapters import Adapters, load_adapters
from mmgrpo.media.cache import ContentCache
from mmgrpo.media.cached_processor import PARTS, CachedAdapters, ContentIndex, MediaCache
from mmgrpo.media.prompt_builders import PromptBuilders, fingerprint
from mmgrpo.policy.model.loading import ModelOutline, load_outline
from mmgrpo.types import Decoded, Media, Prompt, Sample
from tests.conftest import SMALL

READS = {
    "qwen2_vl": ("image", "video"),
    "qwen2_5_vl": ("image", "video"),
    "qwen3_vl": ("image", "video"),
    "qwen3_vl_moe": ("image", "video"),
    "qwen3_5": ("image", "video"),
    "qwen3_5_moe": ("image", "video"),
    "idefics3": ("image",),
    "smolvlm": ("image",),
    "gemma3": ("image",),
    "glm4v": ("image", "video"),
    "glm46v": ("image", "video"),
    "internvl": ("image", "video"),
    "llava_onevision": ("image", "video"),
    "mistral3": ("image",),
    "lfm2_vl": ("image",),
    "qwen2_audio": ("audio",),
    "qwen2_5_omni": ("image", "audio", "video"),
    "qwen3_omni_moe": ("image", "audio", "video"),
}
ALONE = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen2_5_omni",
    "qwen3_omni_moe",
    "glm4v",
    "glm46v",
    "internvl",
)
KINDS = [(family, kind) for family, kinds in READS.items() for kind in kinds]


def config_of(family: str, **cache: Any) -> Config:
    return Config(model=Model(name=f"tiny:{family}", sizes=SMALL.get(family)), cache=Cache(**cache))


def outline(family: str) -> ModelOutline:
    return load_outline(config_of(family).model)


def picture(shade: int, size: tuple[int, int] = (48, 32)) -> bytes:
    image = Image.new("RGB", size, (shade, 90, 10))
    ImageDraw.Draw(image).ellipse((4, 4, 20, 20), fill=(0, shade, 255 - shade))
    out = io.BytesIO()
    image.save(out, format="PNG")
    return out.getvalue()


def sound(pitch: int) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.sin(np.arange(8000) / 16000 * 6.28 * pitch).astype(np.float32), 16000, format="WAV")
    return out.getvalue()


def source(kind: str, number: int) -> Any:
    if kind == "image":
        return picture(20 * number, (48, 32) if number % 2 else (32, 64))
    if kind == "audio":
        return sound(200 * number)
    return np.stack([np.full((32, 48, 3), 10 * number + i, np.uint8) for i in range(4)])


def sample(kind: str, *numbers: int, text: str = "What?") -> Sample:
    rate = 2.0 if kind == "video" else None
    media = tuple(Media(kind=kind, source=source(kind, n), rate=rate, name=f"{kind} {n}") for n in numbers)  # type: ignore[arg-type]
    content = [*({"type": kind} for _ in numbers), {"type": "text", "text": text}]
    return Sample(id="a", messages=({"role": "user", "content": content},), media=media)


def leaves(media: Any) -> int:
    return sum(map(leaves, media)) if isinstance(media, list | tuple) else 1


class Counted:
    """Counts the media that a part of a processor works on."""

    def __init__(self, part: Any, calls: Counter[str], name: str) -> None:
        self._part, self._calls, self._name = part, calls, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_part":
            raise AttributeError(name)
        return getattr(self._part, name)

    def __deepcopy__(self, memo: Any) -> Counted:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        media = args[0] if args else next(kwargs[name] for name in ("images", "videos", "audio") if name in kwargs)
        self._calls[self._name] += leaves(media)
        return self._part(*args, **kwargs)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    return bool(np.array_equal(one, two))


def assert_equal(one: Prompt, two: Prompt) -> None:
    assert torch.equal(one.token_ids, two.token_ids)
    assert one.model_inputs.keys() == two.model_inputs.keys()
    for name, value in one.model_inputs.items():
        assert same(value, two.model_inputs[name]), name
    for own, other in zip(one.media, two.media, strict=True):
        assert np.array_equal(np.array(own.data), np.array(other.data))
        assert (own.name, own.rate, own.times) == (other.name, other.rate, other.times)


@pytest.mark.parametrize("keep", ["memory", "folder"])
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_prompts_are_the_same_and_each_medium_is_processed_once(family: str, kind: str, keep: str, tmp_path: Path):
    config = config_of(family, **({"media_bytes": 10**8} if keep == "memory" else {"folder": str(tmp_path)}))
    found, calls = outline(family), Counter[str]()
    plain = PromptBuilders(config_of(family), outline(family).processor, found.family_info, base=tmp_path).builder()
    builders = PromptBuilders(config, found.processor, found.family_info, base=tmp_path)
    for name in PARTS:
        part = getattr(found.processor, name, None)
        if part is not None:
            setattr(found.processor, name, Counted(part, calls, name))
    kept = builders.builder()
    asked = [sample(kind, 1), sample(kind, 1, text="And how many?"), sample(kind, 2), sample(kind, 1)]
    for one in asked:
        assert_equal(plain.build_prompt(one), kept.build_prompt(one))
    assert sum(calls.values()) == 2, "two contents, each once"
    pair = sample(kind, 2, 1)
    for _ in range(2):
        assert_equal(plain.build_prompt(pair), kept.build_prompt(pair))
    alone = kind == "image" and family in ALONE  # others get the pictures of a prompt as one nested list
    assert sum(calls.values()) == (2 if alone else 4), "a pair is joined, or is a content of its own"


def test_a_reward_that_draws_on_its_picture_changes_no_later_prompt(tmp_path: Path):
    config, found = config_of("qwen2_5_vl", media_bytes=10**8), outline("qwen2_5_vl")
    kept = PromptBuilders(config, found.processor, found.family_info, base=tmp_path).builder()
    first = kept.build_prompt(sample("image", 1))
    before = first.media[0].data.copy()
    first.media[0].data.paste((0, 0, 0), (0, 0, 48, 32))
    again = kept.build_prompt(sample("image", 1))
    assert again.media[0].data.tobytes() == before.tobytes()
    assert_equal(again, kept.build_prompt(sample("image", 1)))


def test_the_processor_that_is_saved_with_the_policy_stays_its_own(tmp_path: Path):
    config, found = config_of("qwen2_5_vl", media_bytes=10**8), outline("qwen2_5_vl")
    PromptBuilders(config, found.processor, found.family_info, base=tmp_path).builder()
    found.processor.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved").is_dir()


def test_settings_and_an_edited_adapter_are_other_contents(tmp_path: Path):
    found = outline("qwen2_5_vl")
    plugin = tmp_path / "mine.py"
    methods = "def reads(self, m): return False\n    def decode(self, m): 0\n"
    plugin.write_text(f"class Mine:\n    kind = 'image'\n    {methods}")
    plugged = Data(adapters=(MediaAdapter(fn="mine.py:Mine"),))
    configs = [config_of("qwen2_5_vl").model_copy(update={"data": data}) for data in (Data(), plugged)]
    configs.append(configs[0].model_copy(update={"data": Data(background=(0, 0, 0))}))

    def named(config: Config) -> str:
        return fingerprint(config, found.processor, load_adapters(config.data.adapters, base=tmp_path))

    seen = [named(config) for config in configs]
    plugin.write_text(plugin.read_text() + "# other\n")
    seen.append(named(configs[1]))
    found.processor.image_processor.size = {"shortest_edge": 10, "longest_edge": 20000}
    seen.append(named(configs[0]))
    assert len(set(seen)) == 5


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_read(tmp_path: Path):
    (tmp_path / "taken").touch()
    with pytest.raises(ConfigError, match=r"(?s)cache\.folder.*taken"):
        found = outline("qwen2_5_vl")
        PromptBuilders(config_of("qwen2_5_vl", folder="taken"), found.processor, found.family_info, base=tmp_path)


ADAPTER = '''
from PIL import Image
from mmgrpo.types import Decoded

class ByEnding:
    """Reads an ending as a shade."""
    kind = "image"
    def reads(self, media):
        return media.name.endswith((".dark", ".light"))
    def decode(self, media):
        shade = 9 if media.name.endswith(".dark") else 200
        return Decoded(kind="image", data=Image.new("RGB", (48, 32), (shade, 0, 0)), name=media.name)
'''


def test_an_adapter_that_looks_at_the_name_is_asked_for_each_name(tmp_path: Path):
    (tmp_path / "mine.py").write_text(ADAPTER)
    data = Data(adapters=(MediaAdapter(fn="mine.py:ByEnding"),))
    config = config_of("qwen2_5_vl", media_bytes=10**8).model_copy(update={"data": data})
    found = outline("qwen2_5_vl")
    kept = PromptBuilders(config, found.processor, found.family_info, base=tmp_path).builder()
    media = [Media(kind="image", source=b"1", name=name) for name in ("a.dark", "a.light")]
    assert [kept.adapters.decode(one).data.getpixel((0, 0))[0] for one in media] == [9, 200]


class _Tensors(Adapters):
    def decode(self, media: Media) -> Decoded:
        return Decoded(kind="audio", data=[torch.zeros(3)], rate=16000.0)


def test_data_of_an_adapters_own_kind_are_the_callers_own(tmp_path: Path):
    kept = ContentCache(max_bytes=10**6)
    media_cache = MediaCache(get=kept.get, key=lambda media: "k", output=dict)
    adapters = CachedAdapters(_Tensors(()), media_cache, ContentIndex())
    adapters.decode(Media(kind="audio", source=b"1")).data[0].add_(1)
    assert adapters.decode(Media(kind="audio", source=b"1")).data[0].sum() == 0
    assert kept.made == 1
