#!/usr/bin/env bash
# neuron-venv.sh LOCK NEURON_INDEX TORCH_INDEX: /opt/venv by the lock, or a refusal: without hashes
# nothing says that the wheels are the ones that were tried.
set -euo pipefail
lock=$1 neuron_index=$2 torch_index=$3
fail() { printf 'neuron-venv.sh: %s: %s\n' "docker/constraints/$(basename "$lock")" "$1" >&2; exit 1; }

[ -s "$lock" ] || fail "is not there. Make it where $neuron_index can be reached: make lock-neuron"
for name in torch-neuronx neuronx-cc neuronx-distributed nki torch; do
  grep -Eqi "^${name//-/[-_]}==" "$lock" || fail "does not lock $name: make lock-neuron"
done
without=$(awk '/^[A-Za-z0-9]/ {if (name && !hashed) print name; name = $1; hashed = 0}
  /--hash=sha256:/ {hashed = 1} END {if (name && !hashed) print name}' "$lock")
[ -z "$without" ] || fail "no hash for ${without//$'\n'/ }: make lock-neuron"
PIP_EXTRA_INDEX_URL="$neuron_index $torch_index" "$(dirname "$0")/venv.sh" "$lock"
