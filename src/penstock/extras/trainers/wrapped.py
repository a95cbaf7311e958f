"""Find the model inside of what wraps it: DDP, FSDP, torch.compile, DeepSpeed, Fabric, PEFT.

A wrapper hides what a model is asked for: its config, its class, and the arguments of its forward.  None of these packages is imported
here; a wrapper of a package that the program has not imported cannot exist.
"""

import sys
from typing import Any

import torch

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
_IN_PLACE = ("torch.distributed.fsdp", "FSDPModule")  # FSDP2: the model itself has this class


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


def wrapper_of(model: Any) -> str:
    """Return how a model is wrapped that a simple forward may not run in: sharded or compiled; "" if it is not."""
    for module in model.modules():
        if _is_a(module, *_IN_PLACE):
            return "sharded by FSDP2"
        for kind, name in zip(_AROUND_SHARDS, ("FSDP", "DeepSpeed"), strict=True):
            if _is_a(module, *kind):
                return f"sharded by {name}"
        if hasattr(module, "ds_inflight_param_registry"):
            return "sharded by DeepSpeed"
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None):
            return "compiled"
    return ""


def compute_types(model: Any) -> set[torch.dtype]:
    """Return the types in which FSDP2 computes, whatever the type of the weights that it keeps."""
    found = set()
    for module in model.modules():
        if _is_a(module, *_IN_PLACE):
            policy = module._get_fsdp_state()._mp_policy
            found |= {policy.param_dtype} - {None}
    return found


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
