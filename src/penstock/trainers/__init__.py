"""Trainers that take a Loader: a short public name for each module of penstock.extras.trainers."""

import penstock.loader  # noqa: F401  the core before its extras, until the core imports none of them
