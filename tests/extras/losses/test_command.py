"""`penstock losses` names the records that stand out, and `penstock trace` says what their losses were."""

import pytest

from penstock.cli import main as cli
from penstock.recipe import Recipe
from tests.cli.json_answers import validated
from tests.extras.trainers.conftest import make_folder, need


@pytest.fixture
def recipe(tmp_path, tokenizer_path):
    need("torch")
    from penstock import load
    from penstock.trainers.losses import LossBySource
    from tests.extras.losses.bigram import Bigram

    folder = make_folder(tmp_path, tokenizer_path)
    path = folder / "recipe.yaml"
    path.write_text(
        f"data: data.jsonl\ntokenizer: tokenizer\ntemplate: text\nmax_length: 64\nbatch_size: 2\nrun_id: mine\n"
        f"cache_dir: {folder / 'cache'}\n"
    )
    loader = load(path)
    losses = LossBySource(loader)
    model = Bigram()
    for batch in loader:
        losses.add(batch, logits=model(batch["input_ids"]))
    return path


@pytest.fixture
def run(capsys):
    def call(*words: object, status: int = 0) -> str:
        found = cli.run([str(word) for word in words])
        said = capsys.readouterr()
        assert found == status, said
        return said.out if status == 0 else said.err

    return call


def test_losses_names_records_by_file_and_line(recipe, run):
    shown = run("losses", recipe, "--count", 3)
    assert "Highest above the mean of their dataset" in shown
    found = validated("losses", run("losses", recipe, "--count", 3, "--json"))
    assert len(found["highest"]) == 3 and found["fastest_falling"] == []
    for sample in found["highest"]:
        assert sample["where"].endswith(f"data.jsonl:{sample['sample'] + 1}")
        assert sample["where"] in shown.replace("\n", "") or "…" in shown
    assert found["missing_steps"] == 0 and found["by_source"]["data"]["targets"] > 1_000


def test_trace_says_the_loss_of_each_piece(recipe, run):
    found = validated("losses", run("losses", recipe, "--count", 1, "--json"))
    [worst] = found["highest"]
    shown = run("trace", recipe, "--step", worst["steps"][0])
    assert f"loss {worst['loss']:.3f} ({worst['excess']:+.3f})" in shown
    changed = Recipe.read(recipe).changed(run_id="other").to_yaml(recipe.parent)
    recipe.write_text(changed)
    assert "loss " not in run("trace", recipe, "--step", worst["steps"][0])


def test_a_run_without_a_name_is_asked_for(recipe, run):
    recipe.write_text(recipe.read_text().replace("run_id: mine\n", ""))
    assert "which run? Pass --run-id" in run("losses", recipe, status=2)
