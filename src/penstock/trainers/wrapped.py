"""Find the model inside of what wraps it: DDP, FSDP, torch.compile, DeepSpeed, Fabric, PEFT."""

from penstock.extras.trainers.wrapped import bare_model, runnable_model

__all__ = ["bare_model", "runnable_model"]
