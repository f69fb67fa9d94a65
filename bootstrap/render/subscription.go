// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

const (
	// subscriptionPath holds the machine's registration data.
	subscriptionPath       = "/etc/kubernetes/drover-subscription"
	subscriptionScriptPath = "/etc/kubernetes/drover-subscription.sh"
	subscriptionUnit       = "drover-subscription.service"
)

// subscription registers the machine with its vendor. The machine unregisters when it is powered
// off, which happens before a cloud deletes it. From inside, a deletion looks like a stop, so a
// machine that starts again registers again, and keeps the key. The script prints none of it.
func (n *node) subscription(in Input) {
	name := in.Spec.Host.Subscription.Name
	if name == "" {
		return
	}
	value := func(key string) string {
		return quote(string(in.Secrets[bootstrapv1.SecretKey{Name: name, Key: key}]))
	}
	n.add(
		file{path: subscriptionPath, permissions: "0600",
			content: "organization=" + value(organizationKey) + "\nactivation_key=" + value(activationKeyKey) + "\n"},
		file{path: subscriptionScriptPath, permissions: "0700", content: subscriptionScript},
	)
	n.units = append(n.units, unit{subscriptionUnit, subscriptionUnitText})
	n.do("Registering the machine with its vendor",
		"register() { /bin/sh "+subscriptionScriptPath+" register; }",
		"retry register",
		"systemctl enable --now "+subscriptionUnit)
}

// A unit stops before the units that it is ordered after, so the network is still up.
const subscriptionUnitText = `[Unit]
Description=Register this machine with its vendor, until it is powered off
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
EnvironmentFile=-` + proxyPath + `
ExecStart=/bin/sh ` + subscriptionScriptPath + ` register
ExecStop=/bin/sh ` + subscriptionScriptPath + ` unregister
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
`

// subscriptionScript checks the jobs that systemd has queued. A restart has another target than a
// power-off, and if a user stops the unit, there is no job.
const subscriptionScript = `#!/bin/sh
# register: unless it is registered. unregister: if the machine is being powered off, and not if it only restarts.
set -eu
case $1 in
register)
  if subscription-manager identity >/dev/null 2>&1; then exit 0; fi
  # shellcheck disable=SC1091 # it is written beside this script
  . ` + subscriptionPath + `
  # shellcheck disable=SC2154 # from that file
  subscription-manager register --org="$organization" --activationkey="$activation_key"
  ;;
unregister)
  if systemctl list-jobs --no-legend | awk '$2 ~ /^(poweroff|halt)\.target$/ && $3 == "start" { off = 1 } END { exit !off }'; then
    subscription-manager unregister
  fi
  ;;
esac
`
