"""Weights of messages become weights of their tokens, and stand in the batch where the labels stand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import PlanError, TemplateError
from penstock.templates import FunctionTemplate, open_template, open_tokenizer
from penstock.testing import check_template

SHARES = (0.25, None, 0, 1, 2.5)


def row(*weights: float | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    for number, weight in enumerate(weights):
        own = {} if weight is None else {"weight": weight}
        messages.append({"role": "user", "content": f"the fox {number}?"})
        messages.append({"role": "assistant", "content": f"dog {number} runs over", **own})
    return {"messages": messages}


@pytest.mark.parametrize("train_on", ["assistant", "last", ["assistant", "user"]])
def test_each_token_has_the_weight_of_its_message(tokenizer_path: Path, train_on: Any) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    weighted = open_template("messages", tokenizer, {"message_weights": True, "train_on": train_on})
    made = weighted.encode([row(*SHARES)])
    found = made.columns["weights"].values
    assert ((found > 0) == made.loss_mask).all()
    seen = set()
    for place, share in enumerate(
        SHARES
    ):  # a message alone is trained by its flag: where is it then?
        flags: list[float | None] = [0] * len(SHARES)
        flags[place] = 1
        alone = open_template("messages", tokenizer, {}).encode([row(*flags)])
        if alone.loss_mask.any():
            is_trained = share not in (None, 0) or (
                share is None and (train_on != "last" or place == len(SHARES) - 1)
            )
            assert set(found[alone.loss_mask].tolist()) == {
                (1.0 if share is None else share) if is_trained else 0.0
            }
            seen.add(place)
    assert seen == set(range(len(SHARES)))


def test_without_weights_between_nothing_changes(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    rows = [row(None, 0, 1), row(1), row(0)]
    usual = open_template("messages", tokenizer, {}).encode(rows)
    made = open_template("messages", tokenizer, {"message_weights": True}).encode(rows)
    assert np.array_equal(made.input_ids, usual.input_ids) and np.array_equal(
        made.loss_mask, usual.loss_mask
    )
    assert made.dropped == usual.dropped == {2: "nothing_to_train"}
    assert np.array_equal(made.columns["weights"].values, usual.loss_mask.astype(np.float32))


def test_the_template_keeps_the_contract(tokenizer_path: Path) -> None:
    template = open_template("messages", open_tokenizer(tokenizer_path), {"message_weights": True})
    check_template(template, [row(0.5, 1), row(0.1, 0.2, 0.3), row(0)])


@pytest.mark.parametrize("packing", ["best_fit", "none", "concat"])
@pytest.mark.parametrize("labels", ["unshifted", "shifted"])
def test_the_batch_has_them_where_its_labels_are(
    tokenizer_path: Path, tmp_path: Path, packing: str, labels: str
) -> None:
    rows = [
        row(*(0.25 * (number % 5 + place) for place in range(1 + number % 3)))
        for number in range(40)
    ]
    options = {"tokenizer": tokenizer_path, "cache_dir": tmp_path, "num_proc": 1}
    store = ps.prepare(rows, **options, message_weights=True)
    loader = ps.Loader(
        store, batch_size=3, max_length=160, packing=packing, labels=labels, output="numpy"
    )
    for batch in loader:
        assert (
            batch["weights"].dtype == np.float32 and batch["weights"].shape == batch["labels"].shape
        )
        assert ((batch["weights"] > 0) == (batch["labels"] != -100)).all()
        if packing == "none":
            for line, (_, sample, _, stop) in zip(
                batch["weights"], batch.rows.spans.tolist(), strict=False
            ):
                true = store[sample].columns["weights"][1:stop]
                assert (
                    line[: stop - 1] if labels == "shifted" else line[1:stop]
                ).tolist() == true.tolist()


def test_a_store_without_weights_in_the_mixture_is_refused_by_name(
    tokenizer_path: Path, tmp_path: Path
) -> None:
    options = {"tokenizer": tokenizer_path, "cache_dir": tmp_path, "num_proc": 1}
    weighted, usual = (
        ps.prepare([row(0.5)] * 8, **options, message_weights=True),
        ps.prepare([row(None)] * 8, **options),
    )
    with pytest.raises(
        PlanError,
        match="store 'usual' has no weights of tokens, and its tokens would count for nothing",
    ):
        ps.Loader(
            {"weighted": weighted, "usual": usual}, batch_size=2, max_length=64, output="numpy"
        )


def test_what_has_no_effect_is_refused(tokenizer_path: Path) -> None:
    tokenizer = open_tokenizer(tokenizer_path)
    with pytest.raises(TemplateError, match="train_on='all' trains all text; choose one"):
        open_template("messages", tokenizer, {"message_weights": True, "train_on": "all"})
    with pytest.raises(TemplateError, match="a FunctionTemplate has no message_weights"):
        FunctionTemplate(dict, tokenizer, version="1", chat={"message_weights": True})
    with pytest.raises(
        TemplateError, match=r"'weight' is 0\.5.*pass message_weights=True to keep the weights"
    ):
        open_template("messages", tokenizer, {}).encode([row(0.5)])


@pytest.mark.parametrize("weight", [1e39, 1e-50])
def test_a_weight_that_the_store_cannot_keep_is_refused(
    tokenizer_path: Path, weight: float
) -> None:
    """As float32 it would be infinite, or 0 where a token is trained."""
    template = open_template("messages", open_tokenizer(tokenizer_path), {"message_weights": True})
    with pytest.raises(
        TemplateError, match="expected true, false, 0 or 1, or a finite weight above 0"
    ):
        template.encode([row(weight)])
