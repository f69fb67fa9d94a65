// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
)

// engine gives a fleet.Account the methods that it is about to get. This file goes when it has them.
type engine struct{ *fleet.Account }

// observation is fleet.Observation with what it is about to get.
type observation struct {
	fleet.Observation
	// NeverSeen is true when the account has listed completely and looked live, and has never seen an instance of the machine.
	NeverSeen bool
}

func (e engine) Observe(ref cloud.Reference) observation {
	return observation{Observation: e.Account.Observe(ref)}
}

// Settled is true once live reads have proved that the open attempt made nothing.
func (e engine) Settled(cloud.Reference) bool { return false }

// Delete is told when the deletion was asked for: what was asked for before this process began is not collected again.
func (e engine) Delete(ref cloud.Reference, _ time.Time) fleet.Deletion { return e.Account.Delete(ref) }

// account returns the account that is connected under key, or nil.
func (r *CloudMachineReconciler) account(key client.ObjectKey) machineAccount {
	if a := r.Accounts.Get(key); a != nil {
		return engine{a}
	}
	return nil
}

// imminent tells whether an instance ends within minutes, whatever is done. No cloud.Resource says so yet.
func imminent(*cloud.Resource) bool { return false }
