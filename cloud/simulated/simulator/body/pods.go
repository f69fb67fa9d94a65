// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// keepPods does a kubelet's part for the pods of its node, without containers: it sets them
// Running, and finalizes those being deleted. It watches as a kubelet does, keeps no state, and
// runs until the body stops.
func (b *Body) keepPods(ctx context.Context) {
	var again backoff
	for ctx.Err() == nil {
		if b.watchPods(ctx) {
			again = backoff{}
		}
		if !again.wait(ctx) {
			return
		}
	}
}

// watchPods reads one watch to its end. Without a resource version it starts with all existing
// pods.
func (b *Body) watchPods(ctx context.Context) bool {
	w, err := b.node.core.Pods("").Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", b.kubelet.node).String(),
	})
	if err != nil {
		b.say("kubelet: watching pods: %s", plain(err))
		return false
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return true
		}
		if e.Type == "DELETED" {
			continue
		}
		// A failure is retried with the pod's next event, or with the next watch.
		if err := b.keepPod(ctx, pod); err != nil && ctx.Err() == nil {
			b.say("kubelet: pod %s/%s: %s", pod.Namespace, pod.Name, plain(err))
		}
	}
	return true
}

func (b *Body) keepPod(ctx context.Context, pod *corev1.Pod) error {
	pods := b.node.core.Pods(pod.Namespace)
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "": // keepStaticPods does it
		return nil
	case pod.DeletionTimestamp != nil:
		if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
			return nil // another controller's finalizer holds it
		}
		if len(pod.Finalizers) > 0 && pod.Status.Phase == corev1.PodRunning { // it stays, and shows that it has ended
			if err := b.writeStatus(ctx, pod, endedStatus(pod, b.kubelet.nodeIP, metav1.Now())); err != nil {
				return err
			}
		}
		return b.fleet.request(ctx, func(ctx context.Context) error {
			options := metav1.NewDeleteOptions(0)
			options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
			return pods.Delete(ctx, pod.Name, *options)
		})
	case pod.Status.Phase == corev1.PodPending || pod.Status.Phase == "":
		return b.writeStatus(ctx, pod, runningStatus(pod, b.kubelet.nodeIP, metav1.Now()))
	}
	return nil
}

func (b *Body) writeStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return err
	}
	return b.fleet.request(ctx, func(ctx context.Context) error {
		_, err := b.node.core.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}

func runningStatus(pod *corev1.Pod, hostIP string, now metav1.Time) corev1.PodStatus {
	started := true
	status := corev1.PodStatus{Phase: corev1.PodRunning, HostIP: hostIP, PodIP: podIP(pod, hostIP), StartTime: &now}
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, c := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, Started: &started,
			ContainerID: "containerd://" + string(pod.UID) + "-" + c.Name,
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

// endedStatus is that of a pod whose containers have ended without an error.
func endedStatus(pod *corev1.Pod, hostIP string, now metav1.Time) corev1.PodStatus {
	status := runningStatus(pod, hostIP, now)
	status.Phase = corev1.PodSucceeded
	setReady(&status, false)
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.Started = ptr.To(false)
		c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now,
			ContainerID: c.ContainerID}}
	}
	return status
}

// podIP returns a made-up address: nothing listens there.
func podIP(pod *corev1.Pod, hostIP string) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID))
	n := h.Sum32()
	return fmt.Sprintf("100.%d.%d.%d", 64+n>>16&63, n>>8&255, 1+n%254)
}
