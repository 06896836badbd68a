"""Training targets and losses of diffusion and flow policies."""
