# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
#
# How scripts that build show that they do: hack/tool and hack/program.

say() { printf '%s\n' "$*" >&2; }

# progress START LOG MORE: on a terminal the package that "go build -v" is at, else every fifteen seconds how many it has compiled.
# START is the script's $SECONDS when it began.
ticked=0
progress() {
  if [ -t 2 ]; then
    printf '\r\033[K  %4d s  %s' $((SECONDS - $1)) "$(tail -n 1 "$2" | cut -c 1-60)" >&2
  elif [ $((SECONDS - $1)) -ge $((ticked + 15)) ]; then
    ticked=$((SECONDS - $1))
    say "  $ticked s: $(grep -vc '^go: ' "$2" || true) packages compiled$3"
  fi
}
