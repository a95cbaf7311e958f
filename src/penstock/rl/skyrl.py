"""Prompts for SkyRL's fully asynchronous trainer."""

from penstock.extras.rl.skyrl import PromptFilter, PromptsFullyAsyncTrainer, PromptsLoader

__all__ = ["PromptFilter", "PromptsFullyAsyncTrainer", "PromptsLoader"]
