#!/usr/bin/env bash
# ssh.sh 1|0: openssh for the MPI driver of SageMaker's SDK v3, and nothing else: no key of any kind. The real
# sshd goes to /usr/sbin/sshd.distrib; what stands in its place (docker/rootfs) makes a job's keys.
set -euo pipefail
if [ "$1" = 0 ]; then exit 0; fi
export DEBIAN_FRONTEND=noninteractive
export SOURCE_DATE_EPOCH=$STEP_EPOCH  # /etc/shadow names the day on which an account was made
apt-get update -qq
apt-get install -y -qq --no-install-recommends openssh-client openssh-server
# in this same layer: the package makes host keys when it is installed
rm -f /etc/ssh/ssh_host_*
# and would make them again when an image that is built on ours upgrades it
printf '\n# keys are made when sshd starts, never in an image\nHostKey none\n' >> /etc/ssh/sshd_config
dpkg-divert --quiet --local --rename --divert /usr/sbin/sshd.distrib --add /usr/sbin/sshd
install -d -m 755 /run/sshd # sshd wants it, and nothing makes it where the root is read-only
# the wrapper that makes a job's keys
cp -r --no-preserve=timestamps "$(dirname "$0")/rootfs/." /
if compgen -G '/etc/ssh/ssh_host_*' || compgen -G '/root/.ssh/*'; then
  echo 'ssh.sh: a key was left' >&2
  exit 1
fi
