"""Further tables of a report, below the table of scores."""
