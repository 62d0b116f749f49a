#!/usr/bin/env bash
# As slim-torch.sh, for the environment with CUDA: torch.compile stays whole (C++ headers, triton).
set -euo pipefail
site=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$site"/torch/test "$site"/torch/bin/*test*
find "$site" -name '*.pyi' -delete
find "$site" -type d -name __pycache__ -prune -exec rm -rf {} +
find "$site"/{numpy,sympy,networkx,mpmath,setuptools} -type d -name tests -prune -exec rm -rf {} +
/opt/venv/bin/python "$(dirname "$0")/warm.py"
