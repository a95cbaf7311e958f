"""Prompts for SkyRL's fully asynchronous trainer.

    class Mine(BasePPOExp):                               # or the experiment class that you start from
        def get_train_dataset(self):
            keep = PromptFilter(self.tokenizer, self.cfg.trainer.max_prompt_length)
            return ps.Prompts("recipe.yaml", repeats=self.cfg.generator.n_samples_per_prompt, filter=keep)

        def get_trainer(self, **parts):
            return PromptsFullyAsyncTrainer(**parts)

The filter leaves out prompts that are longer than trainer.max_prompt_length, as SkyRL's own dataset does; without it, such a prompt is
refused when its turn comes.  A prompt is done when SkyRL has trained its group, and dropped when SkyRL filters it.  What is in flight at a
checkpoint is given again first.  An epoch of SkyRL has whole mini-batches only; what is left over begins the next one, so every prompt has
its turn.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any

from skyrl.backends.skyrl_train.utils.io import io
from skyrl.train.dataset.dataset import _prompt_not_too_long
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, _AsyncDataloader

from penstock.errors import PlanError, PlanMismatch
from penstock.extras.rl.prompts import Prompt, Prompts
from penstock.types import Record

_FILE = "penstock_prompts.json"  # in a checkpoint's folder
_FILTERED = "filtered"  # by SkyRL: rewards without variance, or an incomplete last mini-batch
_WORKER = "skyrl"
_PROMPT = "prompt"  # the key of a record that holds the messages


class PromptsFullyAsyncTrainer(FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """SkyRL's FullyAsyncRayPPOTrainer; its `train_dataset` are Prompts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.async_train_dataloader = self.train_dataloader

    @property
    def prompts(self) -> Prompts:
        """The prompts that it trains on."""
        found: Prompts = self.train_dataset
        return found

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        given = self.train_dataset
        repeats = self.cfg.generator.n_samples_per_prompt
        if not isinstance(given, Prompts) or given.epochs is not None or given.repeats != repeats:
            raise PlanError(
                f"train_dataset is {given!r}, expected endless Prompts (epochs=None) with repeats={repeats}, which is "
                f"generator.n_samples_per_prompt"
            )
        is_short = PromptFilter(self.tokenizer, self.cfg.trainer.max_prompt_length)
        self.train_dataloader = PromptsLoader(given, self.mini_batch_size, is_short)
        self.num_steps_per_epoch = len(self.train_dataloader) // self.mini_batch_size
        if not self.num_steps_per_epoch:
            raise PlanError(
                f"{given!r} has {len(self.train_dataloader):,} prompts, which is less than a mini-batch"
            )
        self.total_training_steps = self.num_steps_per_epoch * self.cfg.trainer.epochs
        if self.cfg.trainer.max_training_steps is not None:
            self.total_training_steps = min(
                self.total_training_steps, self.cfg.trainer.max_training_steps
            )

    def save_checkpoints(self) -> str:
        # SkyRL goes on with a warning if the state of its data loader cannot be written or read: so the file is ours, and comes first.
        folder = f"{self.cfg.trainer.ckpt_path}/global_step_{self.global_step}"  # may be a URL
        io.makedirs(folder, exist_ok=True)
        with io.open_file(f"{folder}/{_FILE}", "w") as out:
            json.dump(self.prompts.state_dict(), out)
        saved: str = super().save_checkpoints()
        return saved

    def load_checkpoints(self) -> Any:
        found = super().load_checkpoints()
        if found[0]:
            file = f"{found[1]}/{_FILE}"
            if not io.exists(file):
                raise PlanMismatch(
                    f"{file} does not exist: this checkpoint was saved without Prompts; start a new run"
                )
            with io.open_file(file, "r") as text:
                self.prompts.load_state_dict(json.load(text))
        return found


class PromptFilter:
    """A filter of Prompts: keeps records whose prompt has at most `max_length` tokens, as SkyRL's own dataset counts them."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __call__(self, record: Record) -> bool:
        return bool(_prompt_not_too_long(record, self.tokenizer, _PROMPT, self.max_length))


class PromptsLoader(_AsyncDataloader):  # type: ignore[misc]
    """What SkyRL's trainer calls to get prompts, and to say what became of them."""

    def __init__(self, prompts: Prompts, mini_batch_size: int, is_short: PromptFilter) -> None:
        self._prompts = prompts
        self._is_short = is_short
        self._lock = asyncio.Lock()
        self._effective_dataloader_length = len(self) // mini_batch_size * mini_batch_size
        self._consumed_data_uids: set[str] = set()  # of this epoch: trained or filtered
        self._filtered_data_uids: set[str] = set()
        self._held: dict[str, Prompt] = {}  # in flight

    async def get_next_non_consumed_data(self) -> list[dict[str, Any]] | None:
        async with self._lock:
            if len(self._consumed_data_uids) + len(self._held) >= self._effective_dataloader_length:
                return None  # the epoch is over
            (prompt,) = self._prompts.take(1, to=_WORKER)
            self._prompts.accept(
                prompt
            )  # SkyRL trains whatever it generates, so this lease must not run out
            self._held[str(prompt.ordinal)] = prompt
            row = _row(prompt)
            if not self._is_short(prompt.record):
                raise PlanError(
                    f"{prompt.where}: the prompt is longer than trainer.max_prompt_length={self._is_short.max_length} tokens, and SkyRL's "
                    f"own dataset would leave it out; open Prompts with filter={__name__}.PromptFilter(tokenizer, max_length)"
                )
            return [row]

    async def mark_consumed_uids(self, uids: Iterable[str]) -> None:
        trained = list(uids)
        await super().mark_consumed_uids(trained)
        self._prompts.done([self._held.pop(uid) for uid in trained])

    async def mark_filtered_uids(self, uids: Iterable[str]) -> None:
        filtered = list(uids)
        await super().mark_filtered_uids(filtered)
        self._prompts.drop([self._held.pop(uid) for uid in filtered], why=_FILTERED)

    async def reset_at_epoch_end(self) -> None:
        self._prompts.back(list(self._held.values()))
        self._begin(set(), set())

    def load_state_from_checkpoint(
        self, consumed_data_uids_set: set[str], filtered_data_uids_set: set[str] | None = None
    ) -> None:
        self._begin(consumed_data_uids_set, filtered_data_uids_set or set())

    def _begin(self, consumed: set[str], filtered: set[str]) -> None:
        self._consumed_data_uids = consumed
        self._filtered_data_uids = filtered
        self._held = {}

    # As the data loader of the trainer it has a length, and nothing to iterate over or to save.

    def __len__(self) -> int:
        return self._prompts.prompts_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def _row(prompt: Prompt) -> dict[str, Any]:
    extras = dict(prompt.record)
    if _PROMPT not in extras:
        raise PlanError(
            f"{prompt.where}: the record has {sorted(extras)}, expected the key 'prompt' (messages)"
        )
    messages = extras.pop(_PROMPT)
    env_class = extras.pop("env_class", None)
    return {
        "prompt": messages,
        "env_class": env_class,
        "env_extras": extras,
        "uid": str(prompt.ordinal),
    }
