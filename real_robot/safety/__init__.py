"""What no command gets round: limits, the check, the states, the stops, and who may command."""
