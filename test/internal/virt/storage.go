// SPDX-License-Identifier: Apache-2.0

package virt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The storage classes. The first is the cluster's default.
const (
	StandardStorage = "standard"
	FastStorage     = "fast"
)

// provisioner is the name of a CSI driver whose volume properties CDI knows. For a CSI driver, CDI
// first fills a temporary claim, and then moves the full volume to the target claim.
const provisioner = "kubevirt.io.hostpath-provisioner"

// Pods with this label fill volumes for CDI.
const importerLabel, importer = "cdi.kubevirt.io", "importer"

// Failure is the message of an importer that can't fill a volume.
type Failure string

const (
	// NoImage is retried.
	NoImage Failure = "Unable to connect to http data source: expected status code 200, got 404. Status: 404 Not Found"
	// WrongImage is not retried.
	WrongImage Failure = "Unable to process data: Unable to transfer source data to target file: checksum mismatch: expected sha256:1, calculated sha256:2"
)

// makeStorage creates what an operator who installs a CSI driver creates.
func makeStorage(ctx context.Context, admin client.Client) error {
	for _, o := range []client.Object{
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: provisioner}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}},
		storageClass(StandardStorage, map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}), storageClass(FastStorage, nil),
	} {
		if err := admin.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

func storageClass(name string, annotations map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete),
	}
}

// claim creates a volume for the claim, unless CDI fills one for it. Kubernetes' own controller
// binds them. After that, claim schedules the pods of the claim.
func (n *Node) claim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	switch {
	case c.DeletionTimestamp != nil:
		return nil
	case c.Status.Phase == corev1.ClaimBound:
		return n.claimed(ctx, c)
	case c.Spec.VolumeName != "" || c.Spec.DataSourceRef != nil || c.Annotations["volume.kubernetes.io/storage-provisioner"] != provisioner:
		return nil
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(c.UID),
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: c.Spec.AccessModes,
			VolumeMode:  c.Spec.VolumeMode, StorageClassName: ptr.Deref(c.Spec.StorageClassName, ""),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name,
				UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: provisioner,
				VolumeHandle: string(c.UID)}},
		},
	}
	return client.IgnoreAlreadyExists(n.admin.Create(ctx, volume))
}

// claimed schedules the pods that wait for a claim.
func (n *Node) claimed(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	pods := &corev1.PodList{}
	if err := n.admin.List(ctx, pods, client.InNamespace(c.Namespace), client.MatchingFields{"spec.nodeName": ""}); err != nil {
		return fmt.Errorf("list the pods without a node: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		waits := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name
		})
		if waits {
			n.insist(ctx, p, func() error { return n.pod(ctx, p) })
		}
	}
	return nil
}

// volume deletes a released volume.
func (n *Node) volume(ctx context.Context, v *corev1.PersistentVolume) error {
	if v.Status.Phase != corev1.VolumeReleased || v.DeletionTimestamp != nil {
		return nil
	}
	return client.IgnoreNotFound(n.admin.Delete(ctx, v))
}

// Mend makes importers succeed, and restarts those that failed, as a kubelet does from time to
// time.
func (n *Node) Mend(ctx context.Context) error {
	n.Broken.Store(nil)
	pods := &corev1.PodList{}
	if err := n.admin.List(ctx, pods, client.MatchingLabels{importerLabel: importer}); err != nil {
		return fmt.Errorf("list the importers: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		n.insist(ctx, p, func() error { return n.pod(ctx, p) })
	}
	return nil
}

// fill runs an importer to completion. A failed importer stays in the state before its restart.
func (n *Node) fill(ctx context.Context, p *corev1.Pod) error {
	failure := n.Broken.Load()
	switch {
	case p.Status.Phase == corev1.PodSucceeded, p.Status.Phase == corev1.PodRunning && failure != nil:
		return nil
	}
	before := p.DeepCopy()
	p.Status.Phase = corev1.PodSucceeded
	ended := &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: metav1.Now(), FinishedAt: metav1.Now()}
	switch {
	case failure == nil:
		ended.Message = lastWords("Import Complete")
	case strings.Contains(string(*failure), "checksum mismatch"): // the importer prevents Kubernetes from retrying
		ended.Message = lastWords(string(*failure))
	default:
		p.Status.Phase = corev1.PodRunning
		ended.Reason, ended.ExitCode, ended.Message = "Error", 1, string(*failure)
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, Started: ptr.To(false), State: corev1.ContainerState{Terminated: ended},
	}}
	return client.IgnoreNotFound(n.admin.Status().Patch(ctx, p, client.MergeFrom(before)))
}

// lastWords returns an importer's termination message for CDI.
func lastWords(message string) string {
	text, err := json.Marshal(map[string]any{"preallocationApplied": false, "message": message})
	if err != nil {
		return err.Error()
	}
	return string(text)
}
