"""max_steps, max_tokens, parts of an epoch and tokens_per_step, as users meet them: `len`, resumes, other ranks, changes, refusals."""

import json
import pickle

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError

from .arrays import Loader

WORDS = ["fox", "dog", "runs", "over", "away", "lazy", "home", "and"]
OPTIONS = {"batch_size": 2, "max_length": 48}
UNPACKED = {**OPTIONS, "packing": "none", "batch_size": 16}


def make_store(tokenizer_path, folder, seed):
    rng = np.random.default_rng(seed)
    records = [
        {"text": " ".join(rng.choice(WORDS, 1 + rng.integers(30)).tolist())} for _ in range(90)
    ]
    return ps.prepare(
        records, tokenizer=tokenizer_path, template="text", cache_dir=folder, num_proc=1
    )


@pytest.fixture(scope="module")
def store(tokenizer_path, tmp_path_factory):
    return make_store(tokenizer_path, tmp_path_factory.mktemp("cache"), 5)


@pytest.fixture(scope="module")
def other(tokenizer_path, tmp_path_factory):
    return make_store(tokenizer_path, tmp_path_factory.mktemp("cache"), 6)


def spans(batch) -> list:
    return batch.rows.spans.tolist()


def tokens(batch) -> int:
    return int((batch.rows.spans["stop"] - batch.rows.spans["start"]).sum())


BUDGETS = {
    "steps": {"max_steps": 7},
    "steps over epochs": {"max_steps": 60, "epochs": None},
    "tokens": {"max_tokens": 700},
    "tokens over epochs": {"max_tokens": 5000, "epochs": None},
    "part": {"epochs": 0.5},
    "parts": {"epochs": 2.25},
    "several": {"max_tokens": 3000, "epochs": 3, "max_steps": 20},
}


@pytest.mark.parametrize("last_step", ["pad", "drop", "wrap"])
@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_is_exact_and_goes_on_after_a_resume(store, name, last_step):
    budget = BUDGETS[name]
    options = {**OPTIONS, **budget, "last_step": last_step}
    if last_step == "wrap" and "epochs" not in budget:
        options["epochs"] = 2
    loader = Loader(store, **options)
    length = len(loader)
    whole = [spans(batch) for batch in loader]
    assert length == len(whole) > 0
    assert loader.finished and loader.steps_left == 0 and len(loader) == length
    counters = loader.counters
    assert counters.samples_in == counters.samples_out + counters.samples_dropped.total()
    assert counters.tokens_out <= budget.get("max_tokens", counters.tokens_out)
    for cut in (0, 1, length // 2, length):
        begun = Loader(store, **options)
        batches = iter(begun)
        for _ in range(cut):
            next(batches)
        rest = Loader(store, **options)
        rest.load_state_dict(json.loads(json.dumps(begun.state_dict())))
        assert len(rest) == length and rest.steps_left == length - cut
        assert [spans(batch) for batch in rest] == whole[cut:]


@pytest.mark.parametrize(
    "budget", [{"max_tokens": 5000, "epochs": None}, {"epochs": 1.5}, {"max_tokens": 700}]
)
def test_other_ranks_have_the_same_rows_within_a_budget(store, budget):
    whole = [span for batch in Loader(store, **OPTIONS, **budget) for span in spans(batch)]
    begun = Loader(store, **OPTIONS, **budget)
    batches = iter(begun)
    first = [span for _ in range(3) for span in spans(next(batches))]
    found = list(first)
    for rank in range(3):
        loader = Loader(store, **OPTIONS, **budget, rank=rank, world_size=3)
        loader.load_state_dict(begun.state_dict())
        found += [span for batch in loader for span in spans(batch)]
    assert sorted(found) == sorted(whole)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"max_steps": 5}, {"max_steps": 12}),
        ({"max_tokens": 700}, {"max_tokens": 1500}),
        ({"epochs": 0.5}, {"epochs": 1}),
        ({"max_tokens": 700}, {}),
    ],
)
def test_a_finished_run_goes_on_with_a_larger_budget(store, before, after):
    begun = Loader(store, **OPTIONS, **before)
    found = [span for batch in begun for span in spans(batch)]
    longer = Loader(store, **OPTIONS, **after)
    longer.load_state_dict(begun.state_dict())
    found += [span for batch in longer for span in spans(batch)]
    assert found == [span for batch in Loader(store, **OPTIONS, **after) for span in spans(batch)]


def test_skipped_steps_are_part_of_a_budget(store):
    loader = Loader(store, **OPTIONS, max_steps=8, skip_steps=[2, 7])
    assert len(loader) == 8 and loader.steps_left == 6
    assert [batch.step for batch in loader] == [0, 1, 3, 4, 5, 6]
    assert loader.counters.samples_dropped["skipped"] > 0
    with pytest.raises(PlanError, match="step 8 does not exist"):
        loader.look_up(8)


@pytest.mark.parametrize(
    "budget", [{"max_tokens": 3000, "epochs": None}, {"max_steps": 30, "epochs": None}]
)
def test_a_changed_mixture_keeps_the_budget(store, other, budget):
    def open_loader(first, second):
        mixture = {"a": (store, first), "b": (other, second)}
        return Loader(mixture, **OPTIONS, **budget)

    loader = open_loader(0.7, 0.3)
    batches = iter(loader)
    found = [next(batches) for _ in range(10)]
    loader.change_mixture({"a": (store, 0.2), "b": (other, 0.8)})
    found += [next(batches) for _ in range(2)]
    state = loader.state_dict()
    rest = list(batches)
    assert len(found) + len(rest) == len(loader)
    assert sum(map(tokens, found + rest)) <= budget.get("max_tokens", 10**9)
    resumed = open_loader(0.2, 0.8)
    resumed.load_state_dict(state)
    assert [spans(batch) for batch in resumed] == [spans(batch) for batch in rest]


@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_tokens_per_step_is_never_exceeded(store, ranks, padding_free):
    options = {**UNPACKED, "tokens_per_step": 300, "padding_free": padding_free}
    loaders = [Loader(store, **options, rank=rank, world_size=ranks) for rank in range(ranks)]
    length = len(loaders[0])
    of_ranks = [list(loader) for loader in loaders]
    assert {len(batches) for batches in of_ranks} == {length}
    sizes = set()
    for batches in zip(*of_ranks, strict=True):
        assert sum(batch["input_ids"].size for batch in batches) <= 300
        assert len({len(batch.rows) for batch in batches}) == 1
        sizes.add(len(batches[0].rows))
    assert ranks > 1 or len(sizes) > 2  # rows of a step vary
    found = sorted(span for batches in of_ranks for batch in batches for span in spans(batch))
    plain = Loader(store, **UNPACKED)
    assert found == sorted(span for batch in plain for span in spans(batch))
    for cut in (1, length // 2):
        begun = Loader(store, **options, rank=0, world_size=ranks)
        batches = iter(begun)
        for _ in range(cut):
            next(batches)
        rest = Loader(store, **options, rank=0, world_size=ranks)
        rest.load_state_dict(begun.state_dict())
        assert rest.steps_left == length - cut
        assert [spans(batch) for batch in rest] == [spans(each) for each in of_ranks[0][cut:]]


def test_a_pickled_loader_and_worker_processes_keep_a_budget(store):
    torch_data = pytest.importorskip("torch.utils.data")
    options = {**OPTIONS, "max_tokens": 900, "epochs": None}
    whole = [spans(batch) for batch in Loader(store, **options)]
    run = pickle.loads(pickle.dumps(Loader(store, **options).run))
    assert [step.step.rows.spans.tolist() for step in run.steps()] == whole
    dataset = ps.Loader(store, **options).as_dataset()
    batches = torch_data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert len(batches) == len(whole)
    assert [spans(batch) for batch in batches] == whole


def test_the_rows_of_a_map_dataset_end_with_the_budget(store):
    _, sampler = ps.Loader(store, **OPTIONS, max_steps=4).as_map_dataset()
    assert len(sampler) == len(list(sampler)) == 8
    assert len(list(sampler)) == 8  # the next pass
    with pytest.raises(PlanError, match="each step has a size of its own"):
        ps.Loader(store, **UNPACKED, tokens_per_step=200).as_map_dataset()


def test_worst_step_names_the_largest_batches(store):
    for ranks in (1, 2):
        loaders = [Loader(store, **UNPACKED, rank=rank, world_size=ranks) for rank in range(ranks)]
        worst = loaders[0].worst_step()
        sizes = {}
        lengths = {}
        for rank, loader in enumerate(loaders):
            for batch in loader:
                rows = [tokens_of(batch, n) for n in range(len(batch.rows))]
                sizes[batch.step, rank] = batch["input_ids"].size
                lengths[batch.step, rank] = max(rows, default=0)
        assert worst.tokens.amount == max(sizes.values())
        assert sizes[worst.tokens.step, worst.tokens.rank] == worst.tokens.amount
        assert worst.row.amount == max(lengths.values())
        assert lengths[worst.row.step, worst.row.rank] == worst.row.amount
        assert worst.media is None and set(worst.steps) == {worst.tokens.step, worst.row.step}


def tokens_of(batch, row: int) -> int:
    found = batch.rows[row]
    return int((found["stop"] - found["start"]).sum())


def test_a_batch_is_made_without_moving_the_loader(store):
    loader = Loader(store, **OPTIONS)
    batches = list(Loader(store, **OPTIONS))
    made = loader.make_batch(5)
    assert made.step == 5 and np.array_equal(made["input_ids"], batches[5]["input_ids"])
    assert [spans(batch) for batch in loader] == [spans(batch) for batch in batches]
    second = loader.worst_step()  # of the next pass: this one is over
    assert min(second.steps) >= len(batches)
    made = [spans(loader.make_batch(step)) for step in second.steps]
    by_step = {batch.step: spans(batch) for batch in loader}
    assert made == [by_step[step] for step in second.steps]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0, expected a whole number ≥ 1"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"epochs": -0.5}, "epochs is -0.5, expected a number ≥ 0"),
        ({"epochs": float("nan")}, "epochs is nan"),
        ({"epochs": "1"}, "epochs is '1'"),
        ({"epochs": 0.5, "per_epoch": True}, "per_epoch ends each iteration with its epoch"),
        ({"max_steps": 3, "per_epoch": True}, "per_epoch ends each iteration with its epoch"),
        ({"max_tokens": 99, "last_step": "repeat"}, "repeated rows would exceed it"),
        ({"tokens_per_step": 99}, "packing='mixed_fit' fills rows up to max_length"),
        ({"tokens_per_step": 47, "packing": "none"}, "tokens_per_step=47 is less than 48"),
        (
            {"tokens_per_step": 99, "packing": "none", "rank": 0, "world_size": 3},
            "tokens_per_step=99 is less than 144",
        ),
        (
            {"tokens_per_step": 99, "packing": "none", "last_step": "wrap"},
            "a step ends where its tokens do",
        ),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(store, options, message):
    with pytest.raises(PlanError, match=message):
        Loader(store, **{**OPTIONS, **options})


def test_a_budget_below_the_first_row_says_so(store):
    with pytest.raises(PlanError, match="max_tokens=1 is less than its first step has"):
        list(Loader(store, **OPTIONS, max_tokens=1))


def test_a_stream_ends_with_tokens_or_steps(tokenizer_path, tmp_path):
    def endless():
        while True:
            yield {"text": "the fox runs over the dog"}

    def open_loader(**budget):
        streamed = ps.prepare(
            endless(),
            tokenizer=tokenizer_path,
            template="text",
            cache_dir=tmp_path / str(budget),
            background=True,
        )
        return Loader(streamed, **OPTIONS, shuffle=False, epochs=budget.pop("epochs", 1), **budget)

    assert len(list(open_loader(max_steps=5))) == 5
    assert sum(map(tokens, open_loader(max_tokens=500, epochs=None))) in range(400, 501)
    with pytest.raises(PlanError, match="a stream does not say so before its end"):
        open_loader(epochs=0.5)


def test_records_have_no_tokens_to_count():
    records = ps.open([{"a": number} for number in range(10)])
    with pytest.raises(PlanError, match="plain records have none; pass max_steps"):
        ps.Loader(records, batch_size=2, max_tokens=5)
    assert len(list(ps.Loader(records, batch_size=2, max_steps=3))) == 3
    assert len(list(ps.Loader(records, batch_size=2, epochs=1.5))) == 8


@pytest.mark.parametrize(
    ("budget", "shuffle"),
    [
        ({"max_steps": 7, "epochs": None}, True),
        ({"max_steps": 7, "epochs": None}, False),
        ({"max_tokens": 2500, "epochs": None}, True),
        ({"max_tokens": 700, "epochs": None}, True),
    ],
)
def test_restart_goes_back_to_the_start_of_a_pass_that_a_budget_ended(store, budget, shuffle):
    """It went to epoch 0, whichever pass it was."""
    loader = Loader(store, **OPTIONS, **budget, shuffle=shuffle)
    first = [spans(batch) for batch in loader]
    second = [spans(batch) for batch in loader]
    assert second != first
    loader.restart()
    assert [spans(batch) for batch in loader] == second
    loader.restart()
    batches = iter(loader)
    next(batches)
    loader.restart()
    assert [spans(batch) for batch in loader] == second


def test_restart_refuses_a_pass_that_began_before_the_state(store):
    options = {**OPTIONS, "max_steps": 7, "epochs": None}
    begun = Loader(store, **options)
    list(begun)
    batches = iter(begun)
    next(batches)
    rest = Loader(store, **options)
    rest.load_state_dict(begun.state_dict())
    before = rest.state_dict()
    with pytest.raises(PlanError, match="cannot restart: this pass began at step 7"):
        rest.restart()
    assert rest.state_dict() == before
    assert len(list(rest)) == 6


@pytest.mark.parametrize("name", ["epochs", "max_steps", "max_tokens", "tokens_per_step"])
def test_a_budget_that_no_run_can_reach_is_refused_by_name(store, name):
    """max_steps=2**63 was a ValueError of islice at the first step, and epochs=1e308 never answered."""
    with pytest.raises(PlanError, match=f"{name} is .*expected at most.*write null"):
        Loader(store, **{**UNPACKED, name: 2**63})


def test_a_change_that_ends_a_part_of_an_epoch_at_once_keeps_the_delivered_steps_in_len(
    store, other
):
    """len was less than the number of delivered steps: the smaller epoch of the new mixture had fewer rows in its half."""
    mixture = {"a": store, "b": other}
    options = {**UNPACKED, "batch_size": 4, "epochs": 0.5, "block": 16}
    loader = Loader(mixture, **options)
    batches = iter(loader)
    delivered = [next(batches) for _ in range(len(loader) - 1)]
    loader.change_mixture({"b": other})
    delivered += list(batches)
    assert len(loader) == len(delivered)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 16},
        {"batch_size": 16, "align": 8, "pad_to_multiple_of": 12},
        {"batch_size": 16, "padding": "max_length"},
        {"tokens_per_step": 200, "align": 8, "padding_free": True},
        {"tokens_per_step": 200, "pad_to_multiple_of": 8},
        {"packing": "mixed_fit", "batch_size": 3, "padding_free": True, "align": 8},
    ],
)
def test_the_worst_step_counts_the_padding_of_its_batch(tokenizer_path, tmp_path, options):
    """A last step with few rows is padded to as many as the others, and was counted without them."""
    texts = [" ".join(["fox"] * (9 + number % 5)) for number in range(32)]
    texts.append(" ".join(["fox"] * 16))
    store = ps.prepare(
        [{"text": text} for text in texts],
        tokenizer=tokenizer_path,
        template="text",
        cache_dir=tmp_path,
        num_proc=1,
    )
    loader = Loader(store, **{**UNPACKED, "shuffle": False, **options})
    worst = loader.worst_step()
    sizes = {batch.step: batch["input_ids"].size for batch in loader}
    assert worst.tokens.amount == max(sizes.values()) == sizes[worst.tokens.step]
