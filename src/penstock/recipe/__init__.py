"""A whole job as one frozen value: from a YAML file, from keyword arguments, and back."""

from penstock.recipe.document import DataSet
from penstock.recipe.recipe import Recipe

__all__ = ["DataSet", "Recipe"]
