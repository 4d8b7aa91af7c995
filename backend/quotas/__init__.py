"""Limits on the storage and the requests of one account."""
