#!/usr/bin/env -S sh -c 'exec "$(dirname "$0")/_python" "$0" "$@"'
"""Test the promises of reliability with kills, hostile input and faults.

    scripts/torture.py [--kills N | --minutes N] [--database sqlite|postgres|URL] [--qdrant URL]
                       [--only GROUP] [--seed N] [--json]

docs/explanation/reliability.md lists the promises. The exit status is 0 only if all of them held.
"""

from __future__ import annotations

import sys

from scripts.torture.main import main

if __name__ == "__main__":
    sys.exit(main())
