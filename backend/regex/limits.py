"""Limits of one search in the worker, for both of its ends."""

MAX_MEMORY = 1 << 28
"""Bytes of memory. A pattern that needs more is given up."""

FAIR_SHARE = 0.5
"""The share of its time that a search must have had on a processor to be called late."""

MAX_SECONDS_OVERDUE = 1.0
"""Seconds of wall clock after its deadline that end a search, however little of it could run."""
