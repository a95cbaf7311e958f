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
from penstock.integrations.evaluation import EvalBatches, refuse_the_same
from penstock.integrations.isolation import check_at_first_step
from penstock.loader import Batch, Loader


class LoaderModule(LightningDataModule):  # type: ignore[misc]
    """Training batches from a Loader.  Its state is back before Lightning asks how many batches there are.

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
        if loader is not None and (loader.per_epoch or loader.epochs is None):
            raise PlanError("Lightning makes one pass over the whole run: set the Loader's epochs, leave out per_epoch")
        self.loader, self._to_check = loader, isolation_check
        evaluated = {"val": val_dataloaders, "test": test_dataloaders, "predict": predict_dataloaders}
        for stage, given in evaluated.items():
            if given is not None:  # Lightning looks whether the method is there
                setattr(
                    self,
                    f"{stage}_dataloader",
                    partial(_same, _for_evaluation(given, loader if stage == "val" else None)),
                )

    def train_dataloader(self) -> "_Run":
        if self.loader is None:
            raise PlanError("LoaderModule has no Loader to train on: pass it as the first argument")
        ended = self.loader.finished
        passes = self.trainer.current_epoch + 1  # a pass that max_steps ended counts as one
        if self.trainer.max_epochs != passes and not ended:
            raise PlanError(
                f"Trainer has max_epochs={self.trainer.max_epochs}; the Loader counts its {self.loader.epochs} epochs itself, "
                f"and Lightning makes one pass more: pass max_epochs={passes}; validation goes by steps (val_check_interval)"
            )
        self._check_isolation(self.loader)
        return _Run(self.loader)

    def _check_isolation(self, loader: Loader) -> None:
        strategy = self.trainer.strategy  # others shard the model: a forward of it alone does not run there
        if self._to_check and isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            check_at_first_step(self.trainer.lightning_module, loader)
        self._to_check = False

    def state_dict(self) -> dict[str, Any]:
        return {} if self.loader is None else self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.loader is not None:
            self.loader.load_state_dict(state)


def _same(found: Any) -> Any:
    return found


def _for_evaluation(given: Any, trained: Loader | None) -> Any:
    """The same collection, with every Loader in it made to begin at its first batch each time."""
    if isinstance(given, Loader):
        refuse_the_same(trained, given)
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
    """The loader as Lightning sees it: a length, an iteration, and a state, so that it knows that a pass can be gone on with."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        """Batches of the pass, without those that skip= passes over: Lightning must know which one is the last."""
        loader, begun = self._loader, self._loader._anchors[-1]
        return len(loader) - sum(begun.step <= step < begun.pass_step + len(loader) for step in loader._skip)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
