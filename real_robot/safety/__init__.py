"""Safety layer for every command: limits, checks, states, stops and the guard."""
