// SPDX-License-Identifier: Apache-2.0

package render

import "strings"

// bootstrapUnitText runs the script at each boot until it has succeeded once. cloud-init starts the
// unit at the end of the first boot, and Ignition enables it. The script's messages also go to the
// console, which many clouds show to users who can't log in.
const bootstrapUnitText = `[Unit]
Description=Make this machine a node of its Kubernetes cluster
Wants=network-online.target
After=network-online.target
ConditionPathExists=` + ScriptPath + `

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh ` + ScriptPath + `
StandardOutput=journal+console

[Install]
WantedBy=multi-user.target
`

// scriptHead sets up the log, which contains no secret, and the function for all retries.
const scriptHead = `#!/bin/sh
# Makes this machine a node of its cluster. The first command that fails ends it, and then the sentinel file is not written.
# It may run again: what is done already is found done.
set -eu
log=` + LogPath + `
touch "$log"
chmod 0600 "$log"
exec 3>&1 >>"$log" 2>&1
say() {
  echo "drover: $*"
  echo "drover: $*" >&3
}
ended() {
  if [ "$?" != 0 ]; then say "This machine did not become a node; $log says why."; fi
}
trap ended EXIT
# retry COMMAND...: until it succeeds, 30 times at most, which takes about half an hour. In COMMAND "set -e" does not hold.
retry() {
  tries=1
  pause=2
  until "$@"; do
    if [ "$tries" -ge 30 ]; then return 1; fi
    say "$1 failed; trying again in $pause s"
    sleep "$pause"
    tries=$((tries + 1))
    pause=$((pause * 2))
    if [ "$pause" -gt 60 ]; then pause=60; fi
  done
}
`

// scriptTail disables the script for the next boot, and reports success.
const scriptTail = `say 'Done'
systemctl disable ` + bootstrapUnit + `
mkdir -p /run/cluster-api
echo success >` + SentinelPath + `
`

func (n *node) script() string {
	var b strings.Builder
	b.WriteString(scriptHead)
	for _, s := range n.steps {
		b.WriteString("\nsay " + quote(s.name) + "\n")
		for _, line := range s.lines {
			b.WriteString(line + "\n")
		}
	}
	b.WriteString("\n" + scriptTail)
	return b.String()
}

// quote returns s as one word for a POSIX shell. Within single quotes, everything is literal except
// the single quote itself.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteAll returns the quoted words for a POSIX shell.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}
