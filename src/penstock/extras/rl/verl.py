"""Prompts for verl (0.9 and its trainers v1): a dataset for its StatefulDataLoader.

    class Mine(PromptsDataset):
        def open_prompts(self, data_files, config):
            return ps.Prompts("recipe.yaml", filter=self.prompt_filter(), num_proc=1)

    data.custom_cls.path=mine.py data.custom_cls.name=Mine data.dataloader_num_workers=0

The filter leaves out prompts that are longer than data.max_prompt_length, as verl's own dataset counts them, with the tools and the
variables of the chat template that its config names; without it, such a prompt is refused when its turn comes.

verl saves the state of its data loader after a training step.  What was handed out then is in verl's hands: its synchronous trainer has
trained it, and its asynchronous ones save it in their queue and generate it again.  So it counts as done, also if verl's own filter of
groups leaves it out: verl does not tell a dataset what it trains on.  Validation files are read by verl's own dataset.
"""

import io
import logging
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from typing import Any

from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from penstock.errors import PlanError
from penstock.extras.rl.leases import Asked
from penstock.extras.rl.prompts import Prompts
from penstock.types import Record

_log = logging.getLogger("penstock")

_ORDINAL = "penstock_ordinal"  # the column of a row that holds the prompt's ordinal


class PromptsDataset(RLHFDataset):  # type: ignore[misc]
    """verl's RLHFDataset whose rows are prompts, in their order.  The numbers that verl's sampler draws are not used."""

    prompts: Prompts | None = None  # None where it serves validation files

    def open_prompts(self, data_files: list[str], config: Any) -> Prompts:
        """Return the prompts; your class says which."""
        raise NotImplementedError("open_prompts: return penstock.Prompts(…) in a class of your own")

    def _download(self, *args: Any, **options: Any) -> None:
        if list(self.data_files) != _as_list(self.config.get("train_files")):
            super()._download(*args, **options)

    def _read_files_and_tokenize(self) -> None:
        train_files = _as_list(self.config.get("train_files"))
        if list(self.original_data_files) != train_files:
            super()._read_files_and_tokenize()
            return
        self._check(train_files)
        self._held: list[Asked] = []  # handed out since the last state was saved
        self._is_short = self._own_filter()
        self._is_filtered = False
        self.prompts = self.open_prompts(train_files, self.config)
        if self.prompts.epochs is not None:
            raise PlanError(
                f"Prompts have epochs={self.prompts.epochs}, expected endless ones: verl counts epochs itself"
            )
        is_limited = self.prompts.plan.settings.max_length <= self.max_prompt_length
        if self.filter_overlong_prompts and not (self._is_filtered or is_limited):
            raise PlanError(
                f"data.filter_overlong_prompts is true, and Prompts may be longer than data.max_prompt_length={self.max_prompt_length}: "
                f"open them with filter=self.prompt_filter(), num_proc=1, or set data.filter_overlong_prompts=false"
            )
        self._warn_of_other_order()

    def prompt_filter(self) -> Callable[[Record], bool] | None:
        """Return the filter of Prompts that data.filter_overlong_prompts asks for; None without it.  It works in this process only."""
        self._is_filtered = True
        return self._is_short

    def _own_filter(self) -> Callable[[Record], bool] | None:
        """Return the function with which verl's own dataset chooses prompts; None if it keeps all."""
        if not self.filter_overlong_prompts:
            return None
        rows = _FilteredRows()
        with redirect_stdout(io.StringIO()):  # it prints the number of rows
            self.maybe_filter_out_long_prompts(rows)
        return lambda record: bool(
            rows.keep(deepcopy(record))
        )  # verl changes the row that it reads

    def _warn_of_other_order(self) -> None:
        """Say so where the config asks for another order than Prompts have: verl's sampler does not decide here."""
        assert self.prompts is not None
        settings = self.prompts.plan.settings
        asked = {"shuffle": self.config.get("shuffle", False), "seed": self.config.get("seed")}
        for name, value in asked.items():
            chosen = getattr(settings, name)
            is_said = name == "shuffle" or (settings.shuffle and value is not None)
            if is_said and chosen != value:
                _log.warning(
                    "open_prompts has %s=%s, which is used; the config has data.%s=%s",
                    name,
                    chosen,
                    name,
                    value,
                )

    def _check(self, train_files: list[str]) -> None:
        """Refuse settings under which prompts would be lost or trained twice, or that would be ignored."""
        if train_files == _as_list(self.config.get("val_files")):
            raise PlanError(
                f"data.train_files and data.val_files are both {train_files}, so training and validation cannot be distinguished; name "
                f"other files for validation"
            )
        if workers := self.config.get("dataloader_num_workers", 0):
            raise PlanError(
                f"data.dataloader_num_workers={workers}: workers fetch ahead, and what was fetched would count as trained; set it to 0"
            )
        if self.max_samples > 0:
            raise PlanError(
                f"data.train_max_samples={self.max_samples} has no effect on Prompts; open a slice, source[:{self.max_samples}], and set "
                f"it to -1"
            )
        if not OmegaConf.select(self.config, "..trainer.use_v1", default=False):
            raise PlanError(
                "trainer.use_v1 is not true: verl's older trainer forgets the state of the data at the end of an epoch, so a resumed run "
                "would train prompts again; set trainer.use_v1=true"
            )

    def __getitem__(self, item: int) -> dict[str, Any]:
        if self.prompts is None:
            row: dict[str, Any] = super().__getitem__(item)
            return row
        (prompt,) = self.prompts.take(1, to="verl")
        self.prompts.accept(
            prompt
        )  # verl trains whatever it is given, so this lease must not run out
        if self.prompt_key not in prompt.record:
            raise PlanError(
                f"{prompt.where}: the record has {sorted(prompt.record)}, expected data.prompt_key {self.prompt_key!r}"
            )
        if self._is_short is not None and not self._is_short(prompt.record):
            raise PlanError(
                f"{prompt.where}: the prompt is longer than data.max_prompt_length={self.max_prompt_length} tokens, and verl's own data "
                f"set would leave it out; open Prompts with filter=self.prompt_filter(), num_proc=1, or set "
                f"data.filter_overlong_prompts=false"
            )
        self._held.append((prompt.ordinal, prompt.lease))
        self.dataframe = {item: deepcopy(prompt.record)}  # verl changes the row that it reads
        return {**super().__getitem__(item), _ORDINAL: prompt.ordinal}

    def __len__(self) -> int:
        return len(self.dataframe) if self.prompts is None else self.prompts.prompts_per_epoch

    def state_dict(self) -> dict[str, Any]:
        if self.prompts is None:
            return {}
        held = self._held
        self._held = []
        self.prompts.done(held)
        return self.prompts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.prompts is not None:
            self._held = []
            self.prompts.load_state_dict(state)


class _FilteredRows:
    """Take the place of verl's rows, to learn the function that it filters them with."""

    keep: Callable[[Record], bool]

    def filter(self, keep: Callable[[Record], bool], **options: Any) -> "_FilteredRows":
        self.keep = keep
        return self

    def __len__(self) -> int:
        return 0


def _as_list(files: Any) -> list[str]:
    return list(files) if isinstance(files, list | tuple) or OmegaConf.is_list(files) else [files]
