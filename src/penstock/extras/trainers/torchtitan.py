"""torchtitan with a Loader: a BaseDataLoader whose state resumes on any number of ranks.

    dataloader = PenstockDataLoader.Config(load=partial(ps.load, "recipe.yaml", epochs=None))     # in the Trainer.Config of your run

torchtitan sets rank, number of ranks and batch size.  A recipe whose `max_length` is not torchtitan's sequence length is refused.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from penstock.errors import PlanError
from penstock.loader import Loader
from penstock.loader.map_dataset import require_tokens
from penstock.types import WEIGHTS

_STATE = (
    "penstock"  # one text: torch's distributed checkpoint loads only the keys that it knows before
)


class PenstockDataLoader(BaseDataLoader):  # type: ignore[misc]
    """Batches of a recipe, as torchtitan takes them: ({"input", "positions"}, labels)."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        load: Callable[..., Loader] | None = (
            None  # is called with rank, world_size, batch_size, output and labels
        )

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        if config.load is None:
            raise PlanError(
                "dataloader.load is not set, expected a function such as partial(penstock.load, 'recipe.yaml')"
            )
        self.loader = config.load(
            rank=dp_rank,
            world_size=dp_world_size,
            batch_size=local_batch_size,
            output="torch",
            labels="shifted",
        )
        self._check_world(dp_rank, dp_world_size)
        require_tokens(self.loader, "torchtitan")
        if WEIGHTS in self.loader.parts.columns:
            raise PlanError(
                "the stores have weights of tokens, and torchtitan's loss does not take them; prepare them without"
            )
        if (max_length := self.loader.plan.settings.max_length) != seq_len:
            raise PlanError(
                f"the Loader has max_length={max_length}, training.seq_len is {seq_len}; set both to the same"
            )

    def _check_world(self, dp_rank: int, dp_world_size: int) -> None:
        """Refuse a Loader of other rows: a function of the user's own may not pass the rank on."""
        world = self.loader.world
        if (world.rank, world.size) != (dp_rank, dp_world_size):
            raise PlanError(
                f"dataloader.load has made a Loader of rank {world.rank} of {world.size}, and torchtitan asked for rank={dp_rank}, "
                f"world_size={dp_world_size}; pass both on to penstock.load"
            )

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        for batch in self.loader:
            yield {"input": batch["input_ids"], "positions": batch["position_ids"]}, batch["labels"]

    def state_dict(self) -> dict[str, Any]:
        return {_STATE: json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:  # torchtitan passes an empty one if there is nothing to load
            self.loader.load_state_dict(json.loads(state_dict[_STATE]))
