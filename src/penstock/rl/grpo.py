"""trl's GRPOTrainer with Prompts: a prompt is done when its group was trained, and a checkpoint holds which ones are."""

from penstock.extras.rl.grpo import PromptsGRPOTrainer

__all__ = ["PromptsGRPOTrainer"]
