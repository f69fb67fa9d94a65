// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/test/internal/scenario"
)

// app is an application that tolerates the loss of only one pod at a time.
type app struct {
	deployment *appsv1.Deployment
	budget     *policyv1.PodDisruptionBudget
}

const appReplicas = 3

func application() app {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "shop"}
	labels := metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}
	return app{
		deployment: &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](appReplicas),
			Selector: &labels,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels.MatchLabels},
				Spec: corev1.PodSpec{
					Containers:                    []corev1.Container{{Name: "shop", Image: "shop:1"}},
					TerminationGracePeriodSeconds: ptr.To[int64](1),
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &labels,
					}},
				},
			},
		}},
		budget: &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &labels, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		}},
	}
}

func (a app) objects() []client.Object { return []client.Object{a.deployment, a.budget} }

// drain runs an application on the machines and removes three machines, at least one of which runs
// a pod of it. Cluster API evicts the pod first, as the PodDisruptionBudget permits, and retries
// every 20 s.
func (d *demo) drain(ctx context.Context) (string, error) {
	if err := scenario.Create(ctx, d.target, application().objects()...); err != nil {
		return "", err
	}
	if err := d.nodes.Until(ctx, "the application runs", d.appRuns); err != nil {
		return "", err
	}
	pod, going, err := d.chooseMachines(ctx)
	if err != nil {
		return "", err
	}
	for i := range going {
		before := going[i].DeepCopy()
		metav1.SetMetaDataAnnotation(&going[i].ObjectMeta, clusterv1.DeleteMachineAnnotation, "demo")
		if err := d.client.Patch(ctx, &going[i], client.MergeFrom(before)); err != nil {
			return "", fmt.Errorf("mark Machine %s: %w", going[i].Name, err)
		}
	}
	if err := d.pool.Scale(ctx, d.client, 3); err != nil {
		return "", err
	}
	if err := d.untilReady(ctx, 3); err != nil {
		return "", err
	}
	for i := range going {
		if err := d.view.Until(ctx, "the machines are gone", d.gone([]string{going[i].Name})); err != nil {
			return "", err
		}
	}
	if err := d.nodes.Until(ctx, "the application runs on", d.appRuns); err != nil {
		return "", err
	}
	return fmt.Sprintf("pod %s was evicted from %s before its VM went, and runs elsewhere", pod, going[0].Name), nil
}

// appRuns checks that all pods of the application run on Nodes.
func (d *demo) appRuns(ctx context.Context) (string, error) {
	pods, err := d.appPods(ctx)
	if err != nil {
		return "", err
	}
	running := 0
	for i := range pods {
		if pods[i].DeletionTimestamp.IsZero() && pods[i].Status.Phase == corev1.PodRunning {
			running++
		}
	}
	if running < appReplicas {
		return fmt.Sprintf("%d of %d pods run", running, appReplicas), nil
	}
	return "", nil
}

func (d *demo) appPods(ctx context.Context) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := d.nodes.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": "shop"})
	return pods.Items, err
}

// chooseMachines returns a pod of the application, and three machines to remove: the one that the
// pod runs on, and others, preferably without a pod.
func (d *demo) chooseMachines(ctx context.Context) (pod string, going []clusterv1.Machine, err error) {
	pods, err := d.appPods(ctx)
	if err != nil {
		return "", nil, err
	}
	machines := &clusterv1.MachineList{}
	if err := d.view.List(ctx, machines, client.InNamespace(namespace)); err != nil {
		return "", nil, err
	}
	podsOn := func(m clusterv1.Machine) int {
		n := 0
		for i := range pods {
			if pods[i].Spec.NodeName == m.Status.NodeRef.Name {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(machines.Items, func(a, b clusterv1.Machine) int { return podsOn(b) - podsOn(a) })
	first, last := machines.Items[0], machines.Items[len(machines.Items)-2:]
	for i := range pods {
		if pods[i].Spec.NodeName == first.Status.NodeRef.Name {
			return pods[i].Name, append([]clusterv1.Machine{first}, last...), nil
		}
	}
	return "", nil, fmt.Errorf("no Machine belongs to the Node %q", pods[0].Spec.NodeName)
}
