"""Samples to prompts: decode the media, render the chat template, let the processor expand the placeholders.

Everything that the processor returns beside the token ids is kept, under its own name and untouched. Prompts are never
cut: what does not fit is refused with its sizes. Imports no transformers: the processor comes loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from jinja2 import TemplateError
from torch import Tensor

from mmgrpo.contracts import FamilyInfo
from mmgrpo.errors import ProcessorError, PromptTooLong, explain
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.control_tokens import control_tokens, controls_in, mark_controls, split_controls
from mmgrpo.media.frames import video_inputs
from mmgrpo.media.video_files import audio_in_video_slots, with_audio_tracks
from mmgrpo.types import Decoded, Message, Prompt, Sample

_NOUNS = {"image": ("image", "images"), "audio": ("audio", "audio clips"), "video": ("video", "videos")}
_NOT_INPUTS = ("input_ids", "attention_mask")


_ROLES = "assistant|model|bot|gpt|ai|system|user|s|bos"
_PREFILL = re.compile(rf"(?:<(?!(?:{_ROLES})>)([A-Za-z][\w-]*)>\s*(?:</\1>\s*)?)+\Z")


class PromptBuilder:
    """Turns samples into prompts with one processor."""

    def __init__(
        self,
        processor: Any,
        *,
        family: FamilyInfo,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        max_prompt_tokens: int | None = None,
        adapters: Adapters | None = None,
        audio_tracks: bool = False,
    ) -> None:
        """Keep what all prompts share.

        Args:
            processor: A loaded transformers processor, or the tokenizer of a text-only family.
            family: What the family reads, and which tokens stand for media.
            chat_template_kwargs: Handed to the chat template.
            max_prompt_tokens: Longer prompts are refused, in tokens with placeholders expanded; None: no limit.
            adapters: Who reads the media; default: the built-in readers at the processor's own rates and sizes.
            audio_tracks: Give the audio of each video too, for families that read it: interleaved where the family
                and the processor can, else after it.
        """
        self._processor, self._family = processor, family
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._limit = max_prompt_tokens
        self.adapters = adapters or Adapters(built_in(processor=processor))
        self._audio_tracks = audio_tracks
        self._controls = control_tokens(processor)

    def build_prompt(self, sample: Sample, draw_index: int = 0) -> Prompt:
        """Decode the media, each once, render the chat template and tokenise.

        Args:
            sample: The row.
            draw_index: How many prompts the run had drawn before this one.

        Returns:
            The prompt, with the very media objects that the processor saw. Under ``audio_tracks`` its sample holds
            the audio too, so that media and placeholders match.

        Raises:
            MediaError: A media item cannot be read.
            PromptTooLong: It has more tokens than ``max_prompt_tokens``.
            ProcessorError: No template, or placeholders that do not match the media.
        """
        if self._audio_tracks:
            interleaves = self._family.audio_in_video and hasattr(self._processor, "load_audio_from_video")
            sample = with_audio_tracks(
                sample, interleaved=interleaves
            )  # processors of older transformers cannot be asked to weave
        self._check_kinds(sample)
        media = tuple(self.adapters.decode(item) for item in sample.media)
        text = render_template(self._processor, sample.messages, self._template_kwargs, sample_id=sample.id)
        slots = audio_in_video_slots(sample)
        self._check_placeholders(text, sample, hidden=sum(slot is not None for slot in slots))
        output = self._process(text, media, sample.id, slots)
        controls = controls_in(sample.messages, self._controls) if sample.controls_as_text else ()
        if controls:
            messages, where = mark_controls(sample.messages, controls), f"sample {sample.id}"
            marked = render_template(self._processor, messages, self._template_kwargs, sample_id=sample.id)
            output = split_controls(output, marked, controls, self._tokenizer, where=where)
        token_ids: Tensor = output["input_ids"][0]
        self._check_tokens(token_ids, sample)
        return Prompt(
            sample=sample,
            text=text,
            token_ids=token_ids,
            model_inputs={key: value for key, value in output.items() if key not in _NOT_INPUTS},
            media=media,
            draw_index=draw_index,
            prefill=prefill_of(text),
        )

    def _check_kinds(self, sample: Sample) -> None:
        for item in sample.media:
            if item.kind not in self._family.kinds:
                raise ProcessorError(
                    explain(
                        f"{self._family.name} does not read {_NOUNS[item.kind][1]}",
                        where=f"sample {sample.id}, {item.name}",
                        expected=", ".join(sorted(self._family.kinds)) or "text alone",
                        fix=f"Choose another model, or leave {_NOUNS[item.kind][1]} out of the rows.",
                    )
                )

    def _check_placeholders(self, text: str, sample: Sample, *, hidden: int) -> None:
        """Refuse text of the row that the processor would take for a placeholder."""
        for kind in _NOUNS:
            token = getattr(self._processor, f"{kind}_token", None)
            expected = sum(item.kind == kind for item in sample.media) - (hidden if kind == "audio" else 0)
            got = text.count(token) if isinstance(token, str) and token else 0
            if got and got != expected:  # none at all: the template writes another token, and the ids are checked
                fault = f"more {kind} placeholders than" if got > expected else f"fewer {kind} placeholders than"
                raise ProcessorError(
                    explain(
                        f"The prompt has {fault} {_NOUNS[kind][1]}",
                        where=f"sample {sample.id}",
                        expected=f"{expected} times {token}",
                        got=f"{got} times",
                        fix=f"Remove {token} from the row's text."
                        if got > expected
                        else "Use a chat template that writes a placeholder for every media item.",
                    )
                )

    def _process(
        self, text: str, media: tuple[Decoded, ...], sample_id: str, slots: list[int | None]
    ) -> Mapping[str, Any]:
        kwargs: dict[str, Any] = {"return_tensors": "pt"}
        bos = self._tokenizer.bos_token
        if self._tokenizer is self._processor or (bos and text.startswith(bos)):
            kwargs["add_special_tokens"] = False  # the template wrote them
        kwargs |= processor_inputs(media, self._processor, counts_images=self._family.counts_images)
        if slots:
            kwargs |= {"load_audio_from_video": True, "audio_from_video_indices": slots}
        try:
            return self._processor(text=[text], **kwargs)
        except (ValueError, IndexError, KeyError, TypeError, RuntimeError, StopIteration) as error:
            sizes = ", ".join(map(describe_size, media)) or "no media"
            raise ProcessorError(
                explain(
                    "The processor refuses the prompt",
                    where=f"sample {sample_id}",
                    got=f"{type(error).__name__}: {error} ({sizes})",
                )
            ) from error

    def _check_tokens(self, token_ids: Tensor, sample: Sample) -> None:
        counts = self._family.count_media_tokens(token_ids)
        for kind in dict.fromkeys(item.kind for item in sample.media):
            if not counts.get(kind):
                raise ProcessorError(
                    explain(
                        f"The prompt holds no token for its {_NOUNS[kind][0]}",
                        where=f"sample {sample.id}",
                        expected=f"a chat template that writes a placeholder for {{'type': '{kind}'}}",
                        fix="Name a template for this family under model.chat_template.",
                    )
                )
        if self._limit is not None and len(token_ids) > self._limit:
            raise PromptTooLong(
                explain(
                    f"A prompt is too long: prompt needs {len(token_ids)} tokens, limit is {self._limit}"
                    + self._shares(counts, sample),
                    where=f"sample {sample.id}",
                    fix=f"Raise data.max_prompt_tokens, lower {self._knobs(sample)}, or leave such training "
                    "rows out: data.on_long_prompt: skip. Prompts are never cut.",
                )
            )

    def _knobs(self, sample: Sample) -> str:
        """Name the keys that make a prompt of these media shorter."""
        keys = {"image": "model.max_pixels", "video": "data.video", "audio": "data.audio.max_seconds"}
        found = [key for kind, key in keys.items() if any(item.kind == kind for item in sample.media)]
        return " or ".join(found) or "the length of the text"

    def _shares(self, counts: Mapping[str, int], sample: Sample) -> str:
        parts = []
        for kind, (one, many) in _NOUNS.items():
            media = sum(item.kind == kind for item in sample.media)
            if media:
                parts.append(f"{counts.get(kind, 0)} are for the {one if media == 1 else f'{media} {many}'}")
        return f", of which {' and '.join(parts)}" if parts else ""


class PromptBuilderPool:
    """Equal builders of prompts, each used by one thread at a time; a caller waits where none is free.

    A tokenizer must not work for two threads at once, so every thread that builds prompts ahead gets a processor of
    its own, and none is shared with whoever decodes answers meanwhile.
    """

    def __init__(self, builders: Sequence[Callable[[Sample, int], Prompt]]) -> None:
        """Take as many builders as there are threads."""
        self._free: SimpleQueue[Callable[[Sample, int], Prompt]] = SimpleQueue()
        for builder in builders:
            self._free.put(builder)

    def __call__(self, sample: Sample, draw_index: int) -> Prompt:
        """Build a prompt with whichever builder is free.

        Args:
            sample: The row.
            draw_index: How many prompts the run had drawn before this one.
        """
        build = self._free.get()
        try:
            return build(sample, draw_index)
        finally:
            self._free.put(build)


def render_template(processor: Any, messages: Sequence[Message], kwargs: Mapping[str, Any], *, sample_id: str) -> str:
    """Render a conversation up to where the policy answers.

    Args:
        processor: A processor, or a tokenizer where the family reads text alone.
        messages: The conversation.
        kwargs: What the template takes beside, for example ``enable_thinking``.
        sample_id: For messages.

    Returns:
        The text, with one placeholder per media item.

    Raises:
        ProcessorError: There is no template, or it refuses these messages.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    template = getattr(processor, "chat_template", None) or getattr(tokenizer, "chat_template", None)
    if template is None:
        folder = getattr(tokenizer, "name_or_path", "") or "the processor"
        raise ProcessorError(
            explain(
                "There is no chat template",
                where=folder,
                fix="Name a Jinja file under model.chat_template, or use a checkpoint that was trained to chat.",
            )
        )
    shaped = [_shaped(message, as_blocks=tokenizer is not processor) for message in messages]
    options = {**kwargs} if getattr(processor, "chat_template", None) else {"chat_template": template, **kwargs}
    try:
        return processor.apply_chat_template(shaped, tokenize=False, add_generation_prompt=True, **options)
    except (TemplateError, TypeError, KeyError, IndexError, ValueError) as error:
        raise ProcessorError(
            explain(
                "The chat template refuses the conversation",
                where=f"sample {sample_id}",
                expected="roles, turns and content as the checkpoint was trained with",
                got=f"{' -> '.join(str(m['role']) for m in messages)}: {type(error).__name__}: {error}",
                fix="Change data.template, rollout.chat_template_kwargs or model.chat_template.",
            )
        ) from error


def prefill_of(text: str) -> str:
    r"""Find what a template wrote of the answer: tags at the end of the prompt that it opened, or left empty.

    Args:
        text: A rendered conversation.

    Returns:
        The tail that belongs to the answer; rewards read it before the completion.

    Example:
        >>> prefill_of("<|im_start|>assistant\n<think>\n")
        '<think>\n'
        >>> prefill_of("<|im_start|>assistant\n")
        ''
    """
    found = _PREFILL.search(text)
    return found.group() if found else ""


def _shaped(message: Message, *, as_blocks: bool) -> dict[str, Any]:
    """Give content the shape that templates of the kind expect: blocks for processors, text for tokenizers."""
    content = message["content"]
    if as_blocks and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif not as_blocks and not isinstance(content, str):
        content = "".join(block["text"] for block in content if block["type"] == "text")
    return {**message, "content": content}


def processor_inputs(media: Sequence[Decoded], processor: Any, *, counts_images: bool = False) -> dict[str, Any]:
    """Make the processor's media arguments.

    Args:
        media: All media of a prompt, in order.
        processor: The loaded processor.
        counts_images: Whether it treats images by how many a prompt has, and must be told which are one prompt's.

    Returns:
        ``images``, ``audio`` and ``videos`` with what goes with them; empty for a prompt without media.

    Raises:
        ProcessorError: Videos of different rates, for a processor that takes one rate.

    Example:
        >>> processor_inputs([], None)
        {}
    """
    inputs: dict[str, Any] = {}
    images = [item.data for item in media if item.kind == "image"]
    audios = [item for item in media if item.kind == "audio"]
    videos = [item for item in media if item.kind == "video"]
    if images:
        inputs["images"] = [images] if counts_images else images
    if audios:
        inputs["audio"] = [audio.data for audio in audios]
        inputs["sampling_rate"] = int(audios[0].rate or 0)
    if videos:
        inputs |= video_inputs(videos, processor)
    return inputs


def describe_size(item: Decoded) -> str:
    """Say how large a media item is, for messages.

    Args:
        item: A decoded media item.

    Example:
        >>> import numpy as np
        >>> describe_size(Decoded(kind="audio", data=np.zeros(8000, np.float32), rate=16000.0))
        'audio of 0.50 s'
    """
    if item.kind == "image":
        return f"{item.data.width} x {item.data.height}"
    if item.kind == "audio":
        return f"audio of {len(item.data) / (item.rate or 1):.2f} s"
    count, height, width = item.data.shape[:3]
    return f"{count} frames of {width} x {height}"
