"""A table of unusual answers of real servers and their expected results."""
