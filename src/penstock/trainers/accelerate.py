"""Accelerate with a Loader: move batches to the accelerator's device, and save the Loader's state in save_state and load_state."""

from penstock.extras.trainers.accelerate import Batches, attach

__all__ = ["Batches", "attach"]
