// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// maxMessage is the maximum length of a condition's message, in bytes. Messages of clouds can be
// long, and a table column is narrow.
const maxMessage = 1024

// object is one of our kinds that has conditions.
type object interface {
	client.Object
	conditions.Setter
}

// patchStatus writes the status of obj if it differs from before, the object as it was read. It
// makes at most one write. A merge patch is enough, because each of our statuses except those of
// DroverAccount and DroverCluster has a single writer.
func patchStatus(ctx context.Context, c client.Client, before, obj client.Object) error {
	return writeStatus(ctx, c, before, obj, client.MergeFrom(before))
}

// patchSharedStatus is patchStatus for a kind whose status has several writers. It fails with a
// Conflict if the object has changed since it was read.
func patchSharedStatus(ctx context.Context, c client.Client, before, obj client.Object) error {
	return writeStatus(ctx, c, before, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func writeStatus(ctx context.Context, c client.Client, before, obj client.Object, patch client.Patch) error {
	if equality.Semantic.DeepEqual(before, obj) {
		return nil
	}
	err := c.Status().Patch(ctx, obj, patch)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching status: %w", err)
	}
	return nil
}

// setCondition sets a condition of obj for its current generation.
func setCondition(obj object, kind string, status metav1.ConditionStatus, reason, message string) {
	conditions.Set(obj, metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            truncate(message),
		ObservedGeneration: obj.GetGeneration(),
	})
}

// setNotReady sets Ready to False.
func setNotReady(obj object, reason, message string) {
	setCondition(obj, clusterv1.ReadyCondition, metav1.ConditionFalse, reason, message)
}

// setReady sets Ready to True.
func setReady(obj object) {
	setCondition(obj, clusterv1.ReadyCondition, metav1.ConditionTrue, infrav1.ReadyReason, "")
}

// setPaused sets the Paused condition as Cluster API's contract requires, and reports whether obj
// is paused. cluster may be nil.
func setPaused(obj object, cluster *clusterv1.Cluster) bool {
	if by := pausedBy(obj, cluster); len(by) > 0 {
		setCondition(obj, clusterv1.PausedCondition, metav1.ConditionTrue, clusterv1.PausedReason, strings.Join(by, ", "))
		return true
	}
	setCondition(obj, clusterv1.PausedCondition, metav1.ConditionFalse, clusterv1.NotPausedReason, "")
	return false
}

func isPaused(obj client.Object, cluster *clusterv1.Cluster) bool {
	return len(pausedBy(obj, cluster)) > 0
}

// pausedBy returns what pauses obj: its Cluster, its own annotation, or that it was moved to
// another management cluster.
func pausedBy(obj client.Object, cluster *clusterv1.Cluster) (by []string) {
	if cluster != nil && ptr.Deref(cluster.Spec.Paused, false) {
		by = append(by, "Cluster spec.paused is set to true")
	}
	if annotations.HasPaused(obj) {
		by = append(by, "the object has the cluster.x-k8s.io/paused annotation")
	}
	if isMovedAway(obj) {
		by = append(by, "clusterctl move has moved the object to another management cluster")
	}
	return by
}

// setCloudError sets Ready to False for an error of the cloud.
func setCloudError(obj object, err error) {
	setNotReady(obj, cloudReason(cloud.CodeOf(err)), cloudMessage(err))
}

// cloudMessage returns the text of a cloud's error without its code, which is the condition's
// reason.
func cloudMessage(err error) string {
	return strings.TrimPrefix(err.Error(), string(cloud.CodeOf(err))+": ")
}

// cloudReason returns the reason that stands for a cloud's answer. Some codes name no cause without
// the word "cloud".
func cloudReason(code cloud.Code) string {
	switch code {
	case cloud.Conflict:
		return infrav1.CloudConflictReason
	case cloud.NotFound:
		return infrav1.CloudNotFoundReason
	case cloud.Unavailable:
		return infrav1.CloudUnavailableReason
	case cloud.Unknown:
		return infrav1.CloudErrorUnknownReason
	}
	return string(code)
}

// setUnknown sets those of the conditions that are absent to Unknown, so that each is present from
// the first write of the status on.
func setUnknown(obj object, reason string, kinds ...string) {
	for _, kind := range kinds {
		if !conditions.Has(obj, kind) {
			setCondition(obj, kind, metav1.ConditionUnknown, reason, "")
		}
	}
}

// truncate shortens a message to maxMessage bytes, between characters, and makes it valid UTF-8,
// because the API server refuses other messages.
func truncate(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len("…")
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// isMovedAway reports whether obj is being deleted only because it was moved. clusterctl pauses the
// Cluster first, but that arrives through another watch, which may lag behind. Without this check,
// the VMs of a whole cluster that has just moved would be deleted.
func isMovedAway(obj client.Object) bool {
	_, moved := obj.GetAnnotations()[clusterctlv1.DeleteForMoveAnnotation]
	return moved && !obj.GetDeletionTimestamp().IsZero()
}

// moveLabel makes "clusterctl move" include an object that no object of the Cluster owns.
const moveLabel = "clusterctl.cluster.x-k8s.io/move"

// labelForMove labels a user's Secret so that "clusterctl move" includes it. Without the Secret,
// the objects that refer to it would not work in the new management cluster.
func labelForMove(ctx context.Context, c client.Client, secret *corev1.Secret) error {
	before := secret.DeepCopy()
	if !setMoveLabel(secret) {
		return nil
	}
	if err := c.Patch(ctx, secret, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("labeling Secret %q: %w", secret.Name, err)
	}
	return nil
}

// setMoveLabel reports whether the Secret did not have the label.
func setMoveLabel(secret *corev1.Secret) bool {
	if _, ok := secret.Labels[moveLabel]; ok {
		return false
	}
	metav1.SetMetaDataLabel(&secret.ObjectMeta, moveLabel, "")
	return true
}
