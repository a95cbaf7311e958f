"""Prompts as the data source of slime, or of miles, its fork.

Write a module with your data, and name it and two functions of this module on slime's command line:

    class Mine(PromptsDataSource):
        def open_prompts(self, args):
            return ps.Prompts("recipe.yaml", repeats=args.n_samples_per_prompt, seed=args.rollout_seed)

    --data-source-path mine.Mine
    --rollout-sample-filter-path penstock.integrations.slime.mark_trained
    --rollout-all-samples-process-path penstock.integrations.slime.settle

slime does not tell a data source what it trains on; the two functions do.  A prompt is done when slime saves a rollout that trained it.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from slime.rollout.data_source import DataSource
    from slime.utils.types import Sample
except ImportError:
    from miles.rollout.data_source import DataSource
    from miles.utils.types import Sample

from penstock.errors import PlanError, PlanMismatch
from penstock.prompts import Prompt, Prompts

_MARK = "penstock_trained"  # in the metadata of a sample that slime trains on
_NOT_SELECTED = "not_selected"  # finished, and left out by slime: by its dynamic filter, or because it had enough


class PromptsDataSource(DataSource):  # type: ignore[misc]
    """Groups of samples, one group for each prompt; a group that comes back is given again first, as far as it had come."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.prompts = self.open_prompts(args)
        if self.prompts.epochs is not None or self.prompts.repeats != args.n_samples_per_prompt:
            raise PlanError(
                f"Prompts have epochs={self.prompts.epochs} and repeats={self.prompts.repeats}, expected endless ones (epochs=None) with "
                f"repeats={args.n_samples_per_prompt}, which is n_samples_per_prompt"
            )
        self._held: dict[int, Prompt] = {}  # ordinals that slime has and has not settled
        self._groups: dict[
            int, list[Any]
        ] = {}  # of prompts that came back: slime goes on with their samples
        self._rounds: dict[int, list[Prompt]] = {}  # rollout id → what it trains
        self._next_round = 0
        self._is_settled = False

    def open_prompts(self, args: Any) -> Prompts:
        """Return the prompts; your class says which."""
        raise NotImplementedError("open_prompts: return penstock.Prompts(…) in a class of your own")

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """Return a group of samples for each of `num_samples` prompts."""
        if (
            self._is_settled
        ):  # the round is over: what slime neither trained, nor left out, nor gave back was aborted
            self.prompts.back(list(self._held.values()))
            self._held = {}
            self._is_settled = False
        taken = self.prompts.take(num_samples, to="slime") if num_samples else []
        self.prompts.accept(
            taken
        )  # slime trains whatever it finishes, so these leases must not run out
        self._held |= {prompt.ordinal: prompt for prompt in taken}
        return [self._groups.pop(prompt.ordinal, []) or self._group(prompt) for prompt in taken]

    def _group(self, prompt: Prompt) -> list[Any]:
        record = prompt.record
        args = self.args
        count = prompt.repeats
        if args.input_key not in record:
            raise PlanError(
                f"{prompt.where}: the record has {sorted(record)}, expected input_key {args.input_key!r}"
            )
        return [
            Sample(
                group_index=prompt.ordinal,
                index=prompt.ordinal * count + number,
                prompt=record[args.input_key],
                label=record.get(args.label_key) if args.label_key else None,
                metadata=dict(record.get(args.metadata_key) or {}),
            )
            for number in range(count)
        ]

    def add_samples(self, samples: list[list[Any]]) -> None:
        """Take groups back that were aborted, with the tokens that they have."""
        for group in samples:
            prompt = self._held.pop(group[0].group_index, None)
            if prompt is None:
                raise PlanError(
                    f"add_samples: group {group[0].group_index} was not given by this data source, or is settled"
                )
            self.prompts.back(prompt)
            self._groups[prompt.ordinal] = group

    def settle(self, finished: Sequence[list[Any]]) -> None:
        """End a round: of the finished groups, those with a mark are trained, and the others are dropped and counted."""
        trained: list[Prompt] = []
        left_out: list[Prompt] = []
        for group in finished:
            prompt = self._held.pop(group[0].group_index)
            (trained if group[0].metadata.pop(_MARK, False) else left_out).append(prompt)
        self.prompts.drop(left_out, why=_NOT_SELECTED)
        self._rounds[self._next_round] = trained
        self._next_round = self._next_round + 1
        self._is_settled = True

    def save(self, rollout_id: int) -> None:
        """Acknowledge what rollouts up to this one have trained, and save the state beside slime's checkpoint."""
        if rollout_id >= self._next_round:
            raise PlanError(
                f"save: rollout {rollout_id} was not settled, so it is not known what it trained; start slime with "
                f"--rollout-sample-filter-path {__name__}.mark_trained --rollout-all-samples-process-path {__name__}.settle"
            )
        for number in [number for number in self._rounds if number <= rollout_id]:
            self.prompts.done(self._rounds.pop(number))
        file = self._file(self.args.save, rollout_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        with temporary.open("w") as out:
            json.dump(self.prompts.state_dict(), out)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)

    def load(self, rollout_id: int | None = None) -> None:
        """Go to the state that was saved with this rollout; all that was not trained then is given again."""
        if self.args.load is None or rollout_id is None or rollout_id < 0:
            return
        file = self._file(self.args.load, rollout_id)
        if not file.exists():
            raise PlanMismatch(
                f"{file} does not exist: rollout {rollout_id} was saved without Prompts; start a new run"
            )
        self.prompts.load_state_dict(json.loads(file.read_text()))
        self._held = {}
        self._groups = {}
        self._rounds = {}
        self._next_round = rollout_id + 1
        self._is_settled = False

    @staticmethod
    def _file(folder: str, rollout_id: int) -> Path:
        return Path(folder) / "rollout" / f"penstock_{rollout_id}.json"

    def __len__(self) -> int:
        """Return the number of prompts in an epoch."""
        return self.prompts.prompts_per_epoch


def mark_trained(args: Any, data: Sequence[list[Any]]) -> None:
    """Mark the groups that slime trains on; for --rollout-sample-filter-path."""
    for group in data:
        group[0].metadata[_MARK] = True


def settle(args: Any, all_samples: Sequence[list[Any]], data_source: PromptsDataSource) -> None:
    """Tell the data source what became of the finished groups; for --rollout-all-samples-process-path."""
    data_source.settle(all_samples)
