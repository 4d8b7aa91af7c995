"""Faults, hostile input and their checks, for `scripts/torture.py`."""
