"""Make the pictures of the viewer in docs/images: python -m tests.docs.view_pictures.  Needs chromium, torch and penstock[view].

The data is that of the tests; a small model is trained on it, so that there are losses.
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

import penstock as ps
from penstock.recipe import Recipe
from penstock.recipe.run import prepare_recipe, prepared_counts
from penstock.trainers.losses import LossBySource
from tests.docs import world
from tests.extras.losses.bigram import Bigram
from tests.extras.view.chromium import browser
from tests.extras.view.conftest import open_view
from tests.extras.view.test_browser import served

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1280, "height": 800}
HEIGHTS = {"view-live": 1000, "view-data": 900}
SETTLED = 3.0  # seconds until a page has drawn everything
PICTURES = {
    "view": "samples?q=river",
    "view-run": "run?step=3",
    "view-losses": "losses",
    "view-live": "live",
    "view-data": "data",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_run(folder)
        parts = prepared_counts(Recipe.read(path))
        with served(open_view(path, run_id="demo", parts=parts)) as url, browser(folder) as page:
            for picture, view in PICTURES.items():
                page.visit("about:blank")
                size = {**SIZE, "height": HEIGHTS.get(picture, SIZE["height"])}
                page.visit(f"{url}#/{view}", **size)
                time.sleep(SETTLED)
                (IMAGES / f"{picture}.png").write_bytes(page.screenshot(**size))


def make_run(folder: Path) -> Path:
    """Return a recipe whose run has recorded its losses."""
    world.make(folder, Path("docs/guides/view.md"))
    path = folder / "recipe.yaml"
    sets = {"chat": {"path": "chat.jsonl"}, "notes": {"path": "held_out.jsonl"}}
    recipe = {
        "data": sets,
        "tokenizer": "tokenizer",
        "template": "messages",
        "max_length": 256,
        "batch_size": 2,
        "epochs": 2,
        "run_id": "demo",
        "cache_dir": "cache",
    }
    path.write_text(json.dumps(recipe))
    prepare_recipe(Recipe.read(path).changed(progress="none"))
    torch.manual_seed(0)
    model = Bigram()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = ps.load(str(path), batch_size=4, rank=0, world_size=1)
    losses = LossBySource(loader)
    for batch in loader:
        logits = model(batch["input_ids"])
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:]
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.add(batch, logits=logits)
        loader.log(loss=loss.item())
    return path


if __name__ == "__main__":
    assert shutil.which("chromium"), "install chromium"
    main()
