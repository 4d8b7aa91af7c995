#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Run one benchmark.

    scripts/bench.py NAME [OPTION...]

Without a name it lists the names. `scripts/bench.py NAME --help` explains one of them.
"""

from __future__ import annotations

from scripts.bench.commands import main

if __name__ == "__main__":
    main()
