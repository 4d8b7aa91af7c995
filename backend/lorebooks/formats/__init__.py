"""Readers and writers of lorebook files, from and to JSON values.

`reader.read_file` detects the format of a file from its content. `writer` writes World Info, V2 and
V3. Import is lenient and keeps the source. Export returns the source with the edits made since. No
database, network or clock is used.
"""
