"""Lorebook files, read and written: JSON values in, values out.

`reader.read_file` takes a file of any of the field's formats, told apart by what is in it;
`writer` writes World Info, V2 and V3. Import is lenient and keeps the source; export gives back
what came in, with what was changed since. No database, no network, no clock.
"""
