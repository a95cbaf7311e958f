"""Find the model inside of what wraps it: DDP, FSDP, torch.compile, DeepSpeed, Fabric, PEFT.

A wrapper hides what a model is asked for: its config, its class, and the arguments of its forward.  None of these packages is imported
here; a wrapper of a package that the program has not imported cannot exist.
"""

import sys
from typing import Any

# Modules with classes whose attribute `module` is the model that they wrap.
_AROUND_ONE_COPY = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.nn.parallel", "DataParallel"),
    ("lightning.fabric.wrappers", "_FabricModule"),
    ("lightning_fabric.wrappers", "_FabricModule"),
)
_AROUND_SHARDS = (  # a forward of the model inside does not run: it has a part of the weights only
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("deepspeed", "DeepSpeedEngine"),
)


def bare_model(model: Any) -> Any:
    """Return the innermost model, which knows its config and the arguments of its forward.

    Adapters of PEFT change the layers of this model in place, and pass on every argument that they do not name.
    """
    while True:
        inner = _inside(model, (*_AROUND_ONE_COPY, *_AROUND_SHARDS))
        if inner is model and _is_a(model, "peft", "PeftModel"):
            inner = model.get_base_model()
        if inner is model:
            return model
        model = inner


def runnable_model(model: Any) -> Any:
    """Return the model without wrappers that a forward outside of training does not need.

    A forward of DDP may wait for other ranks, and a compiled one compiles for each shape.  FSDP and DeepSpeed stay: without them a model
    has a part of its weights.  PEFT stays, too: prompts that it learns are part of the model.
    """
    while (inner := _inside(model, _AROUND_ONE_COPY)) is not model:
        model = inner
    return model


def _inside(model: Any, kinds: tuple[tuple[str, str], ...]) -> Any:
    """Return what a wrapper wraps; the model itself if it is none."""
    if "_orig_mod" in getattr(model, "_modules", {}):  # of torch.compile
        return model._orig_mod
    if any(_is_a(model, *kind) for kind in kinds):
        return model.module
    return model


def _is_a(model: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(model, kind)
