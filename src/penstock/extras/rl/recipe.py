"""`ps.Prompts`: the prompts of a recipe, a store or a source."""

import os
from typing import TYPE_CHECKING, Any, Unpack

from penstock.errors import PlanError
from penstock.extras.rl import prompts
from penstock.recipe.recipe import Recipe
from penstock.recipe.run import serve_recipe
from penstock.settings import takes

if TYPE_CHECKING:
    from penstock.options import PromptOptions

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


class Prompts(prompts.Prompts):
    """Prompts for reinforcement learning: leased to rollout workers, acknowledged when trained, and never lost.

    prompts = ps.Prompts("recipe.yaml", repeats=8)      # template: prompt, or template: records
    prompts = ps.Prompts(ps.open("math.jsonl"))         # plain records
    """

    @takes("PromptOptions")
    def __init__(self, data: Any, **options: Unpack["PromptOptions"]) -> None:
        """Open the prompts of a recipe (its file or a Recipe), of a store or source, or of several: a list, or a dict with weights.

        Keyword arguments come before the keys of the recipe.
        """
        own: dict[str, Any] = {**options}
        part = own.pop("part", "train")
        if own.get("epochs") is None:
            own.pop("epochs", None)
        if isinstance(data, str | os.PathLike | Recipe):
            recipe = Recipe.read(data)
            of_recipe = recipe.loader_options(part, can_be_cut=False)
            packing = of_recipe.get("packing", "none")
            if packing != "none":
                raise PlanError(
                    f"packing: {packing} in the recipe has no effect on prompts; write packing: none, or leave it out"
                )
            own = {**{name: of_recipe[name] for name in _KEYS if name in of_recipe}, **own}
            data = recipe.mixture(serve_recipe(recipe, part=part), part)
        super().__init__(data, **own)
