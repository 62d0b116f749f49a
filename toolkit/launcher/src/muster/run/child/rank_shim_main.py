"""Starts `rank_shim` from its bytecode: `python -I -S rank_shim_main.py [ROLE]`.

Python compiles a script anew at each start, and keeps what it compiled of a module: a script of the
shim's length takes 3 ms of each rank.
"""

import os
import sys

# last: nothing there stands before a module of Python's own
sys.path.append(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
)

from muster.run.child.rank_shim import main

os._exit(main())
