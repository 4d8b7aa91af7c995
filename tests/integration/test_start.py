"""What a start leaves for later: libraries that most servers need late, or never."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SERVE = """
import sys
from backend import cli
from backend.server import Server

serve = Server.serve

async def serve_shortly(self, **options):
    self.should_exit = True  # as soon as it has started
    await serve(self, **options)

Server.serve = serve_shortly
failed = cli.main(["serve", "--port", "0", "--data-dir", sys.argv[1]])
print("imported:", *sys.modules, sep="\\n")
sys.exit(failed)
"""

LATER = {
    *("alembic", "google.genai", "splintr", "tiktoken"),
    *("fastembed", "huggingface_hub", "onnxruntime", "qdrant_client", "qdrant_edge"),
    *("PIL", "httpx2", "markdown_it", "minify_html", "pygments", "rich", "segno"),
    *("cryptography.x509", "psutil"),
}


def test_a_start_imports_nothing_that_can_wait(tmp_path: Path) -> None:
    for _ in ("makes the tables", "finds them made"):
        done = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    imported = set(done.stdout.partition("imported:\n")[2].split())

    assert "litestar" in imported
    assert not imported & LATER
