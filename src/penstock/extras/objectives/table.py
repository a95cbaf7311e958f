"""The objectives of this folder, as plugins of the group `objectives`."""

from penstock.extras.objectives.bpe_dropout import make_bpe_dropout
from penstock.extras.objectives.fim import make_fim
from penstock.extras.objectives.masked_diffusion import make_masked_diffusion
from penstock.extras.objectives.settings import (
    BpeDropoutSettings,
    FimSettings,
    MaskedDiffusionSettings,
    SpanCorruptionSettings,
)
from penstock.extras.objectives.span_corruption import make_span_corruption
from penstock.plan.objectives import ObjectivePlugin

FIM = ObjectivePlugin(settings=FimSettings, make=make_fim)
SPAN_CORRUPTION = ObjectivePlugin(settings=SpanCorruptionSettings, make=make_span_corruption)
MASKED_DIFFUSION = ObjectivePlugin(settings=MaskedDiffusionSettings, make=make_masked_diffusion)
BPE_DROPOUT = ObjectivePlugin(settings=BpeDropoutSettings, make=make_bpe_dropout)
