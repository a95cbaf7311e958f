"""Which convention does the model follow?  How rows become arrays, as one frozen value, checked once."""

from dataclasses import dataclass
from importlib.util import find_spec

from penstock.errors import PlanError
from penstock.plan.settings import whole_number

_CHOICES = {
    "padding": ("longest", "max_length"),
    "pad_side": ("right", "left"),
    "labels": ("unshifted", "shifted"),
    "attention_mask": ("auto", "none", "4d"),
    "output": ("numpy", "torch"),
}

NOT_INDEXED = (
    "a Loader gives batches in order and cannot be indexed, so it is no data set for Trainer(train_dataset=…) or DataLoader(…). "
    "For transformers use penstock.integrations.hf_trainer.LoaderTrainer(loader=…), for trl "
    "penstock.integrations.trl.LoaderSFTTrainer(loader=…), for torch iterate over the Loader itself or use "
    "DataLoader(loader.as_dataset(), batch_size=None)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchForm:
    """Nothing here changes which tokens a step holds, so it may change between a checkpoint and its resume.

    padding_free: one flat row of all tokens.  padding: of unpacked rows.  labels: "shifted" for models that do not shift.
    attention_mask: "auto" is a plain one for unpacked rows and none for packed ones, "4d" is block-diagonal and causal.
    """

    output: str = "torch"
    padding_free: bool = False
    padding: str = "longest"
    pad_side: str = "right"
    pad_to: int = 1  # the row's length, or the flat row's, becomes a multiple
    pad_id: int = 0
    labels: str = "unshifted"
    attention_mask: str = "auto"
    pin_memory: bool = False

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if (value := getattr(self, name)) not in known:
                raise PlanError(f"{name} is {value!r}, expected one of {', '.join(known)}")
        for name in ("padding_free", "pin_memory"):
            if not isinstance(getattr(self, name), bool):
                raise PlanError(f"{name} is {getattr(self, name)!r}, expected True or False")
        object.__setattr__(self, "pad_to", whole_number("pad_to", self.pad_to, least=1))
        object.__setattr__(self, "pad_id", whole_number("pad_id", self.pad_id, least=0))
        if self.pin_memory and self.output != "torch":
            raise PlanError("pin_memory is for output='torch'; numpy arrays cannot be pinned")
        if self.padding_free and self.attention_mask == "4d":
            raise PlanError(
                "a 4-D mask of one flat row would have the square of all its tokens; choose cu_seqlens instead"
            )
        if self.padding_free and self.pad_side == "left":
            raise PlanError("padding_free rows have no padding to put on the left")


def require_torch(wish: str, instead: str) -> None:
    """Refuse a wish that only torch can grant, where it is not installed."""
    if find_spec("torch") is None:
        raise PlanError(f"{wish} needs torch, which is not installed: pip install 'penstock[torch]', or {instead}")
