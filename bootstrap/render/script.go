// SPDX-License-Identifier: Apache-2.0

package render

import "strings"

// bootstrapUnitText runs the script at each start until it has succeeded once. cloud-init starts it
// at the end of the first boot; Ignition enables it. What the script says goes to the console too:
// many clouds show that to who can't log in.
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

// scriptHead sets up the log, to which no secret goes, and the one way to try things again.
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

// scriptTail keeps the script from running at the next start, and says that all is well.
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

// quote makes one word of s for a POSIX shell: within single quotes everything is literal but the
// single quote itself.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteAll makes words for a POSIX shell.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}
