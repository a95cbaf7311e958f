"""Lightning with a Loader: a data module, whose loader's state is part of Lightning's own checkpoints."""

from penstock.extras.trainers.lightning import LoaderModule, LogsData

__all__ = ["LoaderModule", "LogsData"]
