"""The table of model families whose media Penstock can count.  A new family is one entry here, and one in `loader_families.DECODERS`."""

from dataclasses import dataclass

from penstock.extras.media.families import Family, Qwen2_5VL, Qwen2VL, Qwen3VL
from penstock.extras.media.tiled_families import (
    Gemma3,
    Idefics3,
    InternVL,
    Llava,
    Pixtral,
    Qwen2_5Omni,
    Qwen2Audio,
)


@dataclass(frozen=True, slots=True)
class FamilyEntry:
    """How a family is recognised, and the class that counts its tokens."""

    processor_class: str  # as the files of a model's folder write it
    counts: type[Family]


# By the model's type, as config.json writes it.
_ENTRIES = {
    "qwen2_vl": FamilyEntry("Qwen2VLProcessor", Qwen2VL),
    "qwen2_5_vl": FamilyEntry("Qwen2_5_VLProcessor", Qwen2_5VL),
    "qwen3_vl": FamilyEntry("Qwen3VLProcessor", Qwen3VL),
    "idefics3": FamilyEntry("Idefics3Processor", Idefics3),
    "smolvlm": FamilyEntry("SmolVLMProcessor", Idefics3),
    "gemma3": FamilyEntry("Gemma3Processor", Gemma3),
    "llava": FamilyEntry("LlavaProcessor", Llava),
    "internvl": FamilyEntry("InternVLProcessor", InternVL),
    "pixtral": FamilyEntry("PixtralProcessor", Pixtral),
    "qwen2_audio": FamilyEntry("Qwen2AudioProcessor", Qwen2Audio),
    "qwen2_5_omni_thinker": FamilyEntry("Qwen2_5OmniProcessor", Qwen2_5Omni),
}
PROCESSOR_CLASSES = {entry.processor_class: name for name, entry in _ENTRIES.items()}
FAMILIES = {name: entry.counts for name, entry in _ENTRIES.items()}
