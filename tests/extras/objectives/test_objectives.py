"""Objectives: the noise is a function of seed, source, sample and pass; what they make can be undone; what they cannot do is refused."""

import json
import random
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import penstock as ps
from penstock.errors import PlanError, PlanMismatch, RecipeError
from penstock.extras.objectives.settings import (
    BpeDropoutSettings,
    FimSettings,
    MaskedDiffusionSettings,
    SpanCorruptionSettings,
)
from penstock.store import Store

FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
GAPS = [f"<extra_id_{number}>" for number in range(40)]
OTHERS = ["<s>", "</s>", "<mask>", "<|user|>", "<|end|>"]
CHAT = (
    "{% for m in messages %}<|user|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant\n{% endif %}"
)
EACH = [
    {"name": "fim", "rate": 0.7},
    {"name": "fim", "rate": 1.0, "level": "character"},
    {"name": "span_corruption"},
    {"name": "masked_diffusion", "block_size": 8},
    {"name": "bpe_dropout", "rate": 0.3},
]
NAMES = [f"{each['name']} {each.get('level', '')}".strip() for each in EACH]


def texts(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Texts of words, numbers, accents and other scripts, each of which is different."""
    rng = random.Random(seed)
    words = [
        "hello",
        "the",
        "quick",
        "brown",
        "Grüße",
        "你好",
        "naïve",
        "unbelievable",
        "x",
        "été 🙂",
    ]
    made = []
    for number in range(count):
        some = " ".join(rng.choice(words) for _ in range(rng.randint(4, 40)))
        made.append({"text": f"{number}: {some}.\n{some[::-1]}"})
    return made


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-level vocabulary with sentinels, a mask, BOS and EOS."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([each["text"] for each in texts(60, seed=9)], trainer)
    made.add_special_tokens([AddedToken(token) for token in [*OTHERS, *FIM, *GAPS]])
    bos = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "mask_token": "<mask>",
        "chat_template": CHAT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module")
def store(tokenizer: str, tmp_path_factory: pytest.TempPathFactory) -> Store:
    cache = tmp_path_factory.mktemp("cache")
    return ps.prepare(texts(120), tokenizer=tokenizer, template="text", cache_dir=str(cache))


def load(stores: object, objective: object, **options: object) -> ps.Loader:
    given = {"batch_size": 6, "max_length": 256, "seed": 3, "output": "numpy", "block": 40}
    given |= {"rank": 0, "world_size": 1, "objective": objective, "max_dropped": 1.0}
    return ps.Loader(stores, **{**given, **options})


def rows_of(batch: object) -> list[str]:
    """Each row of a batch that is not padding, as text: its ids, labels and what the objective adds."""
    names = [n for n in ("input_ids", "labels", "p_mask", "loss_weights") if n in batch]
    rows = [row for row in range(len(batch["seq_idx"])) if (batch["seq_idx"][row] >= 0).any()]
    return [str([batch[name][row].tolist() for name in names]) for row in rows]


def steps_of(
    stores: object, objective: object, ranks: int, **options: object
) -> list[Counter[str]]:
    """The rows of each step, of all ranks together."""
    loaders = [
        load(stores, objective, rank=rank, world_size=ranks, batch_size=6 // ranks, **options)
        for rank in range(ranks)
    ]
    return [
        Counter(row for batch in batches for row in rows_of(batch))
        for batches in zip(*loaders, strict=True)
    ]


def ids_of(loader: ps.Loader) -> list[tuple[int, list[int], list[int]]]:
    """Number, ids and labels of each sample that a loader delivers, in order."""
    found = []
    for batch in loader:
        borders = batch["cu_seqlens"].tolist()
        flat = [batch[name].reshape(-1) for name in ("input_ids", "labels")]
        kept = [(low, high) for low, high in pairwise(borders)]
        is_span = [batch["seq_idx"].reshape(-1)[low] >= 0 for low, _ in kept]
        spans = [border for border, real in zip(kept, is_span, strict=True) if real]
        for (_, sample, _, _), (low, high) in zip(batch.rows.spans.tolist(), spans, strict=True):
            found.append((sample, *(each[low:high].tolist() for each in flat)))
    return found


@pytest.mark.parametrize("objective", EACH, ids=NAMES)
def test_ranks_and_prefetch_do_not_change_the_noise(store, objective):
    alone = steps_of(store, objective, 1, epochs=2)
    assert steps_of(store, objective, 2, epochs=2) == alone
    assert steps_of(store, objective, 3, epochs=2, prefetch=0) == alone
    assert len(alone) == len(load(store, objective, epochs=2))


@pytest.mark.parametrize("objective", EACH, ids=NAMES)
def test_a_resume_on_other_ranks_gives_the_same_noise(store, objective):
    whole = [row for batch in load(store, objective, epochs=2) for row in rows_of(batch)]
    steps = len(load(store, objective, epochs=2))
    for cut in (1, steps // 2, steps - 1):
        first = load(store, objective, epochs=2)
        done = [row for batch in islice(first, cut) for row in rows_of(batch)]
        rest = load(store, objective, epochs=2, batch_size=4)
        rest.load_state_dict(json.loads(json.dumps(first.state_dict())))
        left = [row for batch in rest for row in rows_of(batch)]
        assert done and left and Counter(done + left) == Counter(whole)


@pytest.mark.parametrize("objective", EACH, ids=NAMES)
def test_torch_workers_and_datasets_with_items_give_the_same(store, objective):
    torch_data = pytest.importorskip("torch.utils.data")
    plain = [row for batch in load(store, objective) for row in rows_of(batch)]
    workers = 2 if objective["name"] == "fim" else 0
    dataset = load(store, objective, output="torch").as_dataset()
    through = torch_data.DataLoader(dataset, batch_size=None, num_workers=workers)
    assert [row for batch in through for row in rows_of(batch)] == plain
    items, sampler = load(store, objective, output="torch").as_map_dataset()
    rows = [items[row] for row in sampler]
    names = [n for n in ("input_ids", "labels", "p_mask", "loss_weights") if n in rows[0]]
    real = [row for row in rows if (row["seq_idx"] >= 0).any()]
    assert Counter(str([row[name].tolist() for name in names]) for row in real) == Counter(plain)


@pytest.mark.parametrize("objective", EACH, ids=NAMES)
def test_each_epoch_and_each_seed_has_noise_of_its_own(store, objective):
    def noise(**options: object) -> dict[int, list[int]]:
        return {sample: ids for sample, ids, _ in ids_of(load(store, objective, **options))}

    first = noise()
    assert noise() == first
    other_seed = noise(seed=4)
    later = {
        s: ids for s, ids, _ in ids_of(load(store, objective, epochs=2))
    }  # the last epoch counts
    for others in (other_seed, later):
        differ = sum(others[sample] != first[sample] for sample in first if sample in others)
        assert differ > 0.6 * len(first)


def test_a_sample_that_comes_several_times_in_an_epoch_is_changed_each_time(
    store, tokenizer, tmp_path
):
    small = ps.prepare(
        texts(3, seed=5), tokenizer=tokenizer, template="text", cache_dir=str(tmp_path)
    )
    mixture = {"large": (store, 0.5), "small": (small, 0.5)}
    loader = load(mixture, {"name": "fim", "rate": 1.0}, stopping_strategy="all_exhausted")
    seen: dict[int, list[str]] = {}
    for batch in loader:
        for span, ids in zip(batch.rows.spans.tolist(), _spans(batch), strict=True):
            if span[0] == 1:
                seen.setdefault(span[1], []).append(str(ids))
    for copies in seen.values():
        assert len(copies) > 20 and len(set(copies)) > 0.6 * len(copies)


def _spans(batch: object) -> list[list[int]]:
    flat = batch["input_ids"].reshape(-1)
    numbers = batch["seq_idx"].reshape(-1)
    borders = batch["cu_seqlens"].tolist()
    pairs = pairwise(borders)
    return [flat[low:high].tolist() for low, high in pairs if low < high and numbers[low] >= 0]


@pytest.mark.parametrize("objective", EACH, ids=NAMES)
def test_the_plan_knows_the_lengths_that_change(store, objective):
    loader = load(store, objective, on_overlong="drop", max_length=96)
    tokens = 0
    for batch in loader:
        sizes = np.count_nonzero(batch["seq_idx"] >= 0, axis=1)
        assert batch["input_ids"].shape[1] == 96 and sizes.max() <= 96
        for (_, _, start, stop), ids in zip(batch.rows.spans.tolist(), _spans(batch), strict=True):
            assert start == 0 and len(ids) == stop
        whole = loader.plan.objective.change(0, batch.rows.spans["sample"], batch.rows.passes)
        assert np.diff(whole.offsets).tolist() == batch.rows.spans["stop"].tolist()
        tokens += int(sizes.sum())
    counters = loader.counters
    assert counters.tokens_out == tokens
    assert counters.tokens_in == counters.tokens_out + sum(counters.tokens_dropped.values())
    assert counters.samples_in == 120


@pytest.mark.parametrize("packing", ["concat", "mixed_fit"])
def test_texts_that_are_rearranged_may_be_cut(store, packing):
    objective = {"name": "fim", "rate": 1.0}
    options = {"packing": packing, "max_length": 32, "shuffle": False}
    if packing != "concat":
        options["on_overlong"] = "split"
    pieces: dict[int, dict[int, list[int]]] = {}
    for batch in load(store, objective, **options):
        for (_, sample, start, _), ids in zip(
            batch.rows.spans.tolist(), _spans(batch), strict=True
        ):
            pieces.setdefault(sample, {})[start] = ids
    whole = {sample: ids for sample, ids, _ in ids_of(load(store, objective, shuffle=False))}
    for sample, ids in whole.items():
        joined = [token for start in sorted(pieces[sample]) for token in pieces[sample][start]]
        # a last piece of one token has no target and is left out, and counted
        assert joined == ids or joined == ids[: len(joined)]
    assert load(store, objective, **options).plan.count(0).tokens_out == sum(
        len(ids) for each in pieces.values() for ids in each.values()
    )


# What can be undone


def _fim_parts(
    ids: list[int], sentinels: list[int], *, only_psm: bool = False
) -> tuple[list[int], ...] | None:
    """Prefix, middle and suffix of a rearranged sample without BOS and EOS; None if it was left as it is."""
    before, after, between = sentinels
    if before not in ids:
        return None
    assert [ids.count(each) for each in sentinels] == [1, 1, 1]
    assert ids.index(before) == 0
    split = ids.index(between)
    border = ids.index(after)
    if border == 1 and not only_psm:  # suffix, prefix, middle: nothing tells the last two apart
        return ids[split + 1 :], [], ids[2:split]
    return ids[1:border], ids[split + 1 :], ids[border + 1 : split]


@pytest.mark.parametrize("level", ["token", "character"])
def test_the_parts_of_a_rearranged_text_are_the_text(store, level):
    reference = store.template.tokenizer.reference
    sentinels = [reference.token_to_id(token) for token in FIM]
    orders: Counter[str] = Counter()
    inside_words = 0
    for objective in ({"name": "fim", "rate": 0.8, "spm_rate": 0.3, "level": level},):
        for sample, ids, labels in ids_of(load(store, objective, epochs=6)):
            text = texts(120)[sample]["text"]
            assert ids[0] == reference.token_to_id("<s>") and ids[-1] == reference.token_to_id(
                "</s>"
            )
            assert labels[1:] == ids[1:] and labels[0] == -100  # every token is trained
            parts = _fim_parts(ids[1:-1], sentinels)
            if parts is None:
                orders["as it is"] += 1
                assert ids == store[sample].input_ids.tolist()
                continue
            orders["psm" if parts[1] or ids[2] != sentinels[1] else "spm"] += 1
            found = [reference.decode(part, skip_special_tokens=False) for part in parts]
            assert "".join(found) == text
            if level == "character" and ids[2] != sentinels[1]:
                encoded = [reference.encode(part, add_special_tokens=False).ids for part in found]
                assert encoded == list(parts)  # as a tokenizer gives them that sees the part alone
                inside_words += found[0][-1:].isalpha() and found[1][:1].isalpha()
            if level == "token":
                assert [token for part in parts for token in part] == (
                    store[sample].input_ids.tolist()[1:-1]
                )
                assert len(ids) == len(store[sample].input_ids) + 3
    total = sum(orders.values())
    assert abs(orders["as it is"] / total - 0.2) < 0.06
    assert abs(orders["spm"] / (total - orders["as it is"]) - 0.3) < 0.08
    assert level == "token" or inside_words > 20


@pytest.mark.parametrize("level", ["token", "character"])
def test_every_place_of_a_text_is_as_likely_to_be_cut(tokenizer, tmp_path, level):
    text = [{"text": "hello the quick brown"}]
    store = ps.prepare(text, tokenizer=tokenizer, template="text", cache_dir=str(tmp_path))
    objective = {"name": "fim", "rate": 1.0, "spm_rate": 0.0, "level": level}
    reference = store.template.tokenizer.reference
    sentinels = [reference.token_to_id(token) for token in FIM]
    cuts: Counter[int] = Counter()
    for _, ids, _ in ids_of(load(store, objective, epochs=900, batch_size=200)):
        prefix, middle, suffix = _fim_parts(ids[1:-1], sentinels, only_psm=True)
        parts = [prefix, middle, suffix]
        if level == "character":
            parts = [reference.decode(part) for part in parts]
        cuts[len(parts[0])] += 1
        cuts[len(parts[0]) + len(parts[1])] += 1
    places = len(text[0]["text"]) if level == "character" else len(store[0].input_ids) - 2
    expected = 1800 / (places + 1)
    assert set(cuts) == set(range(places + 1))
    chi_squared = sum((count - expected) ** 2 / expected for count in cuts.values())
    assert chi_squared < places + 6 * (2 * places) ** 0.5


def test_inputs_and_targets_of_span_corruption_are_the_text(store):
    reference = store.template.tokenizer.reference
    gaps = [reference.token_to_id(token) for token in GAPS]
    end = reference.token_to_id("</s>")
    removed = total = 0
    for sample, ids, labels in ids_of(load(store, "span_corruption", epochs=3)):
        whole = store[sample].input_ids.tolist()
        border = labels.index(next(label for label in labels if label != -100))
        inputs, targets = ids[:border], ids[border:]
        assert labels[border:] == targets and inputs[-1] == targets[-1] == end
        spans: dict[int, list[int]] = {}
        for token in targets[:-1]:
            if token in gaps:
                spans[token] = []
            else:
                spans[next(reversed(spans))].append(token)
        assert list(spans) == gaps[: len(spans)] and all(spans.values())
        undone = [t for token in inputs for t in spans.get(token, [token])]
        assert undone == whole
        count = len(whole) - 2  # without BOS and EOS
        size = sum(map(len, spans.values()))
        assert size == min(max(round(count * 0.15), 1), count - 1)
        assert len(spans) == max(round(size / 3.0), 1)
        removed += size
        total += count
    assert abs(removed / total - 0.15) < 0.01


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vocabulary as T5 has it: what it does not know becomes <unk>, which is a special token; </s> ends a text."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece, -2.0) for piece in ("▁the", "▁fox", "▁runs", "▁", "a", "b")]
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(token) for token in ["<pad>", "</s>", "<unk>", *GAPS]])
    made.add_special_tokens([AddedToken(token) for token in ("<mask>", *FIM)])
    end = made.token_to_id("</s>")
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", end)]
    )
    folder = tmp_path_factory.mktemp("unigram")
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def test_unknown_text_at_the_end_of_a_text_is_text(unigram: str, tmp_path: Path) -> None:
    rng = random.Random(4)
    words = ["the", "fox", "runs", "日", "ab", "é"]
    records = [
        {"text": " ".join(["日", *rng.choices(words, k=rng.randint(1, 12)), "é"])}
        for _ in range(60)
    ]
    made = ps.prepare(records, tokenizer=unigram, template="text", cache_dir=str(tmp_path))
    reference = made.template.tokenizer.reference
    unknown = reference.token_to_id("<unk>")
    end = reference.token_to_id("</s>")
    gaps = [reference.token_to_id(token) for token in GAPS]
    count = 0
    for sample, ids, labels in ids_of(load(made, "span_corruption")):
        whole = made[sample].input_ids.tolist()
        assert whole[-2:] == [unknown, end]
        border = labels.index(next(label for label in labels if label != -100))
        assert ids[border - 1] == ids[-1] == end
        kept = [token for token in ids[: border - 1] if token not in gaps]
        removed = [token for token in ids[border:-1] if token not in gaps]
        assert Counter(kept + removed) == Counter(whole[:-1])
        count += 1
    assert count == 60
    pre, suf, mid = (reference.token_to_id(token) for token in FIM)
    last_of_middle = set()
    for sample, ids, _ in ids_of(load(made, {"name": "fim", "rate": 1.0, "spm_rate": 0.0})):
        assert ids[0] == pre and ids[-1] == end
        prefix = ids[1 : ids.index(suf)]
        suffix = ids[ids.index(suf) + 1 : ids.index(mid)]
        middle = ids[ids.index(mid) + 1 : -1]
        assert prefix + middle + suffix == made[sample].input_ids.tolist()[:-1]
        last_of_middle.add(middle[-1:] == [unknown])
    assert last_of_middle == {True, False}  # the last token of a text is not always the last one


@pytest.mark.parametrize(
    ("objective", "token"),
    [("span_corruption", "<extra_id_3>"), ("masked_diffusion", "<mask>"), ("fim", FIM[0])],
)
def test_a_text_that_holds_a_token_of_the_objective_is_refused_with_its_place(
    objective: str, token: str, tokenizer: str, tmp_path: Path
) -> None:
    records = [{"text": "hello the"}, {"text": f"the token {token} is a word of a paper"}]
    made = ps.prepare(records, tokenizer=tokenizer, template="text", cache_dir=str(tmp_path))
    given = {"name": objective, **({"rate": 1.0} if objective == "fim" else {})}
    with pytest.raises(PlanError, match=rf":2: the text holds .* of objective '{objective}'"):
        list(load(made, given))
    as_text = ps.prepare(
        records,
        tokenizer=tokenizer,
        template="text",
        special_in_text="text",
        cache_dir=str(tmp_path),
    )
    assert list(load(as_text, given))


def test_an_encoder_and_a_decoder_get_the_two_parts(store):
    objective = {"name": "span_corruption", "layout": "encoder_decoder"}
    joined = {s: (ids, labels) for s, ids, labels in ids_of(load(store, "span_corruption"))}
    loader = load(store, objective, packing="none", pad_token_id=5, batch_size=7)
    seen = 0
    for batch in loader:
        assert {"input_ids", "attention_mask", "labels"} <= set(batch)
        assert "input_tokens" not in batch and "position_ids" not in batch
        samples = [int(row["sample"][0]) if len(row) else None for row in batch.rows]
        for row, sample in enumerate(samples):
            inputs = batch["input_ids"][row][batch["attention_mask"][row] > 0].tolist()
            labels = [each for each in batch["labels"][row].tolist() if each != -100]
            if sample is None:
                assert not inputs and not labels
                continue
            ids, trained = joined[sample]
            targets = [label for label in trained if label != -100]
            assert labels == targets and inputs + targets == ids
            seen += 1
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 5).all()
    assert seen == 120


def test_masked_tokens_labels_and_weights_agree(store):
    mask = store.template.tokenizer.reference.token_to_id("<mask>")
    objective = {"name": "masked_diffusion", "p_min": 0.2, "p_max": 0.6}
    expected = found = 0.0
    probabilities = set()
    for batch in load(store, objective, epochs=8):
        ids, labels = batch["input_ids"], batch["labels"]
        p, weights = batch["p_mask"], batch["loss_weights"]
        is_masked = labels != -100
        assert ((ids == mask) == is_masked).all()
        assert np.allclose(weights[is_masked], 1 / p[is_masked]) and not weights[~is_masked].any()
        real = batch["seq_idx"] >= 0
        assert (p[~real] == 1).all() and not is_masked[~real].any()
        assert p[real].min() >= 0.2 and p[real].max() <= 0.6
        expected += p[real].sum()
        found += is_masked.sum()
        probabilities |= set(p[real].tolist())
        assert batch.num_trained == is_masked.sum() if hasattr(batch, "num_trained") else True
    assert abs(found / expected - 1) < 0.03
    assert abs(np.mean(list(probabilities)) - 0.4) < 0.02  # evenly from 0.2 to 0.6
    originals = {sample: store[sample].input_ids.tolist() for sample in range(120)}
    for sample, ids, labels in ids_of(load(store, objective)):
        assert [i if label == -100 else label for i, label in zip(ids, labels, strict=True)] == (
            originals[sample]
        )


def test_blocks_of_tokens_draw_probabilities_of_their_own(store):
    objective = {"name": "masked_diffusion", "block_size": 8}
    for batch in islice(load(store, objective, packing="none", padding="max_length"), 5):
        for row in range(6):
            p = batch["p_mask"][row][batch["seq_idx"][row] >= 0]
            parts = [set(p[start : start + 8].tolist()) for start in range(0, p.size, 8)]
            assert all(len(part) == 1 for part in parts)
            assert len(set.union(*parts)) == len(parts)


def test_prompts_are_never_masked(tokenizer, tmp_path):
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"question {number} of many"},
                {"role": "assistant", "content": f"answer {number} " * 6},
            ]
        }
        for number in range(20)
    ]
    store = ps.prepare(chats, tokenizer=tokenizer, cache_dir=str(tmp_path))
    masked: Counter[bool] = Counter()
    ends: Counter[bool] = Counter()
    end = store.template.tokenizer.reference.token_to_id("<|end|>")
    for special in (True, False):
        objective = {"name": "masked_diffusion", "p_min": 1.0, "mask_special": special}
        for sample, _, labels in ids_of(load(store, objective)):
            stored = store[sample]
            trained = [label != -100 for label in labels]
            masked[special] += sum(trained)
            ends[special] += sum(label == end for label in labels)
            assert not (np.array(trained) & ~stored.loss_mask).any()
            if special:
                assert trained == stored.loss_mask.tolist()
    assert ends[True] == 20 and not ends[False] and masked[True] - masked[False] == 20


def test_words_that_are_cut_otherwise_are_the_same_text(store):
    reference = store.template.tokenizer.reference
    for rate, least in ((0.0, 0.0), (0.1, 0.02), (1.0, 1.0)):
        more = total = 0
        for sample, ids, labels in ids_of(
            load(store, {"name": "bpe_dropout", "rate": rate}, max_length=2048)
        ):
            whole = store[sample].input_ids.tolist()
            assert reference.decode(ids) == reference.decode(whole)
            assert labels[1:] == ids[1:]
            more += len(ids) - len(whole)
            total += len(whole)
            if rate == 0:
                assert ids == whole
            if rate == 1:  # every byte is a token
                assert len(ids) == 2 + len(texts(120)[sample]["text"].encode())
        assert more >= least * total


def cut_with_dropout(
    word: str, ranks: dict[tuple[str, str], int], rate: float, chance: random.Random
) -> list[str]:
    """Cut a word as the paper on BPE dropout describes it: in each turn, each possible merge is left out with probability `rate`."""
    symbols = list(word)
    while True:
        kept = [
            (ranks[pair], place)
            for place, pair in enumerate(pairwise(symbols))
            if pair in ranks and chance.random() >= rate
        ]
        if not kept:
            return symbols
        _, place = min(kept)
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]


def test_dropout_makes_as_many_tokens_as_the_paper_describes(store):
    written = json.loads(store.template.tokenizer.reference.to_str())
    merges = [
        tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
        for merge in written["model"]["merges"]
    ]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    split = store.template.tokenizer.reference.pre_tokenizer.pre_tokenize_str
    chance = random.Random(0)
    words = [word for text in texts(120) for word, _ in split(text["text"])]
    expected = sum(
        len(cut_with_dropout(word, ranks, 0.2, chance)) for word in words for _ in range(8)
    )
    epochs = ids_of(load(store, {"name": "bpe_dropout", "rate": 0.2}, epochs=8, max_length=2048))
    ours = sum(len(ids) - 2 for _, ids, _ in epochs)
    assert abs(ours / expected - 1) < 0.01


def test_masks_of_chats_stay_at_their_words(tokenizer, tmp_path):
    chats = [
        {
            "messages": [
                {"role": "user", "content": "hello quick brown"},
                {"role": "assistant", "content": f"unbelievable naïve Grüße {number}"},
            ]
        }
        for number in range(10)
    ]
    store = ps.prepare(chats, tokenizer=tokenizer, cache_dir=str(tmp_path))
    reference = store.template.tokenizer.reference
    for sample, ids, labels in ids_of(load(store, {"name": "bpe_dropout", "rate": 0.5})):
        trained = [label for label in labels if label != -100]
        stored = store[sample]
        expected = stored.input_ids[stored.loss_mask].tolist()
        decode = [reference.decode(each, skip_special_tokens=False) for each in (trained, expected)]
        assert decode[0] == decode[1]
        assert reference.decode(ids) == reference.decode(stored.input_ids.tolist())


# What is refused


def test_a_tokenizer_without_the_tokens_is_refused(tokenizer_path: Path, tmp_path):
    store = ps.prepare(texts(5), tokenizer=tokenizer_path, template="text", cache_dir=str(tmp_path))
    with pytest.raises(PlanError, match=r"needs three sentinel tokens.*'data'.*<\|fim_prefix\|>"):
        load(store, "fim")
    with pytest.raises(PlanError, match="'<a>' is not an added token"):
        load(store, {"name": "fim", "sentinels": ["<a>", "<b>", "<c>"]})
    with pytest.raises(PlanError, match="no added token '<extra_id_0>'"):
        load(store, "span_corruption")
    with pytest.raises(PlanError, match="needs a mask token"):
        load(store, "masked_diffusion")
    with pytest.raises(PlanError, match="'zzz' is not an added token"):
        load(store, {"name": "masked_diffusion", "mask_token": "zzz"})


def test_samples_and_orders_that_do_not_fit_are_refused(store, tokenizer, tmp_path):
    chats = [
        {
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "the quick brown"},
            ]
        }
    ] * 3
    chat = ps.prepare(chats, tokenizer=tokenizer, cache_dir=str(tmp_path))
    with pytest.raises(PlanError, match="every token is trained, such as plain text, and 'data'"):
        load(chat, "fim")
    with pytest.raises(PlanError, match=r"span_corruption.*on_overlong='split' would cut them"):
        load(store, "span_corruption", on_overlong="split")
    with pytest.raises(PlanError, match="packing='concat' would cut them"):
        load(store, "span_corruption", packing="concat")
    with pytest.raises(PlanError, match="one sample in a row"):
        load(store, {"name": "span_corruption", "layout": "encoder_decoder"})
    with pytest.raises(PlanError, match="padding='max_length' is for single"):
        objective = {"name": "span_corruption", "layout": "encoder_decoder"}
        load(store, objective, packing="none", padding="max_length")
    with pytest.raises(PlanError, match="labels='shifted' would move them"):
        next(iter(load(store, "masked_diffusion", labels="shifted")))
    with pytest.raises(PlanError, match="attention_mask='4d' is causal"):
        next(iter(load(store, "masked_diffusion", attention_mask="4d")))
    few = {"name": "span_corruption", "mean_span_length": 1.0, "noise_density": 0.5}
    with pytest.raises(PlanError, match=r"tokens would have .* gaps, and .* 40 sentinels"):
        list(load(store, few, max_length=2048))
    with pytest.raises(PlanError, match="changes samples that are one sequence of tokens"):
        load(ps.open(texts(4)), "fim", max_length=None)
    marked = [{"text": "a <|fim_middle|> b"}]
    written = ps.prepare(marked, tokenizer=tokenizer, template="text", cache_dir=str(tmp_path))
    with pytest.raises(PlanError, match="holds a sentinel of objective 'fim' as a token"):
        list(load(written, {"name": "fim", "rate": 1.0}))


def test_wrong_settings_are_named(store):
    with pytest.raises(PlanError, match=r"objective 'fmi' does not exist.*fim"):
        load(store, "fmi")
    with pytest.raises(PlanError, match=r"objective 'fim' has no setting 'rat'.*rate"):
        load(store, {"name": "fim", "rat": 0.5})
    with pytest.raises(PlanError, match=r"rate is 1.5, expected a share"):
        load(store, {"name": "fim", "rate": 1.5})
    with pytest.raises(PlanError, match="level is 'word', expected one of token, character"):
        load(store, {"name": "fim", "level": "word"})
    with pytest.raises(PlanError, match="0 < p_min ≤ p_max"):
        load(store, {"name": "masked_diffusion", "p_min": 0.5, "p_max": 0.4})
    with pytest.raises(PlanError, match="objective is 7"):
        load(store, 7)
    with pytest.raises(PlanError, match="noise_density is 1, expected a share"):
        load(store, {"name": "span_corruption", "noise_density": 1})


def test_a_state_of_another_objective_is_refused_by_name(store):
    state = load(store, {"name": "fim", "rate": 0.5}).state_dict()
    with pytest.raises(PlanMismatch, match=r"objective .*0\.5.*0\.25"):
        load(store, {"name": "fim", "rate": 0.25}).load_state_dict(state)
    with pytest.raises(PlanMismatch, match="objective"):
        load(store, None).load_state_dict(state)
    load(store, "fim").load_state_dict(state)  # the same, with its default written out


def test_a_run_without_objective_has_the_order_that_it_had(store):
    assert "objective" not in load(store, None).plan.identity


def test_noise_stays_with_a_sample_when_the_mixture_changes(store, tokenizer, tmp_path):
    other = ps.prepare(
        texts(30, seed=8), tokenizer=tokenizer, template="text", cache_dir=str(tmp_path)
    )
    objective = {"name": "fim", "rate": 1.0}
    plain = {s: ids for s, ids, _ in ids_of(load({"a": store}, objective))}
    loader = load({"a": store}, objective)
    found: dict[int, list[int]] = {}
    for number, batch in enumerate(loader):
        for span, ids in zip(batch.rows.spans.tolist(), _spans(batch), strict=True):
            if span[0] == 0:
                found[span[1]] = ids
        if number == 1:
            loader.change_mixture({"a": store, "b": other})
    assert found == plain


def test_a_recipe_names_an_objective(tokenizer, tmp_path):
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, texts(30))))
    recipe = tmp_path / "recipe.yaml"
    base = f"data: data.jsonl\ntokenizer: {tokenizer}\ntemplate: text\nmax_length: 256\nbatch_size: 2\n"
    base += f"cache_dir: {tmp_path / 'cache'}\n"
    recipe.write_text(f"{base}objective:\n  name: fim\n  rate: 1.0\n  spm_rate: 0\n")
    loader = ps.load(str(recipe), output="numpy", rank=0, world_size=1)
    assert loader.plan.settings.objective["spm_rate"] == 0
    assert next(iter(loader))["input_ids"].shape[0] == 2
    recipe.write_text(f"{base}objective: masked_diffusion\n")
    assert "p_mask" in next(iter(ps.load(str(recipe), output="numpy", rank=0, world_size=1)))
    recipe.write_text(f"{base}objective: [fim]\n")
    with pytest.raises((PlanError, RecipeError), match="objective"):
        ps.load(str(recipe), output="numpy", rank=0, world_size=1)


def test_a_trace_shows_the_changed_sample(store):
    from penstock.report import trace

    loader = load(store, {"name": "fim", "rate": 1.0})
    batch = next(iter(loader))
    shown = trace.row(loader, 0, 0)
    shown_ids = [token.id for token in shown.tokens[: shown.used]]
    assert shown_ids == batch["input_ids"][0].tolist()[: shown.used]
    assert shown.segments[0].length == batch.rows[0]["stop"][0]


@pytest.mark.parametrize(
    "settings",
    [FimSettings, SpanCorruptionSettings, MaskedDiffusionSettings, BpeDropoutSettings],
)
def test_the_guide_lists_every_setting(settings):
    from dataclasses import fields

    guide = Path("docs/guides/objectives.md").read_text()
    for each in fields(settings):
        assert f"`{each.name}`" in guide, each.name
