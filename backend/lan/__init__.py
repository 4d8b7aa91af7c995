"""The local network: this machine's addresses there, and certificates of its own for them."""
