"""What moves the robot in time: clock, shared memory, schedule, loop, and the other processes."""
