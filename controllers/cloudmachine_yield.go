// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/cloud"
)

// heed puts on record what the cloud has told of a VM, and where it takes the VM back, deletes its Machine, so that Cluster API drains the
// Node and makes a successor while the VM still runs. What is not on record after this step the cloud tells again.
//
// It deletes only what is replaced by itself: the Machine of a MachineSet. And, as all deletions that no user asked for, not while the
// workload cluster's API server is away, and nothing that is paused.
func (r *CloudMachineReconciler) heed(ctx context.Context, s *machineScope, instance *cloud.Resource) error {
	switch {
	case instance.Notice == "" && !instance.Ending:
		return nil
	case !instance.Ending, s.owner == nil, !s.owner.DeletionTimestamp.IsZero(), !replacedByItself(s.owner):
		s.heeded = instance
		return nil
	case s.unreachable != "", s.cluster == nil, annotations.IsPaused(s.cluster, s.owner):
		return nil
	}
	// As it was judged, and not as it has become since: someone may just have paused it.
	err := r.Client.Delete(ctx, s.owner, client.Preconditions{UID: &s.owner.UID, ResourceVersion: &s.owner.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the Machine, whose VM the cloud takes back: %w", err)
	}
	s.heeded = instance
	r.Recorder.Eventf(s.CloudMachine, s.owner, corev1.EventTypeWarning, "Interrupted", "Replace", "the Machine is deleted, to be drained and replaced: %s", instance.Notice)
	return nil
}

// replacedByItself tells whether something makes a successor of a Machine that is deleted.
func replacedByItself(machine *clusterv1.Machine) bool {
	owner := metav1.GetControllerOf(machine)
	return owner != nil && owner.Kind == "MachineSet"
}
