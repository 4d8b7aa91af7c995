#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Measure an installation of several processes while its tables grow and a process is lost.

    scripts/bench_scale.py [--database URL] [--qdrant URL] [OPTION...]

`scripts/bench_scale.py --help` lists the options.
"""

from __future__ import annotations

from scripts.bench.scale.main import main

if __name__ == "__main__":
    main()
