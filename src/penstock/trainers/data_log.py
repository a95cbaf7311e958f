"""Numbers about the data for a trainer's log."""

from penstock.extras.trainers.data_log import DataLog

__all__ = ["DataLog"]
