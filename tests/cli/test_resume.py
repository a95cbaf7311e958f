"""`penstock state`: an edited recipe goes on from a saved state, if it is said that the mixture changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

RECIPE = """
data:
  web: {{path: web.jsonl, weight: {web}}}
{other}tokenizer: {tokenizer}
template: text
max_length: 64
batch_size: 4
num_proc: 1
"""


@pytest.fixture
def write(
    here: Any, write_jsonl: Callable[..., Path], tokenizer_path: Path, tmp_path: Path
) -> Callable[..., Path]:
    for name, count in (("web", 90), ("code", 60), ("chat", 40)):
        write_jsonl(
            [{"text": f"{name} {'fox dog ' * (1 + row % 9)}"} for row in range(count)],
            f"{name}.jsonl",
        )

    def write(name: str = "recipe.yaml", web: Any = 3, **weights: Any) -> Path:
        other = "".join(
            f"  {each}: {{path: {each}.jsonl, weight: {weight}}}\n"
            for each, weight in weights.items()
        )
        path = tmp_path / name
        path.write_text(RECIPE.format(web=web, other=other, tokenizer=tokenizer_path))
        return path

    return write


def save(recipe: Path, state: Path, steps: int) -> list[Any]:
    """Train so many steps and save; return what was delivered."""
    loader, rows = ps.load(recipe, output="numpy", rank=0, world_size=1, progress="none"), []
    for batch in loader:
        rows += batch.rows.spans[["source", "sample"]].tolist()
        if batch.step + 1 == steps:
            break
    state.write_text(json.dumps({"trainer": {"loader": loader.state_dict()}}))
    return rows


def test_an_edited_recipe_is_refused_and_with_changes_goes_on(
    here: Any, write: Any, tmp_path: Path
) -> None:
    state, recipe = tmp_path / "state.json", write(web=3, code=1)
    before = {sample for source, sample in save(recipe, state, 2) if source == 0}
    assert here("state", recipe, "--state", state)[1].endswith(
        "nothing changes: the state fits this recipe\n"
    )
    write(web=1, chat=2)
    code, _, error = here("state", recipe, "--state", state)
    assert (
        code == 3
        and "penstock state --changes" in error
        and 'weights ["3", "1"] → ["1", "2"]' in error
    )
    code, shown, _ = here("state", recipe, "--state", state, "--changes", "--json")
    found = json.loads(shown)
    assert code == 0 and (found["step"], found["rows"]) == (2, 8)
    assert [word.split(":")[0] for word in found["changes"]] == [
        "source 'chat' added",
        "source 'code' removed",
        "source 'web'",
    ]
    changed = tmp_path / "state-changed.json"
    assert Path(found["state"]) == changed and here("state", recipe, "--state", changed)[0] == 0
    assert here("state", recipe, "--state", state, "--changes")[0] == 3, "it would replace a file"
    loader = ps.load(recipe, output="numpy", rank=0, world_size=1, progress="none")
    loader.load_state_dict(json.loads(changed.read_text()))
    after = {
        sample
        for batch in loader
        for source, sample in batch.rows.spans[["source", "sample"]].tolist()
        if source == 0
    }
    assert before and not before & after
    later = here("trace", recipe, "--state", changed, "--step", "3")[1]
    assert "chat.jsonl:" in later and "code" not in later
    earlier = here("trace", recipe, "--journal", changed, "--step", "1")
    assert earlier[0] == 0 and "(store " in earlier[1] and "chat.jsonl" not in earlier[1]
    assert f"{changed}: fits: continues at step 2" in here("plan", recipe, "--compare", changed)[1]


def test_a_source_that_has_grown_goes_on_and_one_that_was_edited_is_refused(
    here: Any, write: Any, tmp_path: Path
) -> None:
    state, recipe, data = tmp_path / "state.json", write(code=1), tmp_path / "web.jsonl"
    save(recipe, state, 2)
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(lines + lines[:30]))
    shown = here("state", recipe, "--state", state, "--changes")[1]
    assert "90 samples, weight 3 → " in shown and "120 samples, weight 3" in shown
    data.write_text("".join(['{"text": "lazy"}\n', *lines[1:]]))
    code, _, error = here("state", recipe, "--state", state, "--changes")
    assert code == 3 and "source 'web' has other data than before: sample 0 differs" in error


def test_a_recipe_has_tables_of_weights(here: Any, write: Any, tmp_path: Path) -> None:
    recipe = write(web="{0: 9, 2: 1}", code="{0: 1, 2: 9}")
    loader = ps.load(recipe, output="numpy", rank=0, world_size=1, progress="none")
    assert [entry["rows"] for entry in loader.journal] == [0, 8]
    again = ps.Recipe.read(recipe)
    (tmp_path / "again.yaml").write_text(again.to_yaml(tmp_path))
    assert ps.Recipe.read(tmp_path / "again.yaml") == again and "0: 9, 2: 1" in repr(again)
    code, shown, _ = here("plan", recipe)
    assert code == 0 and "web" in shown
    code, _, error = here("plan", write(web="{3: 9}", code=1))
    assert code == 3 and "recipe.yaml:3: weight is" in error and "that begins at 0" in error
