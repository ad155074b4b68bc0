"""``observe:`` what a run shows and writes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mmgrpo.config.base import Int, OnlyWith, Section


class Observe(Section):
    """What a run shows and writes."""

    log_steps: Int = Field(default=5, ge=1)
    """Print a line and write completions every so many steps; metrics are written at every step."""
    log_completions: Int = Field(default=8, ge=0)
    """Completions written at each logged step."""
    completions_format: Annotated[
        Literal["jsonl", "parquet"], OnlyWith("log_completions above 0", lambda observe: observe.log_completions > 0)
    ] = "jsonl"
    """Format of the completions files."""
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Trackers beside the metrics.jsonl that is always written."""
    progress: bool = True
    """Show a progress bar with the time left."""
