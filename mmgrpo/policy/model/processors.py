"""The processor: loading it, its chat template, and the YAML's image limits.

Limits are written into the processor once, so that trainer, engine, evaluation and the saved checkpoint all see the
same pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from mmgrpo.config.model import Model
from mmgrpo.config.paths import nearest_path
from mmgrpo.errors import ConfigError, ProcessorError, explain
from mmgrpo.policy.families.spec import FamilySpec
from mmgrpo.policy.model.checkpoint import friendly_errors, require_checkpoint

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


def load_processor(settings: Model) -> Any:
    """Load the processor (or tokenizer) of a hub id or a folder.

    Raises:
        ConfigError: It is not there or cannot be read.
        ProcessorError: It has no chat template and the YAML names none.
    """
    require_checkpoint(settings)
    with friendly_errors(settings):
        processor = transformers.AutoProcessor.from_pretrained(
            settings.name, revision=settings.revision, trust_remote_code=settings.trust_remote_code
        )
    _require_template(processor, settings)
    return processor


def prepare_processor(processor: Any, family: FamilySpec, settings: Model) -> Any:
    """Choose between the base's processor and the one saved with an adapter, and write the YAML's settings into it.

    An adapter's own processor has the limits that it was trained at; ``model.max_pixels`` and its like go before them.

    Args:
        processor: Of the base model.
        family: The base's record.
        settings: The ``model`` section.

    Raises:
        ConfigError: A processor or the Jinja file cannot be read, or the family's processor has no such limits.
    """
    adapter = settings.lora.adapter if settings.lora is not None else None
    if adapter is not None and any((Path(adapter) / name).is_file() for name in _PROCESSOR_FILES):
        with friendly_errors(settings):
            processor = transformers.AutoProcessor.from_pretrained(
                adapter, trust_remote_code=settings.trust_remote_code
            )
    _set_template(processor, settings)
    _limit_pixels(processor, family, settings)
    return processor


def _set_template(processor: Any, settings: Model) -> None:
    """Give the processor the YAML's chat template, if there is one; saving the processor keeps it.

    Raises:
        ConfigError: The Jinja file is not there.
    """
    if settings.chat_template is None:
        return
    path = Path(settings.chat_template)
    if not path.is_file():
        near = nearest_path(path.absolute())
        fix = f"Did you mean {near}?" if near else "Give the path of a Jinja file, from the working folder."
        raise ConfigError(explain("No such chat template", where="model.chat_template", got=str(path), fix=fix))
    processor.chat_template = path.read_text(encoding="utf-8")


def _require_template(processor: Any, settings: Model) -> None:
    tokenizer = getattr(processor, "tokenizer", processor)
    if settings.chat_template or getattr(processor, "chat_template", None) or tokenizer.chat_template:
        return
    raise ProcessorError(
        explain(
            "The checkpoint has no chat template",
            where=f"model.name: {settings.name}",
            fix="Name a Jinja file under model.chat_template.",
        )
    )


def _limit_pixels(processor: Any, family: FamilySpec, settings: Model) -> None:
    """Apply ``model.min_pixels`` and ``model.max_pixels``.

    Raises:
        ConfigError: The family's processor has no such limits.
    """
    if settings.min_pixels is None and settings.max_pixels is None:
        return
    if family.set_pixel_limits is None:
        raise ConfigError(
            explain(
                f"{family.name} has no image limit in pixels",
                where="model.min_pixels" if settings.max_pixels is None else "model.max_pixels",
                fix="Remove the key: the checkpoint's processor sets the size of images.",
            )
        )
    family.set_pixel_limits(processor, settings.min_pixels, settings.max_pixels)
