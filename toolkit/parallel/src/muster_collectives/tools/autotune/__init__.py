"""`python -m muster_collectives.autotune`: finds the sizes that suit this machine."""
