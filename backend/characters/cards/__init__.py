"""Character cards, read and written: bytes in, values out.

`reader.read_card` takes a PNG, CHARX, JSON or YAML file of any version of the format; `writer`
has `to_json`, `to_png` and `to_charx`. Import is lenient and keeps the source; export is strict
and gives back what the source held beyond the model. No database, no network, no clock.
"""
