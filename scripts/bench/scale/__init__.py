"""The benchmark of `scripts/bench_scale.py`."""
