"""The stage of settings for trainers: labels of more than one token, then the part of each row that this rank gets.

Everything that looks at a token's neighbours is made before the cut: labels, future labels, positions.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.extras.trainers.context import RowCut, documents_of
from penstock.extras.trainers.context_ranks import (
    find_part,
    refuse_missing_parts,
    refuse_unshared_rows,
)
from penstock.extras.trainers.future_labels import add_future_labels
from penstock.extras.trainers.settings import TrainerBatchSettings
from penstock.loader.collate import IGNORE, fixed_size
from penstock.loader.kind import SampleKind
from penstock.loader.loader import Loader
from penstock.loader.stages import Made, close
from penstock.plan.settings import PlanSettings
from penstock.types import MEDIA, Column

NAME = "context_split or future_labels"  # of the plugin, and of its stage in a Loader
ROW_PLACES = "row_places"  # where each token of a part stands in its row


_NEXT_TOKEN = ("fim", "bpe_dropout")  # objectives after which labels are still the next tokens


class TrainerStage:
    """Changes the batches of one Loader."""

    def __init__(
        self,
        settings: TrainerBatchSettings,
        order: PlanSettings,
        of_loader: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self._order = order
        self._of_loader = of_loader

    @property
    def cuts_rows(self) -> bool:
        return self.settings.context_split is not None

    def __call__(self, made: Iterator[Made]) -> Iterator[Made]:
        """Yield batches with what the settings ask for."""
        # only here: when a Loader is made, its trainer may not have divided its ranks yet
        cut = self.cut() if self.cuts_rows else None
        try:
            for each in made:
                arrays = each.arrays
                if self.settings.future_labels:
                    is_shifted = self._of_loader["labels"] == "shifted"
                    add_future_labels(
                        arrays, depth=self.settings.future_labels, is_shifted=is_shifted
                    )
                if cut is not None:
                    arrays = self._part(cut, each)
                yield each._replace(arrays=arrays)
        finally:
            close(made)

    def cut(self) -> RowCut:
        """Return how rows are cut, and which part this process gets."""
        settings = self.settings
        part = find_part(settings, self._of_loader)
        assert settings.context_split is not None
        cut = RowCut(
            split=settings.context_split,
            by_document=settings.context_unit == "document",
            size=part.size,
            rank=part.rank,
        )
        self._check_sizes(cut)
        return cut

    def _check_sizes(self, cut: RowCut) -> None:
        """Refuse rows or documents that do not divide among the ranks."""
        asked = f"context_split={cut.split!r} over {cut.size} ranks"
        if cut.by_document and self._order.align % cut.multiple:
            raise PlanError(
                f"{asked} cuts each document into {cut.multiple} pieces of one size, and align={self._order.align}; pass "
                f"align={cut.multiple}, or context_unit='row'",
                code="context_sizes",
            )
        pad_to = self._of_loader["pad_to_multiple_of"]
        is_fixed = self._of_loader["padding"] == "max_length" or self._order.method.is_packed
        length = self._order.max_length if is_fixed and not self._of_loader["padding_free"] else 0
        padded_length = -(-length // pad_to) * pad_to
        divides = padded_length % cut.multiple == 0 if length else pad_to % cut.multiple == 0
        if not divides:
            rows = f"rows of {padded_length}" if length else f"rows of a multiple of {pad_to}"
            raise PlanError(
                f"{asked} cuts each row into {cut.multiple} pieces of one size, and the Loader makes {rows} tokens; pass "
                f"pad_to_multiple_of={cut.multiple}",
                code="context_sizes",
            )

    def _part(self, cut: RowCut, made: Made) -> dict[str, Any]:
        """Return the arrays of this rank's part."""
        arrays = made.arrays
        num_rows, length = arrays["input_ids"].shape
        documents = documents_of(
            made.share.rows,
            length=length,
            align=self._order.align,
            is_flat=self._of_loader["padding_free"],
            joined=self._of_loader["documents"] == "joined",
        )
        rooms = documents.rooms if cut.by_document else np.full(num_rows, length)
        places = cut.places(rooms)
        part = {name: _taken(value, places, num_rows, length) for name, value in arrays.items()}
        in_row = places.reshape(num_rows, -1) - length * np.arange(num_rows)[:, None]
        part[ROW_PLACES] = in_row
        most = self._of_loader["max_segments"]
        padded = documents.padded_borders.astype(np.int32)
        part["cu_seqlens"] = fixed_size(documents.borders.astype(np.int32), most)
        part["cu_seqlens_padded"] = fixed_size(padded, most)
        part["max_seqlen"] = int(documents.rooms.max())
        part["total_tokens"] = int(documents.tokens.sum())
        part["total_targets"] = int(np.count_nonzero(arrays["labels"] != IGNORE))
        if cut.by_document:
            part["cu_seqlens_part"] = fixed_size(padded // cut.size, most)
            part["max_seqlen_part"] = part["max_seqlen"] // cut.size
        return part


def _taken(value: Any, places: np.ndarray, num_rows: int, length: int) -> Any:
    """Return an array's values at these places of the rows, which lie end to end; what has no value per token stays."""
    if not isinstance(value, np.ndarray) or value.ndim < 2 or value.shape[0] != num_rows:
        return value
    if value.shape[-1] != length:
        return value
    if value.ndim == 2:
        return value.ravel()[places].reshape(num_rows, -1)
    in_rows = (places.reshape(num_rows, -1) % length)[:, None, :]  # (rows, depth, length)
    return np.take_along_axis(value, in_rows, axis=2)


class TrainerBatches:
    """The plugin."""

    settings = TrainerBatchSettings

    def open(
        self,
        settings: TrainerBatchSettings,
        *,
        kind: SampleKind,
        columns: Iterable[Column],
        order: PlanSettings,
        of_loader: Mapping[str, Any],
    ) -> TrainerStage | None:
        """Return the stage; None where the settings ask for nothing."""
        if settings.context_split is None:
            _refuse_without_split(settings)
            if not settings.future_labels:
                return None
        asked = f"future_labels={settings.future_labels}"
        if settings.context_split is not None:
            asked = f"context_split={settings.context_split!r}"
        if kind.name != "tokens":
            raise PlanError(f"{asked} is for rows of tokens, and this Loader has {kind.name}")
        _refuse_objective(asked, order)
        if settings.context_split is not None:
            _check_layout(asked, columns, of_loader)
        return TrainerStage(settings, order, of_loader)


def _refuse_objective(asked: str, order: PlanSettings) -> None:
    """Refuse samples whose labels are not the next tokens of one sequence."""
    objective = order.objective
    name = objective.get("name") if isinstance(objective, dict) else objective
    if name not in (None, *_NEXT_TOKEN):
        raise PlanError(
            f"{asked} is for samples whose labels are the next tokens, and the Loader has objective {name!r}; leave one of them out"
        )


def _refuse_without_split(settings: TrainerBatchSettings) -> None:
    """Refuse settings of a cut that is not asked for."""
    given = [
        f"{name}={value!r}"
        for name, value, default in (
            ("context_size", settings.context_size, None),
            ("context_rank", settings.context_rank, None),
            ("context_unit", settings.context_unit, "row"),
        )
        if value != default
    ]
    if given:
        raise PlanError(
            f"{' and '.join(given)} would have no effect without context_split: pass contiguous, zigzag or striped, or leave it out"
        )


def _check_layout(asked: str, columns: Iterable[Column], of_loader: Mapping[str, Any]) -> None:
    """Refuse layouts that cannot be cut."""
    if MEDIA in columns:
        raise PlanError(f"{asked} cuts rows of text, and these stores have media; leave it out")
    required = {"labels": "shifted", "pad_side": "right"}
    why = {
        "labels": "a label may be in the part of another rank, so labels are shifted before the cut",
        "pad_side": "padding stands behind the documents of a row",
    }
    for name, value in required.items():
        if of_loader[name] != value:
            raise PlanError(
                f"{asked} needs {name}={value!r} and the Loader has {name}={of_loader[name]!r}: {why[name]}"
            )
    if of_loader["attention_mask"] == "4d":
        raise PlanError(
            f"{asked} and attention_mask='4d' contradict each other: a part has the tokens of one rank, and its attention reads borders; "
            f"leave attention_mask out"
        )
    if of_loader["output"] == "jax":
        raise PlanError(f"{asked} is for output='torch' and 'numpy'; with jax, shard the rows")


TRAINER_BATCHES = TrainerBatches()


def stage_of(loader: Loader) -> TrainerStage | None:
    """Return the stage of a Loader; None if none of its settings was given."""
    stage = loader.parts.stages.get(NAME)
    assert stage is None or isinstance(stage, TrainerStage)
    return stage


def cuts_rows(loader: Loader) -> bool:
    """Whether batches of a Loader hold parts of rows."""
    stage = stage_of(loader)
    return stage is not None and stage.cuts_rows


def check_parts(loader: Loader) -> None:
    """Refuse to cut rows that no other rank has the rest of."""
    stage = stage_of(loader)
    if stage is not None and stage.cuts_rows:
        cut = stage.cut()
        refuse_unshared_rows(cut, loader.rank_info)
        if stage.settings.context_rank is not None:
            refuse_missing_parts(cut, loader.rank_info)
