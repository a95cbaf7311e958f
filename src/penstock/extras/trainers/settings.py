"""Keyword arguments of `penstock.Loader` for trainers: parts of rows for context parallelism, and labels of more than one token."""

from dataclasses import dataclass

from penstock.settings import Declared, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerBatchSettings:
    """What trainers need next to whole rows with one label per token."""

    context_split: str | None = setting(
        "each rank of a context-parallel group gets a part of every row: contiguous (one piece, as Ulysses takes it), zigzag (two "
        "pieces, so that all ranks have as much to compute, as Megatron and ring attention take them), or striped (every n-th token)",
        None,
        choices=(None, "contiguous", "zigzag", "striped"),
    )
    context_unit: str = setting(
        "what context_split divides: row, or document, each document (sample) of a row by itself",
        "row",
        choices=("row", "document"),
    )
    context_size: int | None = setting(
        "ranks of a context-parallel group; null reads them from mesh= or from Megatron's parallel state",
        None,
        choices=(None,),
        whole=True,
        least=1,
    )
    context_rank: int | None = setting(
        "this rank in its context-parallel group; null reads it from mesh=, from Megatron's parallel state, or from "
        "model_parallel_size of the same size",
        None,
        choices=(None,),
        whole=True,
        least=0,
    )
    future_labels: int = setting(
        "for multi-token prediction: labels of so many tokens after the next one, in the array future_labels (rows, depth, length); a "
        "label never crosses the border of a document",
        0,
        whole=True,
        least=0,
    )

    def __post_init__(self) -> None:
        check_settings(self)


SETTINGS = Declared(function="Loader", settings=TrainerBatchSettings)
