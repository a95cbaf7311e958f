"""verl's own dataset, sampler and collation on Prompts, in the real StatefulDataLoader, called as its trainers v1 do."""

import io
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from penstock.errors import PlanError

pytest.importorskip("verl", reason="make installs it: tests/requirements-no-deps.txt")
pytestmark = pytest.mark.filterwarnings("ignore")  # verl and torchdata call what is deprecated

SIZE, BATCH = 22, 4


@pytest.fixture(scope="module", autouse=True)
def adapter():
    """The module; importing verl sets up logging and the environment of the process."""
    root, environment = logging.getLogger(), dict(os.environ)
    handlers, level = root.handlers[:], root.level
    from penstock.extras.rl import verl

    root.handlers[:], root.level = handlers, level
    os.environ.clear()
    os.environ.update(environment)
    return verl


@pytest.fixture
def make_loader(adapter, tmp_path: Path):
    """Make a data loader as verl's trainer v1 does, from a config in which one or the other value is changed."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.dataset.rl_dataset import collate_fn

    rows = [
        {
            "prompt": [{"role": "user", "content": f"p{n}"}],
            "data_source": "math",
            "reward_model": {"ground_truth": n},
        }
        for n in range(SIZE)
    ]
    for name in ("train", "val"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(
        "import penstock as ps\n"
        "from penstock.extras.rl.verl import PromptsDataset\n"
        "class Mine(PromptsDataset):\n"
        "    def open_prompts(self, data_files, config):\n"
        "        options = dict(config.get('own') or {})\n"
        "        if config.get('filtered'):\n"
        "            options |= {'filter': self.prompt_filter(), 'num_proc': 1}\n"
        "        return ps.Prompts(ps.open(data_files[0], cache_dir=config.cache_dir), seed=3, **options)\n"
    )

    def make(
        *, part: str = "train", use_v1: bool = True, tokenizer: Any = None, **changes: Any
    ) -> StatefulDataLoader:
        data = {
            "train_files": str(tmp_path / "train.jsonl"),
            "val_files": [str(tmp_path / "val.jsonl")],
            "shuffle": True,
            "seed": 1,
            "dataloader_num_workers": 0,
            "cache_dir": str(tmp_path / "cache"),
            "filter_overlong_prompts": False,
            "custom_cls": {"path": str(tmp_path / "mine.py"), "name": "Mine"},
            **changes,
        }
        config = OmegaConf.create({"data": data, "trainer": {"use_v1": use_v1}})
        most = config.data.get("train_max_samples", -1)
        dataset = create_rl_dataset(
            config.data[f"{part}_files"], config.data, tokenizer, None, max_samples=most
        )
        return StatefulDataLoader(
            dataset=dataset,
            batch_size=BATCH,
            drop_last=part == "train",
            num_workers=0,
            collate_fn=collate_fn,
            sampler=create_rl_sampler(config.data, dataset),
        )

    return make


def train(loader: StatefulDataLoader, *, steps: int, is_async: bool = False):
    """Yield what each step trains, and the state that is saved after it; an asynchronous trainer has fetched the next batch by then."""
    batches = iter(loader)

    def fetch() -> list[int]:
        nonlocal batches
        try:
            batch = next(batches)
        except StopIteration:  # as verl goes on
            batches = iter(loader)
            batch = next(batches)
        gold = [each["ground_truth"] for each in batch["reward_model"]]
        assert [each[0]["content"] for each in batch["raw_prompt"]] == [f"p{n}" for n in gold]
        return list(batch["penstock_ordinal"])

    ahead = [fetch()] if is_async else []
    for _ in range(steps):
        ahead.append(fetch())
        saved = io.BytesIO()
        torch.save(loader.state_dict(), saved)
        yield ahead.pop(0), saved.getvalue(), [n for batch in ahead for n in batch]


def resume(loader: StatefulDataLoader, state: bytes) -> StatefulDataLoader:
    """Load what was saved as verl does."""
    loader.load_state_dict(torch.load(io.BytesIO(state), weights_only=False))
    return loader


def test_stopped_after_any_step_and_resumed_it_trains_the_same_prompts(make_loader):
    straight = list(train(make_loader(), steps=14))
    assert [n for batch, _, _ in straight for n in batch] == list(
        range(14 * BATCH)
    )  # an incomplete batch is not lost
    for stop in range(1, 14):
        resumed = resume(make_loader(), straight[stop - 1][1])
        rest = [batch for batch, _, _ in train(resumed, steps=14 - stop)]
        assert rest == [batch for batch, _, _ in straight[stop:]]


def test_verl_4199_what_waits_in_the_queue_of_an_asynchronous_trainer_is_given_once(make_loader):
    """The trainer saves its queue and generates it again; the dataset gives what comes after."""
    straight = list(train(make_loader(), steps=6, is_async=True))
    trained, state, queue = (
        [n for batch, _, _ in straight for n in batch],
        straight[-1][1],
        straight[-1][2],
    )
    resumed = resume(make_loader(), state)
    given = [n for batch, _, _ in train(resumed, steps=3) for n in batch]
    assert Counter([*trained, *queue, *given]) == Counter(
        range(len(trained) + len(queue) + len(given))
    )


def test_a_lease_time_does_not_train_a_prompt_twice(make_loader):
    loader = make_loader(own={"lease": 1e-9})  # over before the next call
    assert [n for batch, _, _ in train(loader, steps=14) for n in batch] == list(range(14 * BATCH))
    assert loader.dataset.prompts.counts["done"] == 14 * BATCH and len(loader) == SIZE // BATCH


def test_validation_files_are_read_by_verl(make_loader):
    loader = make_loader(part="val")
    gold = [each["ground_truth"] for batch in loader for each in batch["reward_model"]]
    assert sorted(gold) == list(range(SIZE)) and loader.dataset.prompts is None


def test_mistakes_are_refused(make_loader, tmp_path):
    with pytest.raises(PlanError, match="epochs=2, expected endless ones"):
        make_loader(own={"epochs": 2})
    with pytest.raises(PlanError, match="dataloader_num_workers=8: workers fetch ahead"):
        make_loader(dataloader_num_workers=8)
    with pytest.raises(
        PlanError, match=r"trainer\.use_v1 is not true: verl's older trainer forgets the state"
    ):
        make_loader(use_v1=False)
    with pytest.raises(
        PlanError, match=r"train_max_samples=9 has no effect on Prompts; open a slice"
    ):
        make_loader(train_max_samples=9)
    with pytest.raises(
        PlanError,
        match=r"may be longer than data.max_prompt_length=512: open them with filter=self\.prompt_filter",
    ):
        make_loader(filter_overlong_prompts=True, max_prompt_length=512)
    with pytest.raises(PlanError, match="cannot be distinguished; name other files for validation"):
        make_loader(val_files=str(tmp_path / "train.jsonl"))
    with pytest.raises(
        PlanError, match=r"train.jsonl:\d+: the record has .* expected data.prompt_key 'question'"
    ):
        next(iter(make_loader(prompt_key="question")))


class Tokenizer:
    """A token for each character of the messages, and more for what the config says about the template."""

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        more = 10 if options.get("enable_thinking") else 0
        return [0] * (sum(len(message["content"]) for message in messages) + more)


def test_m2_prompts_are_left_out_as_verl_counts_their_tokens(make_loader, tmp_path):
    """M2, relative: verl counts with data.apply_chat_template_kwargs and its tools, which no store knows."""
    settings = {
        "filter_overlong_prompts": True,
        "max_prompt_length": 12,
        "apply_chat_template_kwargs": {"enable_thinking": True},
        "tokenizer": Tokenizer(),
    }
    ours = make_loader(filtered=True, **settings).dataset
    theirs = make_loader(part="val", filter_overlong_prompts_workers=None, **settings).dataset
    assert len(ours) == len(theirs) == 10  # p0 to p9
    rows = [ours[0]["raw_prompt"] for _ in range(10)]
    own_rows = [theirs[number]["raw_prompt"] for number in range(10)]
    assert sorted(row[0]["content"] for row in rows) == [row[0]["content"] for row in own_rows]
    assert ours.prompts.filtered.total() == SIZE - 10
    unfiltered = make_loader(
        own={"shuffle": False}, **{**settings, "filter_overlong_prompts": False}
    )
    assert len(unfiltered.dataset) == SIZE


def test_m2_an_overlong_prompt_is_refused_by_name(make_loader):
    """M2, relative: a class of the user's may open Prompts without verl's filter."""
    dataset = make_loader(
        filtered=True, filter_overlong_prompts=True, max_prompt_length=2, tokenizer=Tokenizer()
    ).dataset
    dataset._is_short = lambda record: False
    with pytest.raises(
        PlanError, match=r"train\.jsonl:\d+: the prompt is longer than data\.max_prompt_length=2"
    ):
        dataset[0]


def test_m2_an_order_that_the_config_does_not_ask_for_is_said(make_loader, caplog):
    """M2, relative: the numbers of verl's sampler are not used, so data.shuffle and data.seed decide nothing."""
    make_loader(shuffle=False)
    assert (
        "open_prompts has shuffle=True, which is used; the config has data.shuffle=False"
        in caplog.text
    )
    caplog.clear()
    make_loader(shuffle=True, seed=1)
    assert "open_prompts has seed=3, which is used; the config has data.seed=1" in caplog.text
