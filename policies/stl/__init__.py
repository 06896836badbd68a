"""Signal temporal logic: formulas, exact and smooth robustness, and the backup policy."""
