#!/usr/bin/env bash
# Removes what apt and dpkg leave and nobody reads: lists, archives, logs, caches that hold times.
set -euo pipefail
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache \
  /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log \
  /var/lib/dpkg/*-old /tmp/* /var/tmp/*
