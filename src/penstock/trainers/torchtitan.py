"""torchtitan with a Loader: a BaseDataLoader whose state resumes on any number of ranks."""

from penstock.extras.trainers.torchtitan import PenstockDataLoader

__all__ = ["PenstockDataLoader"]
