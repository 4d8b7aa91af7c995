"""JavaScript regular expressions of users, executed within limits."""
