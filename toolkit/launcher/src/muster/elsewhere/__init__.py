"""`muster run`: one host of a job that another engine than SageMaker started."""
