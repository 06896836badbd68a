"""Every claim of this project, and the program that measures it."""
