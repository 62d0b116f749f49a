"""SageMaker's files and variables, at the edge: read into a Job, written from an Outcome.

`read` makes the Job, `environ` and `to_argv` what a script receives, `report` the status files.
No later layer knows that the engine was SageMaker.
"""
