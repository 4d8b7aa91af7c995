"""Compaction: what was said since it was read last goes into the campaign's state, by tool calls.

`window` finds the messages, `known` reads what their audience may know, `tools` are the eleven
that the model calls, `drafts` makes changes of the calls, `writing` writes them all at once, `task`
does all of that for a job.
"""
