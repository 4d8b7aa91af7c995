"""A zoo of what real servers send, and what is to become of it: one row for each oddity."""
