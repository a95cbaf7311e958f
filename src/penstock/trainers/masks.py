"""Turn a batch's 4-D mask of True and False into what a model's attention takes."""

from penstock.extras.trainers.masks import attention_of, masks_for

__all__ = ["attention_of", "masks_for"]
