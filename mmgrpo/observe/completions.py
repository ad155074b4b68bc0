"""A sample of completions, written for people: what was asked, what was answered, and what each reward said.

One file per logged step, so that a step that is computed again after a resume replaces its own file. Whatever the
model wrote, the file is valid UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mmgrpo.observe.atomic import cannot_write, write_atomic
from mmgrpo.observe.text import encodable

if TYPE_CHECKING:
    from mmgrpo.types import Completion, Decoded, Prompt, ScoredGroup

Format = Literal["jsonl", "parquet"]


class CompletionsWriter:
    """Writes ``step_000005.jsonl`` (or ``.parquet``) files, and pictures that have no file of their own."""

    def __init__(self, folder: str | Path, *, format: Format = "jsonl", limit: int = 8) -> None:
        """Prepare; the folder is made when the first file is written.

        Args:
            folder: Where to.
            format: "jsonl", or "parquet" (a column per reward).
            limit: Completions per file, taken from few groups, so that a group can be compared. 0: write nothing.
        """
        self.folder = Path(folder)
        self._format = format
        self._limit = limit

    def write(
        self,
        step: int,
        scored: Sequence[ScoredGroup],
        advantages: Sequence[Sequence[float]],
    ) -> Path | None:
        """Write the sample of one step.

        Args:
            step: The step, which names the file.
            scored: The groups of the step; what rewards logged of them is written as text.
            advantages: Per group, one number per completion.

        Returns:
            The file; None where there is nothing to write.

        Raises:
            CheckpointError: The disk is full.
        """
        if not self._limit or not scored:
            return None
        path = self.folder / f"step_{step:06d}.{self._format}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            rows = list(self._rows(step, scored, advantages))
            write_atomic(path, _jsonl(rows) if self._format == "jsonl" else _parquet(rows))
        except OSError as error:
            raise cannot_write(path, error) from error
        return path

    def _rows(
        self,
        step: int,
        scored: Sequence[ScoredGroup],
        advantages: Sequence[Sequence[float]],
    ) -> Iterator[dict[str, Any]]:
        lengths = [len(group.group.completions) for group in scored]
        logged = dict.fromkeys(name for group in scored for name in group.extra)
        for group, index in _chosen(lengths, self._limit):
            found, completion = scored[group], scored[group].group.completions[index]
            prompt = found.group.prompt
            yield {
                "step": step,
                "sample": encodable(prompt.sample.id),
                "media": list(self._media(prompt, f"step_{step:06d}_{group}")),
                "prompt": encodable(prompt.text),
                "answer": encodable(str(prompt.sample.answer)),
                **_completion(completion),
                "rewards": {name: _number(values[index]) for name, values in found.rewards.items()},
                "total": _number(found.totals[index]),
                "advantage": _number(advantages[group][index]),
                **{f"extra/{name}": _logged(found, name, index) for name in logged},
            }

    def _media(self, prompt: Prompt, stem: str) -> Iterator[str]:
        """Name each medium: the row's own file, a copy of a picture that was made in memory, or its name."""
        for i, medium in enumerate(prompt.sample.media):
            decoded = prompt.media[i] if i < len(prompt.media) else None
            path = _file(medium.source)
            if not path and decoded is not None and decoded.kind == "image" and hasattr(decoded.data, "save"):
                path = self._save(decoded, f"{stem}_{i}.png")
            yield encodable(path or medium.name)

    def _save(self, picture: Decoded, name: str) -> str:
        path = self.folder / "media" / name
        path.parent.mkdir(exist_ok=True)
        picture.data.save(path)
        return str(path)


def _chosen(lengths: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Choose about four completions of each of the first groups."""
    groups = range(min(len(lengths), max(1, limit // 4)))
    each = math.ceil(limit / len(groups))
    pairs = [(group, index) for group in groups for index in range(min(each, lengths[group]))]
    yield from pairs[:limit]


def _file(source: Any) -> str:
    """Give a path or address as text; nothing for content (bytes, arrays, data addresses)."""
    return str(source) if isinstance(source, str | Path) and not str(source).startswith("data:") else ""


def _logged(found: ScoredGroup, name: str, index: int) -> str | None:
    return encodable(str(found.extra[name][index])) if name in found.extra else None


def _completion(completion: Completion) -> dict[str, Any]:
    return {
        "completion": encodable(completion.text),
        "tokens": len(completion.token_ids),
        "finish_reason": completion.status,
    }


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = [
        {key: value for key, value in row.items() if key != "rewards"}
        | {f"rewards/{name}": value for name, value in row["rewards"].items()}
        for row in rows
    ]
    numbers = {key for key in flat[0] if key.startswith("rewards/") or key in ("total", "advantage")}
    columns = {key: [row[key] for row in flat] for key in flat[0]}
    arrays = {key: pa.array(values, pa.float64() if key in numbers else None) for key, values in columns.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()
