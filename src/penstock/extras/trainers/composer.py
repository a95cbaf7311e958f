"""Composer with a Loader: a DataLoader whose dataset Composer saves and loads with its checkpoints.

    trainer = Trainer(model, train_dataloader=DataSpec(composer_dataloader(loader), split_batch=…), …)

Composer counts samples itself and may split a batch into micro-batches.  It cannot split a packed batch: give the loader the batch size
of a micro-batch and pass `device_train_microbatch_size` equal to it, or a `split_batch` of your own.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from penstock.loader import Loader
from penstock.loader.stream import Stream
from penstock.loader.world import check_rank


class _Batches(IterableDataset):  # type: ignore[misc]
    """Batches with the methods that Composer calls on a dataset."""

    def __init__(self, loader: Loader) -> None:
        self.stream = Stream(loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)

    def __len__(self) -> int:
        return len(self.stream)

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = True
    ) -> dict[str, Any]:
        """Return the loader's state.  It counts rows itself: Composer's count of samples is not needed."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


def composer_dataloader(loader: Loader) -> Any:
    """Return a DataLoader of the loader's batches.  It runs in this process; the loader itself reads ahead."""
    check_rank(loader.rank_info)
    return DataLoader(_Batches(loader), batch_size=None, num_workers=0, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch
