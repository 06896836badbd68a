"""Speed comparison of this project with other implementations: `offline-rl bench`."""
