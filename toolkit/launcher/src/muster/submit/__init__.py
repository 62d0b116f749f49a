"""`muster submit`: hands a job to Slurm, Kubernetes, AWS Batch or hosts reached by ssh."""
