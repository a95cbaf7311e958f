"""Files of tokens and samples that other tools write."""
