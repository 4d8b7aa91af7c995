"""`talekeeper` with the index of `scripts.torture.index_process` instead of a Qdrant server's.

python -m scripts.bench.scale.process serve|work [ARGUMENT...]
"""

from __future__ import annotations

import sys

from backend.cli import main
from scripts.torture.process import share_index

if __name__ == "__main__":
    share_index()
    sys.exit(main(sys.argv[1:]))
