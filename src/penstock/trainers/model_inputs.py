"""Turn a batch into the keyword arguments of a transformers model's forward."""

from penstock.extras.trainers.model_inputs import Inputs, ModelInputs, NamedInputs, inputs_for

__all__ = ["Inputs", "ModelInputs", "NamedInputs", "inputs_for"]
