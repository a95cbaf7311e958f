"""Run these tasks."""

from penstock.engines.cores import num_cores
from penstock.engines.local import LocalEngine

__all__ = ["LocalEngine", "num_cores"]
