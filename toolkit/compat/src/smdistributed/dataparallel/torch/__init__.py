"""PyTorch: `torch_smddp` for the backend; `distributed` and `parallel` for the older API."""
