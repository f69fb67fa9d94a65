# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
#
# How scripts that build show that they do: hack/tool and hack/program.

say() { printf '%s\n' "$*" >&2; }

# plan LOG ARGS...: writes to LOG.plan the packages that "go build ARGS..." would compile. Those of
# commands are left out, because they are always stale.
plan() {
  local log=$1
  shift
  go list -deps -f '{{if and .Stale (ne .Name "main")}}{{.ImportPath}}{{end}}' "$@" 2>>"$log" >"$log.part" &&
    mv "$log.part" "$log.plan" || true # a build shows its progress without a plan, too
}

# progress START LOG MORE: shows the package that "go build -v" is at on a terminal, else every
# fifteen seconds how many it has compiled. With a plan, it also shows how many there are and how
# long the rest takes. START is the script's $SECONDS when it began.
ticked=0 planned=""
progress() {
  local elapsed=$((SECONDS - $1)) compiled total state
  [ -t 2 ] || [ "$elapsed" -ge $((ticked + 15)) ] || { [ -z "$planned" ] && [ -e "$2.plan" ]; } || return 0
  compiled=$(grep -vc '^go: ' "$2" || true)
  state="$compiled packages compiled"
  if [ -e "$2.plan" ]; then
    total=$(grep -c . "$2.plan" || true)
    if [ -z "$planned" ] && [ "$total" -gt 0 ]; then
      planned=$SECONDS
      [ ! -t 2 ] || printf '\r\033[K' >&2
      say "  packages to compile: $total, $(estimate 0 0 "$total") with $(getconf _NPROCESSORS_ONLN) processors"
    fi
    if [ "$compiled" -lt "$total" ]; then
      state="$compiled of $total packages compiled, $(estimate $((SECONDS - planned)) "$compiled" "$total") left"
    else
      state="all packages compiled, linking"
    fi
  fi
  if [ -t 2 ]; then
    printf '\r\033[K%s' "$(printf '  %4d s  %s: %s' "$elapsed" "$state" "$(tail -n 1 "$2")" | cut -c 1-78)" >&2
  elif [ "$elapsed" -ge $((ticked + 15)) ]; then
    ticked=$elapsed
    say "  $ticked s: $state$3"
  fi
}

# estimate SECONDS COMPILED TOTAL: how long the packages that are left take. It assumes half a second
# of a processor for each, which was measured, as if that was seen with a hundred packages: those that
# are compiled soon count more.
estimate() {
  local assumed=100 ms
  ms=$((($1 * 1000 + assumed * 500 / $(getconf _NPROCESSORS_ONLN)) / (assumed + $2) * ($3 - $2)))
  if [ "$ms" -gt 90000 ]; then echo "about $(((ms + 30000) / 60000)) minutes"; else echo "about $((ms / 10000 * 10 + 10)) seconds"; fi
}
