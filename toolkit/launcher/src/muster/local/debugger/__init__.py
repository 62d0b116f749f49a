"""`--debug` and `--pdb`: one rank of a run, and the person who looks into it."""
