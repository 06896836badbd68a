"""Many runs as one piece of work: what they are, what they cost, a queue that works them off."""
