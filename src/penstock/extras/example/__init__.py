"""Small data and a tokenizer to try things on, made on this machine: `penstock example`."""
