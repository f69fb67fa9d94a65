// SPDX-License-Identifier: Apache-2.0

// Package record has the words of the record: the lines of the log that say what Drover did with
// VMs, accounts, clusters and certificates. Each field has one name, so that one grep for a VM, a
// machine or an account finds everything that happened to it.
package record

import (
	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The fields of a line. Objects are given as "namespace/name".
const (
	Cluster     = "cluster"
	Machine     = "machine" // a DroverMachine
	Account     = "account"
	CloudName   = "cloud" // of an account
	Place       = "place" // of an account
	Pool        = "pool"  // a MachineDeployment or MachineSet
	ProviderID  = "providerID"
	Token       = "token"
	Resource    = "resource"    // what is no VM: its kind and ID in the cloud, or a load balancer's address
	Owner       = "ownershipID" // of the cluster, for what belongs to no machine
	State       = "state"       // of the VM, as the status of its DroverMachine has it
	Certificate = "certificate"
	Hook        = "hook"
	By          = "by"      // a Cause
	Reason      = "reason"  // a condition's
	Message     = "message" // a sentence; it quotes the cloud
)

// Cause says by what a VM goes.
type Cause string

const (
	// MachineDeleted: a user or Cluster API deleted the Machine. The message says what Cluster API
	// had found about it.
	MachineDeleted Cause = "MachineDeleted"
	// ClusterDeleted: a user deleted the Cluster.
	ClusterDeleted Cause = "ClusterDeleted"
	// ObjectDeleted: somebody deleted the DroverMachine, but not its Machine.
	ObjectDeleted Cause = "ObjectDeleted"
	// Replacement: Drover deleted the Machine, because the cloud announced that it reclaims the VM.
	Replacement Cause = "Replacement"
	// FailedStart: Drover deleted the Machine, because the cloud accepted the create and then had no
	// capacity for the VM.
	FailedStart Cause = "FailedStart"
	// Orphan: the VM belonged to no DroverMachine, and the account's policy is Delete.
	Orphan Cause = "Orphan"
	// Cloud: the VM went without Drover.
	Cloud Cause = "Cloud"
	// Abandoned: a user let Drover leave the VM, by annotation.
	Abandoned Cause = "Abandoned"
)

// Logger returns the logger of the record.
func Logger() logr.Logger { return ctrl.Log.WithName("record") }

// Key returns an object as a line gives it: "" for one without a name.
func Key(namespace, name string) string {
	if name == "" {
		return ""
	}
	return client.ObjectKey{Namespace: namespace, Name: name}.String()
}
