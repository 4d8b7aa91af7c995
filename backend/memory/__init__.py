"""Memory: what turns texts into vectors, the index over them, and search."""

import os

# onnxruntime, under fastembed, sends reports of its use to Microsoft and writes an identifier of
# this machine to the home folder, unless it is told not to before it is first imported. Importing
# qdrant_client imports it too. Source: Privacy.md in its package, "Disabling Telemetry".
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # noqa: TID251  # said to a library, not read

# huggingface_hub tells the hub which libraries are installed here, unless told not to.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # noqa: TID251  # likewise
