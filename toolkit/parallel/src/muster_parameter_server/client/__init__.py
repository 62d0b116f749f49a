"""The worker's side: joining, buffers of parameters and gradients, steps, the end."""
