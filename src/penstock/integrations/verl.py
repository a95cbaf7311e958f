"""Prompts for verl's synchronous trainer: a data set and a sampler for its StatefulDataLoader.

    class Mine(PromptsDataset):
        def open_prompts(self, data_files, config):
            return ps.Prompts("recipe.yaml", repeats=8)

    data.custom_cls.path=mine.py data.custom_cls.name=Mine data.dataloader_num_workers=0
    data.sampler.class_path=pkg://penstock.integrations.verl data.sampler.class_name=PromptsSampler

verl calls the sampler's `update` after each step, with what was trained.  It saves the state of its data loader within a step, after
training and before `update`.  So what was handed out when a state is saved counts as trained.  An asynchronous trainer hands out
prompts ahead of training: do not use this sampler there, but `penstock.prompts.serve`.
"""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import Dataset
from verl.experimental.dataset.sampler import AbstractCurriculumSampler

from penstock.errors import PlanError
from penstock.prompts import Prompt, Prompts

_INDEX = "index"  # the column of a row, and of verl's batches, that holds the ordinal
_NOT_TRAINED = "not_trained"  # handed out, and not in the batch that was trained: verl's filter left it out


class PromptsDataset(Dataset):  # type: ignore[misc]
    """Rows of verl, made of prompts that a PromptsSampler has taken."""

    def __init__(self, data_files: Any = None, config: Any = None, **_: Any) -> None:
        self.prompts = self.open_prompts(data_files, config)
        if self.prompts.epochs is not None:
            raise PlanError(
                f"Prompts have epochs={self.prompts.epochs}, expected endless ones: verl counts epochs itself"
            )

    def open_prompts(self, data_files: Any, config: Any) -> Prompts:
        """Return the prompts; your class says which."""
        raise NotImplementedError("open_prompts: return penstock.Prompts(…) in a class of your own")

    def make_row(self, prompt: Prompt) -> dict[str, Any]:
        """Return the row of a prompt: its record, and the prompt as `raw_prompt`."""
        if "prompt" not in prompt.record:
            raise PlanError(f"{prompt.where}: the record has {sorted(prompt.record)}, expected the key 'prompt'")
        return {**prompt.record, "raw_prompt": prompt.record["prompt"]}

    def __getitem__(self, prompt: Prompt) -> dict[str, Any]:
        if not isinstance(prompt, Prompt):
            raise PlanError(f"item {prompt!r} of PromptsDataset: expected a prompt; set data.sampler to PromptsSampler")
        return {**self.make_row(prompt), _INDEX: prompt.ordinal}

    def __len__(self) -> int:
        return self.prompts.prompts_per_epoch


class PromptsSampler(AbstractCurriculumSampler):  # type: ignore[misc]
    """Takes prompts when a batch is made.  Its state, in verl's `data.pt`, lists what is not trained."""

    def __init__(self, data_source: PromptsDataset, data_config: Any = None) -> None:
        if workers := (data_config or {}).get("dataloader_num_workers", 0):
            raise PlanError(
                f"data.dataloader_num_workers={workers}: workers fetch ahead, and what was fetched would count as trained; set it to 0"
            )
        self._data, self.prompts = data_source, data_source.prompts
        self._held: dict[int, Prompt] = {}  # handed out since the last step was acknowledged

    def __iter__(self) -> Iterator[Prompt]:
        """Yield prompts to the end of the epoch.  Those of an incomplete last batch, which verl drops, come first in the next one."""
        self.prompts.back(list(self._held.values()))
        self._held = {}
        end = (self.prompts.counts["next"] // len(self._data) + 1) * len(self._data)
        while self.prompts.counts["next"] < end or self.prompts.counts["returned"]:
            (prompt,) = self.prompts.take(1, to="verl")
            self.prompts.accept(prompt)  # verl trains whatever it is given, so this lease must not run out
            self._held[prompt.ordinal] = prompt
            yield prompt

    def update(self, batch: Any) -> None:
        """Acknowledge a step: prompts in the batch are done; the others that were handed out are dropped and counted."""
        trained = {int(ordinal) for ordinal in batch.non_tensor_batch[_INDEX]}
        held, self._held = self._held, {}
        self.prompts.done([prompt for ordinal, prompt in held.items() if ordinal in trained])
        self.prompts.drop([prompt for ordinal, prompt in held.items() if ordinal not in trained], why=_NOT_TRAINED)

    def state_dict(self) -> dict[str, Any]:
        held, self._held = self._held, {}
        self.prompts.done(list(held.values()))
        return self.prompts.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._held = {}
        self.prompts.load_state_dict(state)

    def __len__(self) -> int:
        return len(self._data)
