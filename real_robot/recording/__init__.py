"""Every tick, to a ring and from there to disk, without the loop waiting; and back."""
