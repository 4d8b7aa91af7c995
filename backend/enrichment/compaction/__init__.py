"""Compaction: tool calls of a model bring the state of a campaign up to date with unread messages.

`reader` loads the messages and the items that their audience may know. `tools` are the eleven tools
of the model, `drafts` turns calls into changes, `writer` writes them, and `task` is the job.
"""
