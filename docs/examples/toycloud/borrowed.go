// SPDX-License-Identifier: Apache-2.0

package toycloud

import (
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// A real cloud has fields of its own in api/infrastructure/v1beta1/<cloud>_types.go, and these two
// functions are "spec.Toy" and "fields.Toy". An example can't add a member to the unions, so it
// borrows the simulated cloud's.

type toyAccount struct{ Endpoint string }

type toyMachine struct {
	Size, Image, Zone string
	DiskGiB           int32
}

func accountOf(spec *infrav1.DroverAccountSpec) *toyAccount {
	if spec.Cloud.Simulated == nil {
		return nil
	}
	return &toyAccount{Endpoint: spec.Cloud.Simulated.Endpoint}
}

func machineOf(fields *infrav1.DroverMachineFields) *toyMachine {
	if fields.Cloud.Simulated == nil {
		return nil
	}
	m := fields.Cloud.Simulated
	return &toyMachine{Size: m.InstanceType, Image: m.Image, Zone: m.Zone, DiskGiB: m.DiskGiB}
}
