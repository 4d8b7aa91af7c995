"""How much one account may store and do: definitions, counters, the middleware that asks."""
