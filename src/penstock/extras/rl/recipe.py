"""`ps.Prompts`: the prompts of a recipe, a store or a source."""

import os
from typing import Any

from penstock.errors import PlanError
from penstock.extras.rl import prompts
from penstock.recipe.recipe import Recipe
from penstock.recipe.run import serve_recipe
from penstock.settings import OF_LOADER, accepts_old_names

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

    @accepts_old_names(*OF_LOADER)
    def __init__(
        self,
        data: Any,
        *,
        repeats: int = 8,
        epochs: int | None = None,
        lease: float | None = None,
        part: str = "train",
        **settings: Any,
    ) -> None:
        """Open the prompts of a recipe (its file or a Recipe), of a store or source, or of several: a list, or a dict with weights.

        repeats: rollouts of each prompt; workers read it from the prompt.
        epochs: how often every prompt is given; None for ever.
        lease: seconds after which a prompt that was taken and not acknowledged is given again; None for never.
        part: of a recipe; "train" or the name of an eval set.
        settings: seed, shuffle, shuffle_window, max_length (longer prompts are left out and counted), on_overlong; of a weighted
        mixture also mix_by and stopping_strategy.  They come before those of the recipe.  filter: a function over records; those for
        which it returns false are left out and
        counted.  filter_version: have its answers remembered.  num_proc: processes that call it.
        """
        own = {**settings, **({} if epochs is None else {"epochs": epochs})}
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
        super().__init__(data, repeats=repeats, lease=lease, **own)
