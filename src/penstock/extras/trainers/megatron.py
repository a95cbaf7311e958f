"""Megatron-LM and Megatron-Bridge with a Loader: `--dataloader-type external --dataloader-save DIR`.

    def train_valid_test_datasets_provider(num_samples):
        loader = ps.load("recipe.yaml", rank=dp_rank, world_size=dp_size, labels="shifted", epochs=None)
        batches = MegatronBatches(loader)
        if saved is not None:                        # of any data-parallel rank: all save the same state
            batches.load_state_dict(torch.load(saved)["dataloader_state_dict"])
        return batches, None, None

    train_valid_test_datasets_provider.is_distributed = True

`batch_size` of the loader is Megatron's micro-batch size.  Ranks that differ only in tensor, pipeline or context parallelism get the
same rows: pass the data-parallel rank and size (`parallel_state.get_data_parallel_rank()`, `get_data_parallel_world_size()`).  They are
compared with Megatron's parallel state; another rank is refused.
"""

from typing import Any

from penstock.errors import PlanError
from penstock.extras.trainers.parallelism import check_ranks, of_megatron
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.loader.map_dataset import require_tokens
from penstock.loader.stream import Stream
from penstock.loader.world import check_rank
from penstock.types import WEIGHTS


class MegatronBatches(Stream):
    """Batches with Megatron's names: tokens, labels, loss_mask, position_ids; of packed rows also cu_seqlens and max_seqlen."""

    def __init__(self, loader: Loader) -> None:
        require_tokens(loader, "Megatron")
        if loader.form.output != "torch" or loader.form.labels != "shifted":
            found = f"output={loader.form.output!r} and labels={loader.form.labels!r}"
            raise PlanError(
                f"the Loader has {found}, but Megatron takes tensors and does not shift labels; pass output='torch', labels='shifted'"
            )
        super().__init__(loader)
        self.check_ranks()

    def check_ranks(self) -> None:
        """Refuse rows that are not those of Megatron's data-parallel rank, also `rank=0, world_size=1` among several of them."""
        ranks = of_megatron()
        world = self.loader.world
        if ranks is None:
            self._check_without_state()
        elif (world.rank, world.size) != (ranks.data_rank, ranks.data_size):
            raise PlanError(
                f"the Loader gives this process the rows of rank {world.rank} of {world.size}, and for Megatron it is data-parallel rank "
                f"{ranks.data_rank} of {ranks.data_size}; make the Loader with rank=parallel_state.get_data_parallel_rank(), "
                f"world_size=parallel_state.get_data_parallel_world_size()",
                code="rank_differs",
            )
        else:
            check_ranks(self.loader, ranks)

    def _check_without_state(self) -> None:
        """Without a parallel state it is not known which ranks need the same rows: only an argument can say so."""
        info = self.loader.rank_info
        check_rank(info)
        if len(info.members) > 1 and not info.is_explicit:
            raise PlanError(
                f"the Loader is rank {info.rank} of {len(info.members)} processes, and Megatron's parallel state is not initialised, so "
                f"which of them need the same rows is not known; make the Loader after initialize_model_parallel with "
                f"rank=parallel_state.get_data_parallel_rank(), world_size=parallel_state.get_data_parallel_world_size()"
            )

    def convert(self, batch: Any) -> dict[str, Any]:
        """Labels that are not trained are 0, with a loss mask of 0: Megatron's loss has no label to ignore.

        Weights of tokens are the values of the loss mask.
        """
        labels = batch["labels"]
        is_trained = labels != IGNORE
        more = {
            name: batch[name]
            for name in ("cu_seqlens", "max_seqlen", "attention_mask")
            if name in batch
        }
        return {
            "tokens": batch["input_ids"],
            "labels": labels.masked_fill(~is_trained, 0),
            "loss_mask": is_trained * batch.get(WEIGHTS.name, 1.0),
            "position_ids": batch["position_ids"],
            **more,
        }

    def save_state(self) -> dict[str, Any]:
        """Return the state, under the name by which Megatron asks for it."""
        return self.state_dict()
