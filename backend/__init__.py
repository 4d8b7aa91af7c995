"""Talekeeper: the backend of a roleplay chat web app."""

__version__ = "0.1.0"
