"""Megatron-LM and Megatron-Bridge with a Loader: `--dataloader-type external --dataloader-save DIR`."""

from penstock.extras.trainers.megatron import MegatronBatches

__all__ = ["MegatronBatches"]
