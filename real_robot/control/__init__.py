"""Real-time control: clock, shared memory, schedule, loop and the processes of a run."""
