"""What all tiny models share: a byte-level BPE tokenizer built in code, a chat template, seeded weights.

No network and no files. The tokenizer splits text by the same rule as Qwen's, so that ``<answer>3</answer>`` costs
about as many tokens as with the real one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from mmgrpo.errors import ConfigError, explain

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIVIDES = (
    ("hidden_size", "num_attention_heads"),
    ("num_attention_heads", "num_key_value_heads"),
    ("vision_hidden_size", "vision_num_heads"),
    ("audio_hidden_size", "audio_num_heads"),
)
_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
)
_TEXT = (
    "You are a helpful assistant. How many objects are there in the image? How many items are there? "
    "What number of large red metal spheres, small blue rubber cubes and green cylinders are there? "
    "Output the thinking process in <think> </think> and the final answer in <answer> </answer> tags. "
    "<think> First I count the objects: one, two, three, four, five, six, seven, eight, nine, ten. </think> "
    "<answer> 3 </answer> <answer>3</answer> Is there a circle, a rectangle, a triangle? "
    "What color is the shape? What shape is shown? "
    "yes no red green blue black gray teal brown yellow purple cyan. Answer with a single number. "
    "Only the number. The picture, the sound, the video. What does the speaker say? How many times does it beep? "
)
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vision_hidden_size": 96,
    "vision_intermediate_size": 192,
    "vision_depth": 2,
    "vision_num_heads": 4,
}
"""Sizes that most tiny models share; each family adds its own."""
_TEMPLATE = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' %}IMAGE
{%- elif part.type == 'video' %}VIDEO
{%- elif part.type == 'audio' %}AUDIO
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chat_template(
    *,
    image: str = "<|vision_start|><|image_pad|><|vision_end|>",
    video: str = "<|vision_start|><|video_pad|><|vision_end|>",
    audio: str = "<|audio_start|><|audio_pad|><|audio_end|>",
) -> str:
    """A ChatML template with one placeholder per media item, as the family's processor wants them."""
    return _TEMPLATE.replace("IMAGE", image).replace("VIDEO", video).replace("AUDIO", audio)


QWEN_TEMPLATE = chat_template()
"""The template of Qwen's families."""


@lru_cache(maxsize=1)
def _trained() -> str:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        min_frequency=1,
        show_progress=False,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return tokenizer.to_str()


def build_tokenizer(*special: str, named: Mapping[str, str] | None = None) -> Any:
    """Train the tokenizer on a few sentences: 256 bytes, ten special tokens, and merges; the same one every time.

    Args:
        *special: More special tokens of a family, after the 512 that all share.
        named: Of all special tokens, those that processors ask for by a name, for example ``image_token``.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    unnamed = [t for t in _SPECIAL if t not in ("<|im_end|>", "<|endoftext|>")]
    # names take the place of the list; tokens that are special in the vocabulary stay so without either
    extra: dict[str, Any] = {"extra_special_tokens": dict(named)} if named else {"additional_special_tokens": unnamed}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=32768,
        **extra,
    )
    tokenizer.add_tokens([t for t in special if t not in tokenizer.get_vocab()], special_tokens=True)
    return tokenizer


def merge_sizes(defaults: Mapping[str, int], overrides: Mapping[str, int]) -> dict[str, int]:
    """Lay the sizes of ``model.sizes`` over a tiny model's own.

    Raises:
        ConfigError: A size that the model does not have, one below 1, or sizes that do not divide.
    """
    for name, size in overrides.items():
        if name not in defaults:
            raise ConfigError(
                explain("Unknown size of a tiny model", where=f"model.sizes.{name}", expected=", ".join(defaults))
            )
        if size < 1:
            told = explain("A size is too small", where=f"model.sizes.{name}", expected="1 or more", got=str(size))
            raise ConfigError(told)
    sizes = {**defaults, **overrides}
    for whole, part in _DIVIDES:
        if whole in sizes and part in sizes and sizes[whole] % sizes[part]:
            raise ConfigError(
                explain(
                    "These sizes of a tiny model do not go together",
                    where="model.sizes",
                    expected=f"{whole} a multiple of {part}",
                    got=f"{sizes[whole]} and {sizes[part]}",
                )
            )
    return sizes


def decoder_sizes(sizes: Mapping[str, int], tokenizer: Any) -> dict[str, Any]:
    """Settings of a tiny text stack that Llama, Qwen and their kin share.

    Args:
        sizes: Of the tiny model.
        tokenizer: Its vocabulary and its end and padding tokens are the stack's.
    """
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {
        "vocab_size": len(tokenizer),
        **{name: sizes[name] for name in names},
        "max_position_embeddings": 32768,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def encoder_sizes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Settings of a tiny vision transformer as SigLIP calls them; patch and image where the model has them."""
    return {
        "hidden_size": sizes["vision_hidden_size"],
        "intermediate_size": sizes["vision_intermediate_size"],
        "num_hidden_layers": sizes["vision_depth"],
        "num_attention_heads": sizes["vision_num_heads"],
        **{name: sizes[name] for name in ("image_size", "patch_size") if name in sizes},
    }


@torch.no_grad()
def _strengthen(model: torch.nn.Module) -> None:
    """Make the matrices of a small model three times as large.

    transformers draws them with a standard deviation of 0.02, which suits a width of thousands. At a width of about a
    hundred a layer would hardly pass anything on: measured on the counting scenes, 120 supervised steps reach an
    accuracy of 0.41 with this and 0.12 without.
    """
    tied = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for parameter in model.parameters():
        if parameter.ndim >= 2 and id(parameter) not in tied:
            parameter.mul_(3.0)


def initialise(model_class: Any, config: Any, processor: Any, seed: int) -> Any:
    """Build a model with weights that depend on the seed alone, and leave torch's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    _strengthen(model)
    tokenizer = getattr(processor, "tokenizer", processor)
    generation = model.generation_config
    generation.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    generation.pad_token_id = tokenizer.pad_token_id
    return model.eval()
