"""The batches of a Loader behind `next`, for trainers that pull batches themselves: DeepSpeed, Megatron, Composer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.loader.loader import Loader


class Stream(Iterator[Any]):
    """The batches that are left.  At the end of a pass `next` raises StopIteration; after that, `iter` begins the next pass.

    Its state is the loader's.  It counts the batches that `next` has returned, whatever was made ahead.
    """

    def __init__(self, loader: "Loader") -> None:
        self.loader = loader
        self._batches: Iterator[Any] | None = None
        self._has_ended = False

    def __iter__(self) -> "Stream":
        if self._has_ended:
            self._batches = None
            self._has_ended = False
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self.check_ranks()
            self._batches = iter(self.loader)
        try:
            return self.convert(next(self._batches))
        except StopIteration:
            self._has_ended = True
            raise

    def __len__(self) -> int:
        return len(self.loader)

    def check_ranks(self) -> None:
        """Compare the ranks of a trainer with the loader's, before the first batch; a trainer's own stream says how."""

    def convert(self, batch: Any) -> Any:
        """Return what `next` returns for a batch; a trainer's own stream changes names here."""
        return batch

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where the state was taken, also with other ranks; the next batch is the one that came after it."""
        self.loader.load_state_dict(state)
        self._batches = None
        self._has_ended = False
