"""Regular expressions that users write: JavaScript's, run within limits."""
