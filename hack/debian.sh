# SPDX-License-Identifier: Apache-2.0
#
# How a Debian of one's own is made, in a folder, from the archive that the host's own apt sources name. Sourced by those
# who need one; they say what say and die do. root is needed.
# shellcheck shell=bash

# debian_archives SUITE: prints a source line for each part of Debian's archive that the host's sources name.
debian_archives() {
  apt-get indextargets --format 'deb $(SITE) $(RELEASE) main' 'Created-By: Packages' 'Origin: Debian' 'Component: main' |
    grep -E " $1(-updates|-security)? " | sort -u
}

# debian_base SUITE ROOT SCRATCH: makes the smallest Debian there is in ROOT, by debootstrap, which is unpacked into SCRATCH
# and not installed. No package that is installed into it later starts a service, or brings documentation.
debian_base() {
  local suite=$1 root=$2 scratch=$3 sources mirror
  sources=$(debian_archives "$suite") || die "the host's apt sources have no Debian $suite: a host or container of that release is needed, and 'apt-get update'"
  mirror=$(grep " $suite " <<<"$sources" | awk 'NR == 1 { print $2 }')
  [ -n "$mirror" ] || die "the host's apt sources have no Debian $suite"
  rm -rf "$root" "$scratch"
  mkdir -p "$scratch"
  (cd "$scratch" && apt-get -q download debootstrap && dpkg -x debootstrap_*.deb .)
  DEBOOTSTRAP_DIR=$scratch/usr/share/debootstrap sh "$scratch/usr/sbin/debootstrap" --variant=minbase "$suite" "$root" "$mirror"
  echo "$sources" >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(http|https|Retries)' >"$root/etc/apt/apt.conf.d/90host" || true
  printf 'path-exclude=/usr/share/%s/*\n' doc man locale >"$root/etc/dpkg/dpkg.cfg.d/90small"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod +x "$root/usr/sbin/policy-rc.d"
  cp /etc/resolv.conf "$root/etc/"
  echo "127.0.0.1 localhost" >"$root/etc/hosts"
}
