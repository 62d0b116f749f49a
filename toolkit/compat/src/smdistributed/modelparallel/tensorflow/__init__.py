"""TensorFlow: not there."""

raise ImportError(
    "muster has the PyTorch names of smdistributed.modelparallel, not those of TensorFlow: "
    "see docs/reference/verified.md"
)
