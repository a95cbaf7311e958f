"""verl's data set and sampler in the real StatefulDataLoader, called as its synchronous trainer does.  verl does not install here."""

import importlib
import json
import sys
import types
from abc import abstractmethod
from collections import Counter
from types import SimpleNamespace

import pytest
from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as ps
from penstock.errors import PlanError

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it

SIZE, BATCH = 22, 4


class AbstractCurriculumSampler(Sampler[int]):
    """verl's interface."""

    @abstractmethod
    def __init__(self, data_source, data_config): ...
    @abstractmethod
    def update(self, batch): ...


@pytest.fixture
def adapter(monkeypatch):
    names = ("verl", "verl.experimental", "verl.experimental.dataset", "verl.experimental.dataset.sampler")
    modules = {name: types.ModuleType(name) for name in names}
    modules[names[-1]].AbstractCurriculumSampler = AbstractCurriculumSampler
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "penstock.integrations.verl", raising=False)
    yield importlib.import_module("penstock.integrations.verl")
    sys.modules.pop("penstock.integrations.verl", None)


def make_loader(adapter, **options):
    class Mine(adapter.PromptsDataset):
        def open_prompts(self, data_files, config):
            return ps.Prompts(
                ps.open([{"prompt": f"p{n}", "gold": n} for n in range(SIZE)]), seed=config["seed"], **options
            )

    dataset = Mine(data_files="x", tokenizer=None, processor=None, config={"seed": 3}, max_samples=-1)
    sampler = adapter.PromptsSampler(data_source=dataset, data_config={"seed": 3})
    return StatefulDataLoader(
        dataset, batch_size=BATCH, sampler=sampler, drop_last=True, num_workers=0, collate_fn=list
    )


def train(loader, *, steps, filtered=()):
    """A trainer: gets a batch, trains, saves after each step, then tells the sampler; yields the ordinals trained and the state."""
    while True:
        for batch in loader:
            kept = [row for row in batch if row["gold"] not in filtered]
            state = json.dumps(loader.state_dict()) if not filtered else None
            loader.sampler.update(
                SimpleNamespace(non_tensor_batch={"index": [row["index"] for row in kept for _ in range(2)]})
            )
            yield [row["index"] for row in kept], state
            steps -= 1
            if not steps:
                return


def test_stopped_after_any_step_and_resumed_it_trains_the_same_prompts(adapter):
    straight = list(train(make_loader(adapter), steps=14))
    assert [n for group, _ in straight for n in group] == list(range(14 * BATCH))  # an incomplete batch is not lost
    for stop in range(1, 14):
        resumed = make_loader(adapter)
        resumed.load_state_dict(json.loads(straight[stop - 1][1]))
        rest = [group for group, _ in train(resumed, steps=14 - stop)]
        assert rest == [group for group, _ in straight[stop:]]


def test_a_lease_time_does_not_train_a_prompt_twice(adapter):
    loader = make_loader(adapter, lease=1e-9)  # over before the next call
    assert [n for group, _ in train(loader, steps=14) for n in group] == list(range(14 * BATCH))


def test_every_record_comes_once_in_each_epoch_and_what_is_filtered_is_counted(adapter):
    loader = make_loader(adapter)
    trained = [n for group, _ in train(loader, steps=11, filtered=(3, 4)) for n in group]
    counts = loader.sampler.prompts.counts
    assert counts["dropped"] == {"not_trained": 4} and counts["done"] == len(trained) == 40
    assert max(Counter(trained).values()) == 1
    assert len(loader) == SIZE // BATCH


def test_mistakes_are_refused(adapter):
    with pytest.raises(PlanError, match="epochs=2, expected endless ones"):
        make_loader(adapter, epochs=2)
    with pytest.raises(
        PlanError, match=r"item 0 of PromptsDataset: expected a prompt; set data.sampler to PromptsSampler"
    ):
        make_loader(adapter).dataset[0]
    with pytest.raises(PlanError, match="dataloader_num_workers=8: workers fetch ahead"):
        adapter.PromptsSampler(make_loader(adapter).dataset, {"dataloader_num_workers": 8})
