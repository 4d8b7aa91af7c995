"""Read and write character cards. Bytes in, values out: no database, no network, no clock.

`reader.read_card` reads a PNG, CHARX, JSON or YAML file of any version of the format. `writer` has
`to_json`, `to_png` and `to_charx`. Import is lenient and keeps the source. Export is strict and
restores data of the source that the model does not contain.
"""
