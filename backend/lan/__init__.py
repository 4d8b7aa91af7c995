"""The local network: this machine's addresses there, and self-made certificates for them."""
