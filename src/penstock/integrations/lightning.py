"""How does Lightning take a Loader?  As a data module; the loader's state is part of Lightning's own checkpoints.

trainer = Trainer(max_epochs=1, ...)        # the Loader counts its epochs itself: one pass is the whole run
trainer.fit(model, datamodule=LoaderModule(loader), ckpt_path="last")
"""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningDataModule

from penstock.errors import PlanError
from penstock.loader import Batch, Loader


class LoaderModule(LightningDataModule):  # type: ignore[misc]
    """Training batches from a Loader.  Its state is back before Lightning asks how many batches there are."""

    def __init__(self, loader: Loader, val_dataloaders: Any = None) -> None:
        super().__init__()
        if loader.per_epoch or loader.epochs is None:
            raise PlanError("Lightning makes one pass over the whole run: set the Loader's epochs, leave out per_epoch")
        self.loader = loader
        if val_dataloaders is not None:  # Lightning looks whether the method is there
            self.val_dataloader = lambda: val_dataloaders

    def train_dataloader(self) -> "_Run":
        ended = self.loader.state_dict()["step"] == len(self.loader)
        passes = self.trainer.current_epoch + 1  # a pass that max_steps ended counts as one
        if self.trainer.max_epochs != passes and not ended:
            raise PlanError(
                f"Trainer has max_epochs={self.trainer.max_epochs}; the Loader counts its {self.loader.epochs} epochs itself, "
                f"and Lightning makes one pass more: pass max_epochs={passes}; validation goes by steps (val_check_interval)"
            )
        return _Run(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


class _Run:
    """The loader without what Lightning might turn at; a state, so that it knows that a pass can be gone on with."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
