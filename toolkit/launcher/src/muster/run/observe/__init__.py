"""What is seen of a running job: looks at its ranks, questions between hosts, one verdict."""
