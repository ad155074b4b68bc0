"""Looking at data before a run: check every row, show rendered prompts, convert to parquet with media inside.

Loads the processor and no weights.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mmgrpo.checks.ground_truths import ground_truth_faults
from mmgrpo.config.data import Source, Template
from mmgrpo.config.load import LoadedConfig, Overrides, resolve_config
from mmgrpo.config.schema import Config
from mmgrpo.data.convert import write_parquet
from mmgrpo.data.mixture import AnySamples
from mmgrpo.data.opening import left_out_errors, open_samples, source_notes
from mmgrpo.data.prompt_loader import BuildPrompt
from mmgrpo.data.report import Findings, RowStats, content_of, page, plain_answer, printable_text
from mmgrpo.data.row_errors import with_row
from mmgrpo.data.templates import names_in
from mmgrpo.errors import ConfigError, DataError, DatasetError, MmgrpoError, explain
from mmgrpo.estimate import Estimate, estimate, measure, sizes_of
from mmgrpo.media.adapters import load_adapters
from mmgrpo.media.control_tokens import control_tokens, controls_in
from mmgrpo.media.prompt_builders import PromptBuilders
from mmgrpo.media.serialize import serialize_media
from mmgrpo.observe.progress import Progress
from mmgrpo.policy.model.loading import ModelOutline, available_devices, choose_dtype, load_outline
from mmgrpo.reward.demands import check_rewards
from mmgrpo.types import Decoded, Sample

_AHEAD = 64
_MADE_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What a check of a configuration's data found."""

    findings: dict[str, Findings]
    """By key: ``data.train``, ``data.eval``, ``warm_start.data``."""
    needs: Estimate | None
    """Memory and seconds of a step; None where no prompt could be made."""

    @property
    def refused(self) -> int:
        """Rows that cannot be used, over all sources."""
        return sum(len(found.refused) for found in self.findings.values())

    def text(self) -> str:
        """Write the report for people."""
        pages = [f"{key}: {page(found)}" for key, found in self.findings.items()]
        if self.needs is not None:
            pages.append("\n".join(["one step:", *(f"  {line}" for line in self.needs.lines())]))
        return "\n\n".join(pages)

    def summary(self) -> dict[str, Any]:
        """Give all numbers, for JSON."""
        needs = self.needs
        step = None if needs is None else {"memory_bytes": needs.memory, "seconds": needs.seconds}
        return {"sources": {key: found.summary() for key, found in self.findings.items()}, "step": step}


def check(
    config: str | Path | Config,
    *,
    overrides: Overrides = (),
    rows: int | None = None,
    threads: int | None = None,
    console: Console | None = None,
) -> DataReport:
    """Read every row, decode every medium, make every prompt, and say what was found.

    Args:
        config: A YAML, or a configuration.
        overrides: Laid over it.
        rows: Look at the first so many of each source; default: at all of those that come from files, and at 1,000
            of those made in code, which cannot be damaged.
        threads: Rows looked at side by side; default: one for each CPU.
        console: Where the progress bar goes; default: standard error.

    Returns:
        The report; rows that cannot be used are in it, not raised.

    Raises:
        ConfigError: The configuration, the model that it names, or a reward is wrong, or the rows lack what it needs.
        DatasetError: A source cannot be opened.
    """
    loaded = resolve_config(config, overrides)
    sources = _sources(loaded)
    scored = [rows for key, rows in sources.items() if key != "warm_start.data"]
    with contextlib.suppress(DataError):  # no row of a source can be read: the report lists them all
        check_rewards(loaded.config.rewards, loaded.folder, scored)
    outline = load_outline(loaded.config.model, folder=loaded.folder)
    count = threads or os.cpu_count() or 1
    build_prompt = _prompt_builders(loaded, outline, count)
    findings: dict[str, Findings] = {}
    with Progress(console=console, log_steps=0) as progress:
        for key, samples in sources.items():
            total = min(len(samples), rows or (len(samples) if samples.checkable() else _MADE_ROWS))
            found = findings[key] = Findings(
                name=samples.name,
                forms=samples.forms(),
                limit=loaded.config.data.max_prompt_tokens,
                left_out=left_out_errors(loaded.config.data) if key != "data.eval" else (),
            )
            with progress.phase(f"checking {key}", total, unit="row", every=0) as advance:
                for stats in _looked(samples, total, build_prompt, outline, count):
                    found.add(stats)
                    advance({})
    for key in ("data.train", "data.eval"):
        if key in findings and sources[key].checkable():  # those made in code are right
            _try_ground_truths(loaded, sources[key], findings[key])
    if "data.train" in findings:
        train = findings["data.train"]
        size = loaded.config.train.prompts_per_step
        train.notes += source_notes(sources["data.train"], kinds=outline.family_info.kinds, prompts_per_step=size)
        for key, found in findings.items():
            if key == "data.eval":
                found.compare(train, "data.train")
    return DataReport(findings=findings, needs=_needs(loaded.config, outline, findings))


def _try_ground_truths(loaded: LoadedConfig, samples: AnySamples, found: Findings) -> None:
    """Note the rows whose own ground truth does not earn the most with a reward of the run."""
    readable = [row for row in range(found.rows) if row not in found.refused and row not in found.skipped]
    found.truths = ground_truth_faults(
        loaded.config.rewards, loaded.folder, samples, readable, [*samples.columns, "answer"]
    )
    found.where.update({row: samples.where(row) for row in found.truths})


def _sources(loaded: LoadedConfig) -> dict[str, AnySamples]:
    data, warm = loaded.config.data, loaded.config.warm_start
    named: dict[str, Source | None] = {"data.train": data.train, "data.eval": data.eval}
    if warm is not None:
        named["warm_start.data"] = warm.data
    opened: dict[str, AnySamples] = {}
    for key, source in named.items():
        samples = open_samples(data, source, base=loaded.folder, needed="")
        if samples is not None:
            opened[key] = samples
    if not opened:
        fix = "Name rows under data.train."
        raise ConfigError(explain("There are no rows to look at", where="data.train, data.eval", fix=fix))
    return opened


def _prompt_builders(loaded: LoadedConfig, outline: ModelOutline, threads: int) -> BuildPrompt:
    """Make prompts of any length: what is too long is counted, not raised. A folder of the cache is filled."""
    data = loaded.config.data.model_copy(update={"max_prompt_tokens": None})
    cache = loaded.config.cache.model_copy(update={"media_bytes": 0})  # each medium is looked at once
    config, base = loaded.config.model_copy(update={"data": data, "cache": cache}), loaded.folder
    return PromptBuilders(config, outline.processor, outline.family_info, base=base).pool(threads)


def _looked(
    samples: AnySamples, total: int, build_prompt: BuildPrompt, outline: ModelOutline, threads: int
) -> Iterator[RowStats]:
    """Look at rows side by side, a bounded number of them at a time, in order."""
    controls = control_tokens(outline.processor)

    def look(row: int) -> RowStats:
        """Look at one row; what is wrong with it becomes part of its facts."""
        try:
            sample = samples[row]
            prompt = build_prompt(sample, row)
        except MmgrpoError as error:
            return RowStats(row=row, error=error, where=samples.where(row))
        kinds = [item.kind for item in prompt.media]
        texts = list(_texts(sample))
        contents = tuple(content_of(item.data) for item in prompt.media)
        return RowStats(
            row=row,
            media={kind: kinds.count(kind) for kind in kinds},
            tokens=len(prompt.token_ids),
            media_tokens=outline.family_info.count_all_media_tokens(prompt.token_ids),
            answer=sample.answer,
            where=samples.where(row),
            content=content_of(*texts, *contents),
            media_contents=contents,
            control_tokens=controls_in(sample.messages, controls),
        )

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, total, _AHEAD):
            yield from pool.map(look, range(start, min(start + _AHEAD, total)))


def _texts(sample: Sample) -> Iterator[str]:
    """Give the texts of a conversation."""
    for message in sample.messages:
        content = message["content"]
        yield from [content] if isinstance(content, str) else [block.get("text", "") for block in content]


def _needs(config: Config, outline: ModelOutline, findings: dict[str, Findings]) -> Estimate | None:
    found = findings.get("data.train") or next(iter(findings.values()))
    if not found.tokens:
        return None
    asked, here = config.model.device, available_devices()
    name = next(device for device, there in here.items() if there) if asked == "auto" else asked
    elsewhere = name == "cuda" and not here[name] and config.model.dtype == "auto"  # a GPU to rent has bfloat16
    dtype = torch.bfloat16 if elsewhere else choose_dtype(config.model.dtype, torch.device(name))
    return estimate(
        config,
        sizes_of(outline.model, outline.family, config.model),
        prompt_tokens=sum(found.tokens) / len(found.tokens),
        longest_prompt=max(found.tokens),
        speed=measure(name, dtype),
        bytes_each=dtype.itemsize,
    )


def head(config: str | Path | Config, *, overrides: Overrides = (), count: int = 5) -> list[str]:
    """Show the first prompts as the policy will read them.

    Args:
        config: A YAML, or a configuration.
        overrides: Laid over it.
        count: How many rows.

    Returns:
        One text per row: where it stands, its media with their sizes, token counts, the answer, the rendered prompt.

    Raises:
        MmgrpoError: A row cannot be made into a prompt; the message names it.
    """
    loaded = resolve_config(config, overrides)
    samples = next(iter(_sources(loaded).values()))
    outline = load_outline(loaded.config.model, folder=loaded.folder)
    build_prompt = _prompt_builders(loaded, outline, 1)
    return [_shown(samples, row, build_prompt, outline) for row in range(min(count, len(samples)))]


def _shown(samples: AnySamples, row: int, build_prompt: BuildPrompt, outline: ModelOutline) -> str:
    try:
        prompt = build_prompt(samples[row], row)
    except MmgrpoError as error:
        raise type(error)(with_row(str(error), samples.where(row))) from error
    counts = outline.family_info.count_media_tokens(prompt.token_ids)
    kinds = {medium.kind for medium in prompt.media}
    parts = ", ".join(f"{number:,} for {kind}s" for kind, number in counts.items() if number and kind in kinds)
    lines = [
        f"row {row}  ({samples.where(row)})",
        f"  tokens   {len(prompt.token_ids):,}{f', {parts}' if parts else ''}",
        *(f"  {medium.kind:8} {_size(medium)}" for medium in prompt.media),
        f"  answer   {printable_text(plain_answer(prompt.sample.answer))}",
        *(f"  | {printable_text(line)}" for line in prompt.text.splitlines()),
    ]
    return "\n".join(lines)


def _size(medium: Decoded) -> str:
    data = medium.data
    if medium.kind == "image":
        return f"{data.width} x {data.height} pixels  {printable_text(medium.name)}"
    if medium.kind == "audio":
        return f"{len(data) / (medium.rate or 1):.2f} s at {medium.rate:.0f} Hz  {printable_text(medium.name)}"
    frames, height, width = data.shape[:3]
    rate = f"{medium.rate or 0:.2f} per second"
    return f"{frames} frames of {width} x {height} pixels, {rate}  {printable_text(medium.name)}"


def convert(
    source: str | Path,
    out: str | Path,
    *,
    overrides: Overrides = (),
    form: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write rows of any accepted form into one parquet file, their media inside.

    Args:
        source: A data file, folder or hub id, or a YAML whose ``data.train`` and ``data.columns`` say what to read.
        out: The file to write; ``.parquet``.
        overrides: Laid over the YAML, or over the defaults where ``source`` is no YAML.
        form: Of the rows, where ``source`` is no YAML.
        progress: Told how many rows are written, and of how many.

    Returns:
        Rows written. Words of ``data.template`` are not: they stay in the YAML, unless they are the whole question.
        What a plug-in of ``data.adapters`` reads is written as what it made of it.

    Raises:
        ConfigError: The YAML is wrong, or the name of the file.
        DataError: A row or a medium cannot be read; nothing is written then.
    """
    target = Path(out)
    if target.suffix.lower() != ".parquet":
        raise ConfigError(explain("The file to write must be a parquet file", got=str(out), fix="End it in .parquet."))
    loaded = _to_convert(source, overrides, form)
    data = loaded.config.data
    samples = open_samples(data, data.train or data.eval, base=loaded.folder, needed="data.train")
    if samples is None:
        raise DatasetError(explain("There are no rows to convert", where=str(source)))
    plugins = load_adapters(data.adapters, base=loaded.folder)
    return write_parquet(samples, target, encoded=partial(serialize_media, plugins=plugins), progress=progress)


def _to_convert(source: str | Path, overrides: Overrides, form: str) -> LoadedConfig:
    """Load what says which rows are meant, without the words around them."""
    base: dict[str, Any] = {"model": {"name": "tiny:qwen2_5_vl"}}  # only rows are looked at
    if Path(source).suffix.lower() in (".yaml", ".yml"):
        loaded = resolve_config(source, overrides, base=base)
    else:
        loaded = resolve_config(
            None, overrides, base=base | {"data": {"train": {"path": str(source), "format": form}}}
        )
    user = loaded.config.data.template.user
    whole = "prompt" not in names_in(user, key="data.template.user")
    template = Template(user=user) if whole else Template()
    data = loaded.config.data.model_copy(update={"template": template})
    return replace(loaded, config=loaded.config.model_copy(update={"data": data}))
