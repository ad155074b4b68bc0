"""Samples to prompts: decode the media, render the chat template, let the processor expand the placeholders.

Everything that the processor returns beside the token ids is kept, under its own name and untouched. Prompts are never
cut: what does not fit is refused with its sizes. Imports no transformers: the processor comes loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from mmgrpo.contracts import FamilyInfo
from mmgrpo.errors import ProcessorError, PromptTooLong, explain
from mmgrpo.media.adapters import Adapters, built_in
from mmgrpo.media.control_tokens import control_tokens, controls_in, mark_controls, split_controls
from mmgrpo.media.inputs import processor_inputs, size_of
from mmgrpo.media.sound import with_sound, woven_into
from mmgrpo.media.template import prefill_of, render
from mmgrpo.types import Decoded, Prompt, Sample

_NOUNS = {"image": ("picture", "pictures"), "audio": ("audio", "audio clips"), "video": ("video", "videos")}
_NOT_INPUTS = ("input_ids", "attention_mask")


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
        clip_sound: bool = False,
        end_token_ids: Iterable[int] | None = None,
    ) -> None:
        """Keep what all prompts share.

        Args:
            processor: A loaded transformers processor, or the tokenizer of a text-only family.
            family: What the family reads, and which tokens stand for media.
            chat_template_kwargs: Handed to the chat template.
            max_prompt_tokens: Longer prompts are refused, in tokens with placeholders expanded; None: no limit.
            adapters: Who reads the media; default: the built-in readers at the processor's own rates and sizes.
            clip_sound: Give the sound of each clip too, for families that read audio: woven into it where the family
                and the processor can, else after it.
            end_token_ids: Tokens that end an answer; default: the tokenizer's end and padding tokens.
        """
        self._processor, self._family = processor, family
        self._tokenizer = getattr(processor, "tokenizer", processor)
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._limit = max_prompt_tokens
        self.adapters = adapters or Adapters(built_in(processor=processor))
        self._clip_sound = clip_sound
        self._controls = control_tokens(processor)
        own = (self._tokenizer.eos_token_id, self._tokenizer.pad_token_id)
        self._ends = frozenset(i for i in (own if end_token_ids is None else end_token_ids) if i is not None)

    def build_prompt(self, sample: Sample, draw_index: int = 0) -> Prompt:
        """Decode the media, each once, render the chat template and tokenise.

        Args:
            sample: The row.
            draw_index: How many prompts the run had drawn before this one.

        Returns:
            The prompt, with the very media objects that the processor saw. Under ``clip_sound`` its sample holds
            the sounds too, so that media and placeholders match.

        Raises:
            MediaError: A medium cannot be read.
            PromptTooLong: It has more tokens than ``max_prompt_tokens``.
            ProcessorError: No template, or placeholders that do not match the media.
        """
        if self._clip_sound:
            weaves = self._family.audio_in_video and hasattr(self._processor, "load_audio_from_video")
            sample = with_sound(sample, woven=weaves)  # processors of older transformers cannot be asked to weave
        self._check_kinds(sample)
        media = tuple(self.adapters.decode(medium) for medium in sample.media)
        text = render(self._processor, sample.messages, self._template_kwargs, sample_id=sample.id)
        slots = woven_into(sample)
        self._check_placeholders(text, sample, hidden=sum(slot is not None for slot in slots))
        output = self._process(text, media, sample.id, slots)
        controls = controls_in(sample.messages, self._controls) if sample.controls_as_text else ()
        if controls:
            messages, where = mark_controls(sample.messages, controls), f"sample {sample.id}"
            marked = render(self._processor, messages, self._template_kwargs, sample_id=sample.id)
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

    def decode(self, token_ids: Tensor | Sequence[int]) -> str:
        """Turn completion ids into text without the tokens that end a turn.

        Args:
            token_ids: One completion.

        Returns:
            The text, without special tokens.
        """
        ids = [int(i) for i in token_ids]
        while ids and ids[-1] in self._ends:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _check_kinds(self, sample: Sample) -> None:
        for medium in sample.media:
            if medium.kind not in self._family.kinds:
                raise ProcessorError(
                    explain(
                        f"{self._family.name} does not read {_NOUNS[medium.kind][1]}",
                        where=f"sample {sample.id}, {medium.name}",
                        expected=", ".join(sorted(self._family.kinds)) or "text alone",
                        fix=f"Choose another model, or leave {_NOUNS[medium.kind][1]} out of the rows.",
                    )
                )

    def _check_placeholders(self, text: str, sample: Sample, *, hidden: int) -> None:
        """Refuse text of the row that the processor would take for a placeholder."""
        for kind in _NOUNS:
            token = getattr(self._processor, f"{kind}_token", None)
            expected = sum(medium.kind == kind for medium in sample.media) - (hidden if kind == "audio" else 0)
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
                        else "Use a chat template that writes a placeholder for every medium.",
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
            sizes = ", ".join(map(size_of, media)) or "no media"
            raise ProcessorError(
                explain(
                    "The processor refuses the prompt",
                    where=f"sample {sample_id}",
                    got=f"{type(error).__name__}: {error} ({sizes})",
                )
            ) from error

    def _check_tokens(self, token_ids: Tensor, sample: Sample) -> None:
        counts = self._family.count_media_tokens(token_ids)
        for kind in dict.fromkeys(medium.kind for medium in sample.media):
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
        found = [key for kind, key in keys.items() if any(medium.kind == kind for medium in sample.media)]
        return " or ".join(found) or "the length of the text"

    def _shares(self, counts: Mapping[str, int], sample: Sample) -> str:
        parts = []
        for kind, (one, many) in _NOUNS.items():
            media = sum(medium.kind == kind for medium in sample.media)
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
