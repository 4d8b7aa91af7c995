"""Memory: embeddings, the index and search."""

import os

# onnxruntime, which fastembed and qdrant_client import, reports its use to Microsoft and writes an
# identifier of this machine to the home folder. The variable must be set before the first import.
# Source: Privacy.md in its package, "Disabling Telemetry".
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # noqa: TID251  # set for a library, not read

# huggingface_hub reports the installed libraries to the hub by default.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # noqa: TID251  # likewise
