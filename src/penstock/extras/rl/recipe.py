"""What `Prompts` takes from a recipe."""

from typing import Any

from penstock.errors import PlanError
from penstock.recipe.recipe import Recipe
from penstock.recipe.run import serve_recipe

# Keys of a recipe that prompts use; those of batches, such as batch_size, have nothing to do here.
_KEYS = (
    "seed",
    "epochs",
    "max_length",
    "shuffle",
    "shuffle_window",
    "on_overlong",
    "mix_by",
    "stopping_strategy",
    "block",
)


def of_recipe(recipe: Recipe, part: str) -> tuple[Any, dict[str, Any]]:
    """Return the stores or sources of one part of a recipe, and the options that its keys give."""
    of_loader = recipe.loader_options(part, can_be_cut=False)
    packing = of_loader.get("packing", "none")
    if packing != "none":
        raise PlanError(
            f"packing: {packing} in the recipe has no effect on prompts; write packing: none, or leave it out"
        )
    options = {name: of_loader[name] for name in _KEYS if name in of_loader}
    return recipe.mixture(serve_recipe(recipe, part=part), part), options
