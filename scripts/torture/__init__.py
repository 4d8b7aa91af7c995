"""What `scripts/torture.py` does: one file a fault, and what they share."""
