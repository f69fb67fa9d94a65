// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Check returns a sentence about what is missing, or "" when nothing is.
type Check = func(context.Context) (missing string, err error)

// Available checks that machines can be created for the cluster: its infrastructure is ready and
// its API server answers.
func (a Adopted) Available(r client.Reader) Check {
	return func(ctx context.Context) (string, error) {
		cluster := &clusterv1.Cluster{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Name}, cluster); err != nil {
			return "the Cluster does not exist", client.IgnoreNotFound(err)
		}
		for _, condition := range []string{
			clusterv1.ClusterInfrastructureReadyCondition, clusterv1.ClusterControlPlaneInitializedCondition,
			clusterv1.ClusterRemoteConnectionProbeCondition, clusterv1.ClusterControlPlaneAvailableCondition,
		} {
			if !conditions.IsTrue(cluster, condition) {
				return fmt.Sprintf("Cluster %s: %s is not True: %s", a.Name, condition, Message(cluster, condition)), nil
			}
		}
		return "", nil
	}
}

// Ready checks that the pool has exactly n machines, all Ready and up to date.
func (p Pool) Ready(r client.Reader, n int32) Check {
	return func(ctx context.Context) (string, error) {
		md := &clusterv1.MachineDeployment{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: p.Cluster.Namespace, Name: p.Name}, md); err != nil {
			return "the MachineDeployment does not exist", client.IgnoreNotFound(err)
		}
		s := md.Status
		have, current, ready := ptr.Deref(s.Replicas, 0), ptr.Deref(s.UpToDateReplicas, 0), ptr.Deref(s.ReadyReplicas, 0)
		if s.ObservedGeneration < md.Generation || ptr.Deref(md.Spec.Replicas, 0) != n || have != n || current != n || ready != n {
			return fmt.Sprintf("MachineDeployment %s has %d machines, %d up to date, %d ready", p.Name, have, current, ready), nil
		}
		return "", nil
	}
}

// Current checks that all machines of the pool are cloned from the current template. Ready is no
// proof just after a change of template: Cluster API still counts the machines of the previous one
// as up to date.
func (p Pool) Current(r client.Reader) Check {
	return func(ctx context.Context) (string, error) {
		md := &clusterv1.MachineDeployment{}
		if err := r.Get(ctx, client.ObjectKey{Namespace: p.Cluster.Namespace, Name: p.Name}, md); err != nil {
			return "the MachineDeployment does not exist", client.IgnoreNotFound(err)
		}
		machines := &infrav1.DroverMachineList{}
		if err := r.List(ctx, machines, client.InNamespace(md.Namespace),
			client.MatchingLabels{clusterv1.MachineDeploymentNameLabel: md.Name}); err != nil {
			return "", fmt.Errorf("list the DroverMachines of %s: %w", md.Name, err)
		}
		for i := range machines.Items {
			m := &machines.Items[i]
			if from := m.Annotations[clusterv1.TemplateClonedFromNameAnnotation]; from != md.Spec.Template.Spec.InfrastructureRef.Name {
				return fmt.Sprintf("DroverMachine %s is made from template %s", m.Name, from), nil
			}
		}
		return "", nil
	}
}

// Empty checks that no object of the list's kind exists.
func Empty(r client.Reader, list client.ObjectList, namespace string) Check {
	return func(ctx context.Context) (string, error) {
		n, names, err := count(ctx, r, list, client.InNamespace(namespace))
		if err != nil || n == 0 {
			return "", err
		}
		return fmt.Sprintf("%d are left: %s", n, strings.Join(names, ", ")), nil
	}
}

// Wait polls a check until it is true, for at most patience, and returns how long that took. On
// timeout the error says what was still missing.
func Wait(ctx context.Context, patience time.Duration, check Check) (took time.Duration, err error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var missing string
	if wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		missing, err = check(ctx)
		return missing == "" && err == nil, nil
	}) != nil {
		return time.Since(begin), fmt.Errorf("%s (%w)", missing, cmp.Or(err, ctx.Err()))
	}
	return time.Since(begin), nil
}

// All combines several checks, and returns the first thing that is missing.
func All(checks ...Check) Check {
	return func(ctx context.Context) (string, error) {
		for _, check := range checks {
			if missing, err := check(ctx); missing != "" || err != nil {
				return missing, err
			}
		}
		return "", nil
	}
}

// Message returns a condition's message, its reason if the message is empty, or "it is not reported
// yet" if the object does not have the condition.
func Message(o conditions.Getter, condition string) string {
	if c := conditions.Get(o, condition); c != nil && c.Message != "" {
		return c.Message
	} else if c != nil {
		return c.Reason
	}
	return "it is not reported yet"
}

// shown is the maximum number of names in a sentence.
const shown = 5

// count returns the number of objects, and the names of some.
func count(ctx context.Context, r client.Reader, list client.ObjectList, options ...client.ListOption) (int, []string, error) {
	if err := r.List(ctx, list, options...); err != nil {
		return 0, nil, fmt.Errorf("count %T: %w", list, err)
	}
	n, names := 0, []string{}
	err := eachItem(list, func(o metav1.Object) {
		if n++; len(names) < shown {
			names = append(names, o.GetName())
		}
	})
	return n, names, err
}
