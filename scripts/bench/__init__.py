"""Benchmarks, each next to a peer and a floor if there is one. Run them with `scripts/bench.py`."""
