#!/usr/bin/env bash
# neuron.sh URL SUITE FINGERPRINT PACKAGE=VERSION...: the Neuron runtime, collectives and tools from
# AWS's apt repository, which must be signed by the key of that fingerprint and no other. The kernel
# module (dkms) is the host's. A VERSION is whole, or lacks only upstream's build hash.
set -euo pipefail
url=$1 suite=$2 fingerprint=$3
shift 3
keyring=/etc/apt/keyrings/neuron.gpg
source=/etc/apt/sources.list.d/neuron.list
export DEBIAN_FRONTEND=noninteractive
fail() { printf 'neuron.sh: %s\n' "$1" >&2; exit 1; }

trust=()  # of a network with a certificate of its own
if [ -f /run/secrets/ca_bundle ]; then trust=(-o Acquire::https::CAInfo=/run/secrets/ca_bundle); fi
# the keyring comes from a stage that has gpg (neuron-key.sh)
install -D -m 644 /run/keyring/neuron.gpg "$keyring"
printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$url" "$suite" > "$source"
apt-get update -qq "${trust[@]}" -o APT::Update::Error-Mode=any ||
  fail "$url is not signed by $fingerprint or does not answer; nothing was installed"

wanted=()
for pin in "$@"; do
  name=${pin%%=*} version=${pin#*=}
  mapfile -t found < <(apt-cache madison "$name" | awk -F ' *[|] *' '{print $2}' | sort -u |
    awk -v v="$version" '$1 == v || index($1, v "-") == 1')
  [ ${#found[@]} -eq 1 ] || fail "$name must be there once in version $version; \
found: ${found[*]:-none of $(apt-cache madison "$name" | wc -l)}"
  wanted+=("$name=${found[0]}")
done
printf 'neuron.sh: %s\n' "${wanted[*]}"
apt-get install -y -qq --no-install-recommends "${trust[@]}" "${wanted[@]}"
"$(dirname "$0")/ld-paths.sh" /opt/aws/neuron/lib /opt/amazon/efa/lib{,64} /opt/amazon/openmpi5/lib{,64}
