"""Actor processes that collect episodes for one learner. Imported only if `actors=` is set."""
