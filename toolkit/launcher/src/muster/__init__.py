"""muster: SageMaker-compatible distributed training that runs anywhere."""
