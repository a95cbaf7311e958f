"""Losses by source, sample and position: recorded while a model trains, and read again."""

from penstock.extras.losses.leave_out import LeftOut, leave_out
from penstock.extras.losses.observer import LossBySource
from penstock.extras.losses.table import RunLosses, SampleLoss, SampleLosses, read_losses

__all__ = [
    "LeftOut",
    "LossBySource",
    "RunLosses",
    "SampleLoss",
    "SampleLosses",
    "leave_out",
    "read_losses",
]
