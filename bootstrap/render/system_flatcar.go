// SPDX-License-Identifier: Apache-2.0

package render

import (
	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// flatcar has no packages, and a read-only /usr.
func flatcar() []system {
	return []system{{
		name:     "flatcar",
		format:   bootstrapv1.FormatIgnition,
		programs: "/opt/bin",
		caFile:   "/etc/ssl/certs/drover.pem",
		caUpdate: "update-ca-certificates",
		upgradesOn: []string{
			"systemctl unmask update-engine.service locksmithd.service",
			"systemctl start update-engine.service locksmithd.service",
		},
		upgradesOff: []string{"systemctl mask --now update-engine.service locksmithd.service"},
	}}
}
