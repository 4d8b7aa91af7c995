"""Regex scripts of accounts and of cards: kept, tried, and put to work on messages."""
