"""Megatron-LM and Megatron-Bridge with a Loader: `--dataloader-type external --dataloader-save DIR`.

    def train_valid_test_datasets_provider(num_samples):
        loader = ps.load("recipe.yaml", labels="shifted", epochs=None)
        batches = MegatronBatches(loader)
        if saved is not None:                        # of any data-parallel rank: all save the same state
            batches.load_state_dict(torch.load(saved)["dataloader_state_dict"])
        return batches, None, None

    train_valid_test_datasets_provider.is_distributed = True

`batch_size` of the loader is Megatron's micro-batch size.  Ranks that differ only in tensor, pipeline or context parallelism get the
same rows: the loader takes the data-parallel rank of Megatron's parallel state.  Another one, given as rank= and world_size=, is refused.
"""

from importlib import import_module
from typing import Any

from penstock.errors import PlanError
from penstock.extras.trainers.batch_stage import NAME, ROW_PLACES
from penstock.extras.trainers.future_labels import FUTURE_LABELS, FUTURE_WEIGHTS
from penstock.extras.trainers.parallelism import of_megatron, take_ranks
from penstock.loader import Loader
from penstock.loader.collate import IGNORE
from penstock.loader.map_dataset import require_tokens
from penstock.loader.stream import Stream
from penstock.loader.world import check_rank
from penstock.types import WEIGHTS, World

_AS_THEY_ARE = (
    *("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "total_tokens", "total_targets"),
    *(ROW_PLACES, "attention_mask"),
)


def packed_seq_params(batch: Any) -> Any:
    """Return Megatron's PackedSeqParams for the documents of a batch whose rows are cut for context parallelism."""
    parameters = import_module("megatron.core.packed_seq_params").PackedSeqParams
    return parameters(
        qkv_format="thd",
        cu_seqlens_q=batch["cu_seqlens"],
        cu_seqlens_kv=batch["cu_seqlens"],
        cu_seqlens_q_padded=batch["cu_seqlens_padded"],
        cu_seqlens_kv_padded=batch["cu_seqlens_padded"],
        max_seqlen_q=batch["max_seqlen"],
        max_seqlen_kv=batch["max_seqlen"],
    )


class MegatronBatches(Stream):
    """Batches with Megatron's names: tokens, labels, loss_mask, position_ids; of packed rows also cu_seqlens and max_seqlen."""

    def __init__(self, loader: Loader) -> None:
        require_tokens(loader, "Megatron", takes=[NAME])
        if loader.form.output != "torch" or loader.form.labels != "shifted":
            found = f"output={loader.form.output!r} and labels={loader.form.labels!r}"
            raise PlanError(
                f"the Loader has {found}, but Megatron takes tensors and does not shift labels; pass output='torch', labels='shifted'"
            )
        super().__init__(loader)
        self.check_ranks()

    def check_ranks(self) -> None:
        """Take the rows of Megatron's data-parallel rank; refuse another one, also `rank=0, world_size=1` among several of them."""
        ranks = of_megatron()
        info = self.loader.rank_info
        if ranks is None:
            self._check_without_state()
        elif info.origin == "arguments" and info.world != World(
            rank=ranks.data_rank, size=ranks.data_size
        ):
            raise PlanError(
                f"the Loader gives this process the rows of rank {info.world.rank} of {info.world.size}, and for Megatron it is "
                f"data-parallel rank {ranks.data_rank} of {ranks.data_size}; leave out rank, world_size and model_parallel_size: the "
                f"Loader takes Megatron's",
                code="rank_differs",
            )
        else:
            take_ranks(self.loader, ranks)

    def _check_without_state(self) -> None:
        """Without a parallel state it is not known which ranks need the same rows: only an argument can say so."""
        info = self.loader.rank_info
        check_rank(info)
        if len(info.members) > 1 and not info.is_explicit:
            raise PlanError(
                f"the Loader is rank {info.rank} of {len(info.members)} processes, and Megatron's parallel state is not initialised, so "
                f"which of them need the same rows is not known; make the batches after initialize_model_parallel"
            )

    def convert(self, batch: Any) -> dict[str, Any]:
        """Labels that are not trained are 0, with a loss mask of 0: Megatron's loss has no label to ignore.

        Weights of tokens are the values of the loss mask.
        """
        labels = batch["labels"]
        is_trained = labels != IGNORE
        more = {name: batch[name] for name in _AS_THEY_ARE if name in batch}
        if FUTURE_LABELS in batch:
            future = batch[FUTURE_LABELS]
            is_future_trained = future != IGNORE
            more[FUTURE_LABELS] = future.masked_fill(~is_future_trained, 0)
            more["future_loss_mask"] = is_future_trained * batch.get(FUTURE_WEIGHTS, 1.0)
        if ROW_PLACES in batch:
            more["packed_seq_params"] = packed_seq_params(batch)
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
