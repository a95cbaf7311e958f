"""What `ps.Prompts` takes, gives and refuses; and the accidents of other frameworks, by the numbers of their issues."""

import inspect
import json
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

import penstock as ps
from penstock import options
from penstock.errors import (
    LeaseError,
    PenstockError,
    PlanError,
    PlanMismatch,
    RecipeError,
    SourceError,
)


def source(count: int = 100) -> object:
    return ps.open([{"id": n} for n in range(count)])


def resumed(prompts: ps.Prompts, state: str, count: int = 100, **options: object) -> ps.Prompts:
    """What a new process has after loading the checkpoint."""
    fresh = ps.Prompts(source(count), **options)
    fresh.load_state_dict(json.loads(state))
    return fresh


# What others have lost


def test_nemo_rl_3599_prompts_in_flight_at_a_restore_are_given_again_the_long_ones_too():
    """There, 30 % of the data reached was skipped, and those were the long rollouts."""
    prompts, trained, lengths = (
        ps.Prompts(source(1000), epochs=1),
        [],
        {n: n % 97 for n in range(1000)},
    )
    flying: list[ps.Prompts] = []
    for restart in range(200):
        flying += prompts.take(24 - len(flying))
        flying.sort(key=lambda prompt: lengths[prompt.record["id"]])
        short, flying = flying[:8], flying[8:]  # the short ones finish first
        prompts.done(short)
        trained += [prompt.record["id"] for prompt in short]
        if restart % 5 == 4:
            prompts, flying = resumed(prompts, json.dumps(prompts.state_dict()), 1000, epochs=1), []
    assert prompts.finished
    assert Counter(trained) == Counter(range(1000))


def test_openrlhf_1322_prompts_that_were_oversampled_and_not_trained_survive_a_checkpoint():
    prompts = ps.Prompts(source(), epochs=1)
    generated = prompts.take(48)
    kept, untrained = (
        generated[:32],
        generated[32:],
    )  # a step needs 32, the rest waits for the next one
    assert prompts.accept(generated) == [each.ordinal for each in generated]
    prompts.done(kept)
    again = resumed(prompts, json.dumps(prompts.state_dict()), epochs=1)
    first = again.take(16)
    assert [(each.ordinal, each.record, each.attempt) for each in first] == [
        (e.ordinal, e.record, 1) for e in untrained
    ]


def test_verl_4199_prompts_in_pending_and_result_queues_survive_a_checkpoint():
    prompts = ps.Prompts(source(), epochs=1)
    pending, cancelled, results = prompts.take(10), prompts.take(10), prompts.take(10)
    prompts.back(cancelled)
    prompts.accept(results)
    again = resumed(prompts, json.dumps(prompts.state_dict()), epochs=1)
    given = again.take(31)
    assert [each.ordinal for each in given] == list(range(31))
    assert {each.ordinal: each.record for each in given[:30]} == {
        e.ordinal: e.record for e in [*pending, *cancelled, *results]
    }


def test_vime_324_partial_rollouts_in_the_buffer_survive_a_checkpoint_with_their_notes():
    prompts = ps.Prompts(source(), epochs=1)
    partial = prompts.take(4)
    prompts.back(partial, note={"file": "partial-7.pt", "weights": 12})
    again = resumed(prompts, json.dumps(prompts.state_dict()), epochs=1)
    given = again.take(5)
    assert [each.record for each in given[:4]] == [each.record for each in partial]
    assert [each.note for each in given] == [{"file": "partial-7.pt", "weights": 12}] * 4 + [None]


# Leases


def test_a_worker_that_is_too_late_does_not_count_and_the_error_names_who_has_the_prompt():
    now = [0.0]
    prompts = ps.Prompts(source(), lease=60, clock=lambda: now[0])
    slow = prompts.take(3, to="slow")
    now[0] = 30
    assert prompts.renew(slow[2]) == [2]
    now[0] = 61
    assert prompts.accept(slow[0]) == [0]  # late, but not leased again
    (given,) = prompts.take(1, to="quick")
    assert (given.ordinal, given.attempt) == (1, 1)
    assert prompts.accept(slow) == [0, 2]
    with pytest.raises(
        LeaseError,
        match="done: prompt 1 was given again, to 'quick' as attempt 1, so this lease is over",
    ):
        prompts.done(slow)
    prompts.done([slow[0], given, slow[2]])
    assert prompts.counts["frontier"] == 3


def test_each_mistake_with_an_acknowledgement_is_an_error_that_changes_nothing():
    prompts = ps.Prompts(source(), epochs=1)
    with pytest.raises(LeaseError, match="done: prompt 0 was never taken: none was"):
        prompts.done(0)
    taken = prompts.take(4)
    before = prompts.state_dict()
    with pytest.raises(LeaseError, match="done: prompt 1 is named twice"):
        prompts.done([0, 1, 1])
    with pytest.raises(PlanError, match="ordinal is 'x', expected a whole number"):
        prompts.done(["x"])
    with pytest.raises(
        LeaseError, match=r"the note has [\d,]+ bytes, expected at most 4,096; write a file"
    ):
        prompts.back(taken, note="x" * 5000)
    with pytest.raises(LeaseError, match="why is None, expected a short name"):
        prompts.drop(taken, why=None)
    assert prompts.state_dict() == before
    prompts.back(taken[0])
    with pytest.raises(LeaseError, match="done: prompt 0 was given back and not taken since"):
        prompts.done(np.int64(0))


def test_reasons_are_names_and_not_sentences_with_numbers():
    prompts = ps.Prompts(source())
    for n in range(16):
        prompts.drop(prompts.take(1), why=f"reward {n}")
    with pytest.raises(
        LeaseError,
        match=r"why='reward 16' would be reason number 17, expected at most 16: reward 0, reward 1",
    ):
        prompts.drop(prompts.take(1), why="reward 16")


def test_over_sampling_is_taking_until_enough_are_done():
    prompts, kept = ps.Prompts(source(), epochs=1), []
    while len(kept) < 32 and (taken := prompts.take(32 - len(kept))):
        varied = [each for each in taken if each.record["id"] % 3]
        prompts.drop([each for each in taken if each not in varied], why="zero_variance")
        kept += varied
    prompts.done(kept)
    assert prompts.counts["done"] == 32 and prompts.counts["frontier"] == prompts.counts["next"]


def test_the_end_is_empty_and_an_endless_run_goes_on_with_another_order():
    prompts = ps.Prompts(source(10), epochs=1)
    taken = prompts.take(100)
    assert len(taken) == 10 and prompts.take(1) == [] and not prompts.finished
    prompts.done(taken)
    assert prompts.finished
    endless = [each.record["id"] for each in ps.Prompts(source(10)).take(30)]
    epochs = [endless[n : n + 10] for n in (0, 10, 20)]
    assert (
        all(sorted(each) == list(range(10)) for each in epochs)
        and epochs[0] != epochs[1] != epochs[2]
    )
    assert endless[:10] == [each.record["id"] for each in taken]


def test_more_epochs_may_be_asked_for_at_a_resume_and_fewer_are_refused():
    prompts = ps.Prompts(source(10), epochs=2)
    prompts.done(prompts.take(15))
    state = json.dumps(prompts.state_dict())
    assert [each.ordinal for each in resumed(prompts, state, 10, epochs=3).take(99)] == list(
        range(15, 30)
    )
    with pytest.raises(
        PlanMismatch, match="the state has given 15 prompts, and this run has 10; raise epochs"
    ):
        resumed(prompts, state, 10, epochs=1)
    with pytest.raises(PlanMismatch, match="this is not a state of Prompts"):
        prompts.load_state_dict(ps.Loader(source(10), batch_size=1).state_dict())


# Data


@pytest.fixture
def math(tmp_path: Path, tokenizer_path: Path) -> Path:
    """A folder with questions, of which one is long, and a recipe."""
    rows = [
        {"prompt": f"what is {n} {'far away ' * (200 if n == 7 else 0)}", "gold": n}
        for n in range(20)
    ]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = f"data: math.jsonl\ntokenizer: {tokenizer_path}\ntemplate: prompt\nmax_length: 64\nseed: 4\ncache_dir: cache\nnum_proc: 1\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "records.yaml").write_text(
        "data: math.jsonl\ntemplate: records\nseed: 4\nbatch_size: 4\ncache_dir: cache\n"
    )
    return tmp_path


def test_a_recipe_gives_rendered_prompts_and_counts_those_that_are_too_long(
    math, tokenizer_path, caplog
):
    with caplog.at_level(logging.WARNING, "penstock"):
        prompts = ps.Prompts(math / "recipe.yaml", repeats=4, epochs=1)
    assert (
        "1 samples dropped" in caplog.text
        or "overlong" in caplog.text
        or "longer than max_length" in caplog.text
    )
    assert prompts.prompts_per_epoch == 19
    taken = prompts.take(99)
    assert sorted(each.record["gold"] for each in taken) == [n for n in range(20) if n != 7]
    truth = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path / "tokenizer.json"))
    for each in taken:
        assert (
            each.input_ids is not None
            and each.input_ids.tolist() == truth(each.record["prompt"])["input_ids"]
        )
        assert each.where.line == each.record["gold"] + 1 and each.repeats == 4


def test_a_recipe_of_records_serves_records_as_prompts_and_as_batches(math):
    prompts = ps.Prompts(math / "records.yaml", epochs=1)
    taken = prompts.take(99)
    assert sorted(each.record["gold"] for each in taken) == list(range(20))
    assert all(each.input_ids is None for each in taken)
    batches = list(ps.load(math / "records.yaml"))
    assert [record for batch in batches for record in batch["records"]] == [
        each.record for each in taken
    ]


def test_records_and_tokens_in_one_recipe_are_refused(math, tokenizer_path):
    (math / "both.yaml").write_text(
        f"data:\n  a: {{path: math.jsonl, template: records}}\n  b: {{path: math.jsonl, template: prompt}}\n"
        f"tokenizer: {tokenizer_path}\nbatch_size: 2\n"
    )
    with pytest.raises(RecipeError, match="dataset 'a' has template: records, and 'b' has another"):
        ps.Prompts(math / "both.yaml")


def test_what_is_no_prompt_is_refused(math, tokenizer_path):
    rows = [{"prompt": "fox", "completion": "dog"}]
    options = {"tokenizer": tokenizer_path, "cache_dir": math / "cache", "num_proc": 1}
    store = ps.prepare(rows, template="prompt_completion", **options)
    with pytest.raises(
        PlanError, match="does not hold prompts, expected a store made with template='prompt'"
    ):
        ps.Prompts(store)
    with pytest.raises(PlanError, match="max_length=9 counts tokens, and plain records have none"):
        ps.Prompts(source(), max_length=9)
    with pytest.raises(
        PlanError,
        match=r"there are no prompts: .*longer than max_length|there are no prompts: .*overlong",
    ):
        ps.Prompts(math / "recipe.yaml", max_length=1)
    with pytest.raises(PlanError, match="packing='best_fit' has no effect on prompts"):
        ps.Prompts(source(), packing="best_fit")
    with pytest.raises(PlanError, match="on_overlong='split' would cut prompts"):
        ps.Prompts(source(), on_overlong="split")
    with pytest.raises(PlanError, match="lease is 0, expected more than 0 seconds"):
        ps.Prompts(source(), lease=0)
    with pytest.raises(PlanError, match="repeats is 0"):
        ps.Prompts(source(), repeats=0)


def test_a_record_that_cannot_be_read_stays_untaken(math):
    (math / "bad.jsonl").write_text('{"id": 0}\n{"id": \n')
    prompts = ps.Prompts(ps.open(math / "bad.jsonl", cache_dir=math / "cache"), shuffle=False)
    with pytest.raises(SourceError, match=r"bad.jsonl:2"):
        prompts.take(2)
    assert prompts.counts["leased"] == 0
    assert [each.record["id"] for each in prompts.take(1)] == [0]


def test_a_worker_that_renews_does_not_end_what_the_trainer_has_accepted() -> None:
    now = [0.0]
    prompts = ps.Prompts(
        ps.open([{"id": n} for n in range(4)]), epochs=1, lease=10.0, clock=lambda: now[0]
    )
    taken = prompts.take(2)
    prompts.accept(taken)
    assert prompts.renew(taken) == [0, 1]  # a heartbeat that comes late
    now[0] = 100.0  # a long optimizer step
    assert [each.ordinal for each in prompts.take(4)] == [2, 3]
    prompts.done(taken)


def test_a_clock_that_goes_back_does_not_give_a_prompt_again_early() -> None:
    now = [100.0]
    prompts = ps.Prompts(
        ps.open([{"id": n} for n in range(2)]), epochs=1, lease=10.0, clock=lambda: now[0]
    )
    taken = prompts.take(2)
    now[0] = 50.0
    assert prompts.renew(taken) == [0, 1] and prompts.take(2) == []
    now[0] = 109.0
    assert prompts.take(2) == []
    now[0] = 110.0
    assert [each.ordinal for each in prompts.take(2)] == [0, 1]


def test_a_rollout_from_before_a_restart_is_known_as_such() -> None:
    rows = [{"id": n} for n in range(4)]
    old = ps.Prompts(ps.open(rows))
    before, state = old.take(4), old.state_dict()
    new = ps.Prompts(ps.open(rows))
    new.load_state_dict(state)
    now = new.take(4)
    assert new.accept(before) == [] and new.accept(now) == [0, 1, 2, 3]
    with pytest.raises(LeaseError, match="prompt 0 was given again"):
        new.done(before)


def test_the_signature_shows_every_keyword() -> None:
    written = options.PromptOptions.__annotations__
    assert written.keys() <= inspect.signature(ps.Prompts).parameters.keys()
    assert all(f"{name}: " in str(ps.Prompts.__init__.__doc__) for name in written)


# What the reward compares with


def test_label_key_of_a_prompt_is_the_rewards_truth_and_not_an_answer(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"hello {n}", "gold": {"answer": n}} for n in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = f"data: p.jsonl\ntokenizer: {tokenizer_path}\ncache_dir: cache\n"
    recipe = tmp_path / "rl.yaml"
    recipe.write_text(f"{base}template: prompt\nlabel_key: gold\n")
    taken = ps.Prompts(str(recipe), epochs=1).take(6)
    assert len(taken) == 6
    for prompt in taken:
        assert prompt.label == prompt.record["gold"]
        assert prompt.input_ids is not None
    recipe.write_text(f"{base}template: prompt\n")
    plain = ps.Prompts(str(recipe), epochs=1)
    assert [prompt.label for prompt in plain.take(6)] == [None] * 6
    assert plain.stores[0].fingerprint == ps.Prompts(str(recipe)).stores[0].fingerprint
    recipe.write_text(f"{base}template: prompt\nreward_key: truth\n")
    with pytest.raises(PenstockError, match=r"reward_key is 'truth'.*it has prompt, gold"):
        ps.Prompts(str(recipe), epochs=1).take(1)
    recipe.write_text(f"{base}template: prompt\nreward_key: truth\nrefresh: true\n")
    with pytest.raises(PenstockError, match=r"p\.jsonl:1.*reward_key is 'truth'"):
        ps.Prompts(str(recipe), epochs=1)
    in_set = "data:\n  math: {path: p.jsonl, template: prompt, label_key: gold}\n"
    recipe.write_text(f"{in_set}tokenizer: {tokenizer_path}\ncache_dir: cache\n")
    assert ps.Prompts(str(recipe), epochs=1).take(1)[0].label is not None


def test_label_key_of_other_templates_is_the_answer() -> None:
    recipe = ps.Recipe.of("a.jsonl", tokenizer="t", template="query_response", label_key="a")
    assert dict(recipe.settings)["output_key"] == "a"


def test_prompts_of_both_names_are_one_class_and_take_recipes(tmp_path: Path) -> None:
    from penstock.rl import Prompts

    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: a.jsonl\ntemplate: records\nepochs: 2\n")
    assert Prompts is ps.Prompts
    prompts = Prompts(recipe)
    assert prompts.epochs == 2 and len(prompts.take(9)) == 4


def test_a_part_is_of_a_recipe() -> None:
    with pytest.raises(PlanError, match="part='eval' is of a recipe"):
        ps.Prompts(source(), part="eval")
