# SPDX-License-Identifier: Apache-2.0
#
# What install, start and stop share. Sourced, not run.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${XDG_CACHE_HOME:-$HOME/.cache}/drover/openstack
root=$home/root
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

say() { printf '%s\n' "$*" >&2; }
die() { say "openstack: $*"; exit 1; }

need_root() {
  [ "$(id -u)" = 0 ] || die "root is needed, for a file system and namespaces of OpenStack's own (unshare, chroot). The host itself is not changed."
}

# inside runs the script of that name in the root file system, in mount and process namespaces of its own: its mounts are
# nobody else's, and nothing that it starts outlives it, however it ends.
inside() {
  install -m 755 "$here/inside" "$here"/*.py "$root/drover/"
  # shellcheck disable=SC2016
  exec unshare --mount --pid --fork --kill-child /bin/bash -c '
    mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" /drover/inside "$@"' "$root" "$@"
}

# running tells whether the process that start left behind is still that one.
running() {
  [ -f "$home/pid" ] && grep -qsz '^unshare$' "/proc/$(cat "$home/pid")/cmdline"
}

# listening prints what listens on OpenStack's ports.
listening() {
  ss -lntpH 'sport >= :25001 and sport <= :25012'
}
