"""slime's data source, in this process: test_miles.py has the real code of miles, of which slime's is a twin; slime is not on the index.

`Rollouts` goes through a round as slime/rollout/sglang_rollout.py, generate_rollout and generate_rollout_async do (THUDM/slime 624b824a8;
radixark/miles 31f1ca961 has the same): over-sample, filter, abort what is pending, call the two functions, give partial groups back.
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
    multimodal_inputs: Any = None
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(params=["slime", "miles"])
def adapter(request, monkeypatch):
    """The module, imported next to a package that has the interface."""
    modules = {
        name: types.ModuleType(name)
        for name in (
            "",
            ".rollout",
            ".rollout.data_source",
            ".utils",
            ".utils.data",
            ".utils.processing_utils",
            ".utils.types",
        )
    }
    modules[".rollout.data_source"].DataSource = DataSource
    modules[".utils"].data = modules[".utils.data"]
    modules[".utils.data"]._build_messages = lambda row, key, is_conversation, media: row[key]
    for name in ("load_tokenizer", "load_processor", "process_vision_info"):
        setattr(modules[".utils.processing_utils"], name, lambda *args, **options: None)
    modules[".utils.types"].Sample = Sample
    monkeypatch.setitem(sys.modules, "slime", None)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, request.param + name, module)
    monkeypatch.delitem(sys.modules, "penstock.extras.rl.slime", raising=False)
    yield importlib.import_module("penstock.extras.rl.slime")
    sys.modules.pop("penstock.extras.rl.slime", None)


class Rollouts:
    """slime's rounds: of `asked` groups the first finish; of these, some are filtered; `size` are trained."""

    def __init__(
        self, adapter, folder: Path, *, partial: bool = True, function: str = "", **options: Any
    ) -> None:
        self.adapter, self.partial = adapter, partial
        self.args = Namespace(
            n_samples_per_prompt=2,
            rollout_seed=3,
            rollout_shuffle=True,
            input_key="prompt",
            label_key="gold",
            metadata_key="meta",
            tool_key="tools",
            multimodal_keys=None,
            apply_chat_template=False,
            apply_chat_template_kwargs={},
            hf_checkpoint="none",
            rollout_max_prompt_len=None,
            rollout_global_dataset=True,
            prompt_data=None,
            save=str(folder),
            load=str(folder),
            rollout_function_path=function,
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
        # generate_rollout passes data_source.get_samples on, and generate_rollout_async calls process_func(args, all_samples, data_source)
        self.adapter.settle(self.args, finished, self.source.get_samples)
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
        match=r"save: rollout 0 was not settled.*--rollout-sample-filter-path penstock.extras.rl.slime",
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
    assert len(run.source) == len(run.source.dataset) == 60


class FullyAsync:
    """slime's and miles' fully asynchronous rollouts: groups are in flight from one rollout to the next.

    As these do (THUDM/slime 624b824a8, radixark/miles 31f1ca961), which were run with the adapter:
    slime/rollout/fully_async_rollout.py: AsyncRolloutWorker._loop, _make_done_cb, _generate_rollout_async;
    miles/rollout/fully_async_rollout.py: FullyAsyncRolloutFn._submit_one_group, _recycle, _drain, with DefaultDataBuffer.put.
    get_samples(1) for each group, add_samples([group]) for an aborted one, the dynamic filter for a finished one (miles only), and none
    of the functions of the standard rollout.  The rollout manager then calls log_rollout_data (both).
    """

    def __init__(self, adapter: Any, folder: Path) -> None:
        self.adapter = adapter
        function = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
        rollouts = Rollouts(adapter, folder, function=function)
        self.args, self.source = rollouts.args, rollouts.source
        self.keep = adapter.drop_filtered(lambda args, samples: samples[0].label % 5 != 0)
        self.in_flight: list[list[Sample]] = []
        self.finished: list[list[Sample]] = []

    def generate(self, rollout_id: int) -> list[int]:
        while len(self.finished) < 6:
            while len(self.in_flight) < 5:
                self.in_flight += self.source.get_samples(1)
            for number in (3, 0):  # out of their order
                group = self.in_flight.pop(number)
                if group[0].label % 7 == 3 and not group[0].tokens:
                    group[0].tokens.append(7)
                    self.source.add_samples([group])
                elif self.keep(self.args, group):
                    self.finished.append(group)
        data = self.finished[:4]
        del self.finished[:4]
        samples = [sample for group in data for sample in group]
        assert not self.adapter.log_trained(rollout_id, self.args, samples, {}, 1.0)
        return [group[0].group_index for group in data]


def test_m4_fully_asynchronous_rollouts_save_and_resume(adapter, tmp_path):
    """M4: save refused, because such rollouts do not call the functions of the standard one."""
    trained: dict[int, list[int]] = {}
    rollout = 0
    for _ in range(4):
        run = FullyAsync(adapter, tmp_path)
        run.source.load(rollout - 1)
        for _ in range(5):
            trained[rollout] = run.generate(rollout)
            run.source.save(rollout)
            rollout += 1
        run.generate(rollout)  # killed before it is saved
    times = Counter(ordinal for ordinals in trained.values() for ordinal in ordinals)
    fresh = FullyAsync(adapter, tmp_path)
    fresh.source.load(rollout - 1)
    counts = fresh.source.prompts.counts
    assert max(times.values()) == 1 and counts["done"] == len(times) == 80
    assert counts["dropped"]["not_selected"] > 5
    assert counts["done"] + counts["dropped"]["not_selected"] + counts["returned"] == counts["next"]


def test_m4_groups_may_be_lists_of_lists(adapter, tmp_path):
    """M4: a generate function may return several samples for one, and then a group is a list of lists."""
    run = Rollouts(adapter, tmp_path)
    groups = run.source.get_samples(3)
    nested = [[[sample] for sample in group] for group in groups]
    adapter.mark_trained(run.args, nested[:1])
    adapter.settle(run.args, nested[:2], run.source.get_samples)
    run.source.add_samples(nested[2:])
    run.source.save(0)
    counts = run.source.prompts.counts
    assert (counts["done"], counts["dropped"], counts["returned"]) == (1, {"not_selected": 1}, 1)
    assert run.source.get_samples(1) == nested[2:]
    with pytest.raises(PlanError, match="a sample has group_index=None, expected the number"):
        run.source.add_samples([[Sample()]])


def test_m1_what_is_no_data_source_of_prompts_is_refused(adapter, tmp_path):
    """M1: the framework passes a bound method; anything else is named."""
    with pytest.raises(PlanError, match=r"settle was called with .*expected a PromptsDataSource"):
        adapter.settle(None, [], [].append)
    with pytest.raises(
        PlanError, match="this process has no PromptsDataSource with these arguments"
    ):
        adapter.log_trained(0, Namespace(), [], None, 0.0)


def test_m2_arguments_without_effect_are_refused_by_name(adapter, tmp_path):
    """M2: arguments that the framework's own data source reads, and that mean nothing here."""
    run = Rollouts(adapter, tmp_path)
    kind = type(run.source)
    for changes, said in (
        ({"rollout_global_dataset": False}, "--disable-rollout-global-dataset"),
        ({"buffer_filter_path": "mine.first"}, "--buffer-filter-path mine.first has no effect"),
        ({"multi_lora": True}, "--multi-lora needs a data source"),
    ):
        with pytest.raises(PlanError, match=said):
            kind(Namespace(**{**vars(run.args), **changes}))
    with pytest.raises(PlanError, match="prompt_data is None, expected --prompt-data with a file"):
        adapter.PromptsDataSource(run.args)
    missing = Namespace(**{**vars(run.args), "label_key": "answer"})
    with pytest.raises(PlanError, match=r"has \['gold', 'prompt'\], expected label_key 'answer'"):
        kind(missing).get_samples(1)


def test_m2_an_order_that_the_arguments_do_not_ask_for_is_said(adapter, tmp_path, caplog):
    """M2: a class of the user's decides about the order, and the arguments may say something else."""
    run = Rollouts(adapter, tmp_path)
    type(run.source)(Namespace(**{**vars(run.args), "rollout_shuffle": False}))
    assert (
        "open_prompts has shuffle=True, which is used; the arguments have rollout_shuffle=False"
        in caplog.text
    )
