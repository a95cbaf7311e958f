"""Trainers that take a Loader: a short public name for each module of penstock.extras.trainers."""
