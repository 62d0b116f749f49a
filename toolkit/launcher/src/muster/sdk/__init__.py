"""The client side: what users of the SageMaker SDKs call before a job exists."""
