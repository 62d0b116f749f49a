"""`python -m muster`: the same as the `muster` command; `python -m muster train` is `train`."""

from muster.cli import main

main()
