"""Updates per second, ours and others', in turns: `offline-rl bench`."""
