"""`python -m muster_collectives.bench`: ours beside gloo's and Open MPI's."""
