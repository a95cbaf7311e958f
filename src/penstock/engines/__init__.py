"""Run tasks.  An engine of your own has one method, `run`, as `penstock.types.Engine` describes it."""

from penstock.engines.local import LocalEngine, num_cores, open_engine
from penstock.types import Engine, run_task

__all__ = ["Engine", "LocalEngine", "num_cores", "open_engine", "run_task"]
