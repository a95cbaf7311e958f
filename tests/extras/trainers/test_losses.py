"""Losses, labels and counts of an evaluation are what the Trainer itself reports, or better; nothing is invented, dropped or cut unseen."""

import json

import pytest

from .conftest import make_folder, need, run_job


@pytest.fixture(scope="module")
def found(tmp_path_factory, tokenizer_path):
    need("transformers", "accelerate", "lightning")
    folder = make_folder(tmp_path_factory.mktemp("losses"), tokenizer_path)
    run_job("-m", "tests.extras.trainers.losses", folder)
    return json.loads((folder / "losses.json").read_text())


def test_no_loss_is_reported_where_the_trainer_itself_reports_none(found):
    """T2: it was 0.0, which early stopping and load_best_model_at_end took for the best loss."""
    assert found["no labels"]["stock"] is False
    assert found["no labels"]["ours"] is False
    (said,) = found["no labels"]["said"]
    assert "the model's forward names no labels; name the labels in TrainingArguments" in said
    assert found["no labels"]["named"] > 1


def test_an_evaluation_without_a_target_has_no_number_as_its_loss(found):
    assert found["no targets"] is True


def test_the_loss_of_a_users_own_prediction_step_stays(found):
    assert found["a step of the user's own"] == 2.0


@pytest.mark.parametrize("labels", ["rows", "tuples"])
def test_labels_of_any_shape_and_name_are_weighted_by_their_number(found, labels):
    """T2: labels of shape (rows,) raised an IndexError, label_names=["y"] a KeyError."""
    evaluated, expected = found[f"labels: {labels}"]
    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert found["trained on rows"] > 0


def test_labels_reach_a_loss_of_the_users_own(found):
    """T8: they were removed where the model's forward does not name them."""
    expected, *losses = found["own losses"]
    assert losses == pytest.approx([expected] * 3, rel=1e-6)
    assert found["own loss trains"] > 1


def test_an_evaluation_that_would_drop_samples_unasked_is_refused(found):
    """T9: 29 of 41 samples were dropped, and one line of the log said so."""
    for name in ("overlong in accelerate", "overlong in lightning"):
        assert "18 of 89 samples of data are longer than max_length=32" in found[name]
    refused = found["overlong"]["refused"]
    assert "18 of 89 samples of data are longer than max_length=32" in refused
    assert "pass on_overlong='truncate' to cut them" in refused
    assert "pass on_overlong='drop' to leave them out on purpose" in refused


def test_cut_samples_are_a_metric_and_rates_count_what_was_evaluated(found):
    """T9: the rate counted dropped samples, too."""
    cut = found["overlong"]["cut"]
    assert cut["truncated"] == [18, 18] and cut["lost"] == [None, 0]
    assert cut["evaluated"] == pytest.approx(cut["samples"], rel=0.02)
    assert cut["steps"] == pytest.approx(cut["all_steps"], rel=0.02)
    assert cut["logged"]["eval_short_samples_truncated"] == 18
    dropped = found["overlong"]["dropped"]
    assert dropped["lost"] == [18, 18] and dropped["truncated"] == [None, 0]
    assert dropped["evaluated"] == pytest.approx(dropped["samples"] - 18, rel=0.02)
    assert dropped["logged"]["eval_short_samples_dropped"] == 18


def test_the_eval_set_of_a_recipe_cuts_overlong_samples_and_counts_them(found):
    assert found["overlong"]["recipe"] == 18
    truncated, steps, all_steps = found["overlong"]["predicted"]
    assert truncated == 18 and steps == pytest.approx(all_steps, rel=0.02)


def test_metrics_over_batches_get_their_result_with_the_last_batch(found):
    """A relative of T2: without it, batch_eval_metrics never asked for the result and reported none."""
    assert found["batch metrics"] == [False] * 22 + [True] and found["batch metric"] == 23


def test_a_checkpoint_within_a_step_does_not_lose_the_batches_of_that_step(found):
    """T6, in the Trainer: enable_jit_checkpoint saves after the batches were pulled and before the optimizer's step."""
    assert found["interrupted"] == [True, 6]


def test_saving_within_an_accumulation_group_is_warned_of(found):
    """T6: the group's gradients are lost, and its batches count as delivered."""
    (said,) = set(found["accelerate"]["within"])
    assert "is saved within a group of gradient_accumulation_steps=2 batches" in said
    assert "save where accelerator.sync_gradients is True" in said
    assert found["accelerate"]["after"] == []


def test_lightning_warns_of_it_too(found):
    last = found["lightning"]["last"]
    ends = {*range(3, last + 1, 4), last}
    assert found["lightning"]["warned"] == [step for step in range(last + 1) if step not in ends]


@pytest.mark.parametrize("where", ["train", "evaluate", "accelerate", "lightning"])
def test_a_model_with_a_smaller_vocabulary_is_refused_before_the_first_step(found, where):
    """N8: it ended in a bare IndexError."""
    assert "has embeddings for the ids 0 to 99 only" in found[f"small model in {where}"]
