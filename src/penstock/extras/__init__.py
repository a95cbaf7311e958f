"""Capabilities that plug into the core through `penstock.plugins`.  Each folder is one; its README says what it adds."""
