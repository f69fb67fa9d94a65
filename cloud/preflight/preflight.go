// SPDX-License-Identifier: Apache-2.0

// Package preflight is what a driver may add for "drover check". The manager does not use it.
package preflight

import (
	"context"

	"github.com/drover-io/drover/cloud"
)

// DryRunner is a Driver that can try a create that makes nothing.
type DryRunner interface {
	cloud.Driver
	// DryRun returns the error that Ensure would, as far as the driver can find it out. nil is no
	// promise: a cloud may check quotas and capacity only when it creates.
	DryRun(ctx context.Context, req cloud.Request) error
}
