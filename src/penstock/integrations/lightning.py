"""Lightning with a Loader: a data module, whose loader's state is part of Lightning's own checkpoints.

trainer = Trainer(max_epochs=1, ...)        # the Loader counts its epochs itself: one pass is the whole run
trainer.fit(model, datamodule=LoaderModule(loader, val_dataloaders=eval_loader), ckpt_path="last")
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities import CombinedLoader

from penstock.errors import PlanError
from penstock.integrations.isolation import check_at_first_step
from penstock.loader import Batch, Loader
from penstock.loader.guards import EvalBatches, expect_loader, refuse_the_same
from penstock.store.overlap import named, warn_of_overlap


class LoaderModule(LightningDataModule):  # type: ignore[misc]
    """Training batches from a Loader, whose state is loaded before Lightning asks how many batches there are.

    val_dataloaders, test_dataloaders, predict_dataloaders: what Lightning takes there; every Loader among them begins at its first batch
    each time.  isolation_check: at the first step, refuse a transformers model that lets packed samples see each other.
    """

    def __init__(
        self,
        loader: Loader | None = None,
        val_dataloaders: Any = None,
        *,
        test_dataloaders: Any = None,
        predict_dataloaders: Any = None,
        isolation_check: bool = True,
    ) -> None:
        super().__init__()
        if loader is not None:
            expect_loader(loader, call="LoaderModule")
        if loader is not None and (loader.per_epoch or loader.epochs is None):
            raise PlanError(
                "Lightning makes one pass over the whole run: set the Loader's epochs, leave out per_epoch"
            )
        self.loader = loader
        self._to_check = isolation_check
        evaluated = {
            "val": val_dataloaders,
            "test": test_dataloaders,
            "predict": predict_dataloaders,
        }
        for stage, given in evaluated.items():
            if given is not None:  # Lightning checks whether the method exists
                batches = _for_evaluation(given, loader if stage == "val" else None)
                setattr(self, f"{stage}_dataloader", partial(_same, batches))

    def train_dataloader(self) -> "_Run":
        if self.loader is None:
            raise PlanError("LoaderModule has no Loader to train on: pass it as the first argument")
        passes = self.trainer.current_epoch + 1  # a pass that max_steps ended counts as one
        if self.trainer.max_epochs != passes and not self.loader.finished:
            raise PlanError(
                f"Trainer has max_epochs={self.trainer.max_epochs}; the Loader counts its {self.loader.epochs} epochs itself, "
                f"and Lightning makes one pass more: pass max_epochs={passes}; validation goes by steps (val_check_interval)"
            )
        if self._to_check and isinstance(self.trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            # other strategies shard the model: a forward of it alone does not run there
            check_at_first_step(self.trainer.lightning_module, self.loader)
        self._to_check = False
        return _Run(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.loader is not None:
            self.loader.load_state_dict(state)


def _same(found: Any) -> Any:
    return found


def _for_evaluation(given: Any, trained: Loader | None) -> Any:
    """Return the same collection, with every Loader in it made to begin at its first batch each time."""
    if isinstance(given, Loader):
        refuse_the_same(trained, given)
        if trained is not None and trained.world.rank == 0:
            warn_of_overlap(named(given.stores), named(trained.stores))
        return EvalBatches(given)
    if isinstance(given, CombinedLoader):
        given.flattened = [_for_evaluation(each, trained) for each in given.flattened]
        return given
    if isinstance(given, dict):
        return {name: _for_evaluation(each, trained) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return type(given)(_for_evaluation(each, trained) for each in given)
    return given


class _Run:
    """The loader as Lightning sees it: a length, an iteration, and a state, so that Lightning can resume within a pass."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Return the batches of the pass, without those that skip= names: Lightning must know which one is the last."""
        loader = self._loader
        begun = self._loader._anchors[-1]
        return len(loader) - sum(
            begun.step <= step < begun.pass_step + len(loader) for step in loader._skip
        )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
