"""Prompts as the data source of slime, or of miles, its fork."""

from penstock.extras.rl.slime import (
    PromptFilter,
    PromptsDataSource,
    SampleMaker,
    drop_filtered,
    log_trained,
    mark_trained,
    prompt_filter,
    settle,
)

__all__ = [
    "PromptFilter",
    "PromptsDataSource",
    "SampleMaker",
    "drop_filtered",
    "log_trained",
    "mark_trained",
    "prompt_filter",
    "settle",
]
