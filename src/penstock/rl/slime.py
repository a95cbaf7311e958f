"""Prompts as the data source of slime, or of miles, its fork."""

from penstock.extras.rl.slime import (
    PromptsDataSource,
    RolloutFilter,
    SampleMaker,
    drop_filtered,
    log_trained,
    mark_trained,
    prompt_filter,
    settle,
)

__all__ = [
    "PromptsDataSource",
    "RolloutFilter",
    "SampleMaker",
    "drop_filtered",
    "log_trained",
    "mark_trained",
    "prompt_filter",
    "settle",
]
