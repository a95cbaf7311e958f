"""slime's data source, against its documented interface: slime itself does not install here.

`Rollouts` goes through a round as slime's sglang_rollout does: over-sample, filter, abort what is pending, call the two functions, give
partial groups back.
"""

import importlib
import sys
import types
from abc import ABC, abstractmethod
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import PlanError, PlanMismatch


class DataSource(ABC):
    """The methods that slime calls."""

    @abstractmethod
    def get_samples(self, num_samples): ...
    @abstractmethod
    def add_samples(self, samples): ...
    @abstractmethod
    def save(self, rollout_id): ...
    @abstractmethod
    def load(self, rollout_id=None): ...
    @abstractmethod
    def __len__(self): ...


@dataclass
class Sample:
    """Those fields of slime's sample that a data source fills."""

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(params=["slime", "miles"])
def adapter(request, monkeypatch):
    """The module, imported beside a package that has the interface."""
    modules = {
        name: types.ModuleType(name)
        for name in ("", ".rollout", ".rollout.data_source", ".utils", ".utils.types")
    }
    modules[".rollout.data_source"].DataSource = DataSource
    modules[".utils.types"].Sample = Sample
    monkeypatch.setitem(sys.modules, "slime", None)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, request.param + name, module)
    monkeypatch.delitem(sys.modules, "penstock.integrations.slime", raising=False)
    yield importlib.import_module("penstock.integrations.slime")
    sys.modules.pop("penstock.integrations.slime", None)


class Rollouts:
    """slime's rounds: of `asked` groups the first finish; of these, some are filtered; `size` are trained."""

    def __init__(self, adapter, folder: Path, *, partial: bool = True, **options: Any) -> None:
        self.adapter, self.partial = adapter, partial
        self.args = Namespace(
            n_samples_per_prompt=2,
            rollout_seed=3,
            input_key="prompt",
            label_key="gold",
            metadata_key="meta",
            save=str(folder),
            load=str(folder),
        )

        class Mine(adapter.PromptsDataSource):
            def open_prompts(self, args):
                rows = [{"prompt": f"p{n}", "gold": n} for n in range(60)]
                return ps.Prompts(
                    ps.open(rows),
                    repeats=args.n_samples_per_prompt,
                    seed=args.rollout_seed,
                    **options,
                )

        self.source = Mine(self.args)

    def generate(self, size: int = 4) -> list[list[Sample]]:
        data, finished, pending = [], [], []
        while len(data) < size:
            pending += self.source.get_samples(6)
            for group in pending[:5]:
                finished.append(group)
                if group[0].label % 5 and len(data) < size:  # the dynamic filter, and then enough
                    data.append(group)
            pending = pending[5:]
        self.adapter.mark_trained(self.args, data)
        self.adapter.settle(self.args, finished, self.source)
        for group in pending:
            group[0].tokens.append(7)
        if self.partial and pending:
            self.source.add_samples(pending)
        return data


@pytest.mark.parametrize("partial", [True, False])
def test_killed_and_resumed_rollouts_train_each_prompt_once_or_drop_it(adapter, tmp_path, partial):
    run, trained, saved = Rollouts(adapter, tmp_path, partial=partial), [], 0
    for rollout in range(30):
        if rollout and rollout % 7 == 0:  # killed after rollout - 1, which was not saved
            trained = trained[:saved]
            run = Rollouts(adapter, tmp_path, partial=partial)
            run.source.load(rollout - 2)
            trained.append([group[0].group_index for group in run.generate()])
        trained.append([group[0].group_index for group in run.generate()])
        if (rollout + 1) % 7:
            run.source.save(rollout)
            saved = len(trained)
    counts = run.source.prompts.counts
    seen = Counter(ordinal for group in trained for ordinal in group)
    assert max(seen.values()) == 1
    assert counts["done"] == len(seen) and counts["leased"] + counts["returned"] <= 6
    assert (
        counts["done"] + counts["dropped"]["not_selected"] + counts["leased"] + counts["returned"]
        == counts["next"]
    )


def test_vime_324_a_partial_group_goes_on_with_its_tokens_and_is_given_again_after_a_resume(
    adapter, tmp_path
):
    run = Rollouts(adapter, tmp_path)
    run.generate()
    (partial,) = run.source._groups.values()
    run.source.save(0)
    (again,) = run.source.get_samples(1)
    assert again is partial and again[0].tokens == [7]
    fresh = Rollouts(adapter, tmp_path)
    fresh.source.load(0)
    (given,) = fresh.source.get_samples(1)
    assert given[0].prompt == partial[0].prompt and given[0].tokens == [] and len(given) == 2
    assert [sample.index for sample in given] == [sample.index for sample in partial]


def test_a_lease_time_does_not_train_a_prompt_twice(adapter, tmp_path):
    run = Rollouts(
        adapter, tmp_path, lease=1e-9
    )  # over before the next call; slime would train both
    trained = [group[0].group_index for _ in range(5) for group in run.generate()]
    run.source.save(4)
    assert max(Counter(trained).values()) == 1 and run.source.prompts.counts["done"] == len(trained)


def test_a_rollout_that_is_generated_ahead_of_training_is_not_done(adapter, tmp_path):
    run = Rollouts(adapter, tmp_path)
    first, ahead = run.generate(), run.generate()
    run.source.save(0)
    assert run.source.prompts.counts["done"] == len(first)
    fresh = Rollouts(adapter, tmp_path)
    fresh.source.load(0)
    given = {group[0].group_index for group in fresh.source.get_samples(12)}
    assert {group[0].group_index for group in ahead} <= given and not {
        group[0].group_index for group in first
    } & given


def test_what_cannot_be_known_is_refused(adapter, tmp_path):
    run = Rollouts(adapter, tmp_path)
    run.source.get_samples(3)
    with pytest.raises(
        PlanError,
        match=r"save: rollout 0 was not settled.*--rollout-sample-filter-path penstock.integrations.slime",
    ):
        run.source.save(0)
    with pytest.raises(
        PlanMismatch, match=r"penstock_4.json does not exist: rollout 4 was saved without Prompts"
    ):
        run.source.load(4)
    with pytest.raises(PlanError, match="add_samples: group 99 was not given by this data source"):
        run.source.add_samples([[Sample(group_index=99)]])
    run.args.input_key = "question"
    with pytest.raises(
        PlanError, match=r"the record has \['gold', 'prompt'\], expected input_key 'question'"
    ):
        run.source.get_samples(1)
    assert len(run.source) == 60
