// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/fleet"
)

// The steps of a machine on its way to a ready Node, as indexes of startup.ended, and how each ends.
const (
	stepQueue       = iota // the cloud has created the VM
	stepStart              // the VM runs
	stepBoot               // its kubelet has requested a certificate
	stepCertificate        // the request is approved
	stepRegister           // the Node exists
	stepReady              // the Node is ready
	stepCount
)

// stepNames are the names of the steps in traces and metrics.
var stepNames = [stepCount]string{"queue", "start", "boot", "certificate", "register", "ready"}

// startup is when a machine's way to a ready Node began, and when each step ended; zero if it has
// not ended, or nobody knows.
type startup struct {
	began time.Time
	ended [stepCount]time.Time
}

// step is a step with its times.
type step struct {
	name         string
	began, ended time.Time
}

func (s step) took() time.Duration { return s.ended.Sub(s.began) }

// steps returns the steps in their order, without gaps, until the given time. A step whose end is
// unknown takes what follows until the next known end. The cloud's clock and those of the guests
// differ, and the VM may be seen running late: so a step is over when a later one is.
func (s startup) steps(until time.Time) []step {
	ended := s.ended
	limit := until
	for i, end := range slices.Backward(ended[:]) {
		if !end.IsZero() {
			ended[i] = earlier(end, limit)
			limit = ended[i]
		}
	}
	var all []step
	at, next := s.began, 0
	add := func(end time.Time) {
		end = later(at, end)
		all = append(all, step{stepNames[next], at, end})
		at = end
	}
	for i, end := range ended {
		if !end.IsZero() {
			add(end)
			next = i + 1
		}
	}
	if next < stepCount {
		add(until)
	}
	return all
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// longest returns the name of the step that took longest; of equal ones, the first.
func longest(steps []step) string {
	guilty := slices.MaxFunc(steps, func(a, b step) int { return cmp.Compare(a.took(), b.took()) })
	return guilty.name
}

// readySince returns since when the machine's Node is ready, as its kubelet says; zero if it is not.
// Cluster API writes the condition before the Node's name.
func readySince(owner *clusterv1.Machine) time.Time {
	if !owner.Status.NodeRef.IsDefined() {
		return time.Time{}
	}
	return trueSince(owner, clusterv1.MachineNodeReadyCondition)
}

// trueSince returns since when a condition is True; zero if it is not.
func trueSince(o conditions.Getter, condition string) time.Time {
	if c := conditions.Get(o, condition); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.UTC()
	}
	return time.Time{}
}

// Startups reads when the steps of machines ended, from what the objects, the account's inventory
// and the workload clusters' caches say. So it keeps no state, and a manager that restarts reads the
// same. It makes no call.
type Startups struct {
	Accounts     *fleet.Accounts
	ClusterCache clustercache.ClusterCache
	// Certificates returns when the kubelets of a workload cluster last requested client
	// certificates, and when these were approved, by Node. The packages controllers and bootstrap do
	// not import each other.
	Certificates func(context.Context, client.ObjectKey) (map[string][2]time.Time, error)
}

// certificates remembers the result of Startups.Certificates for one pass over machines.
type certificates map[client.ObjectKey]map[string][2]time.Time

// errAccountUnread means that it is unknown when the account created its VMs.
var errAccountUnread = errors.New("the account is not connected, or has not been listed")

// read returns when the machine's steps ended. With an error, some of the times may become known
// later.
func (r Startups) read(ctx context.Context, owner *clusterv1.Machine, m *infrav1.DroverMachine, known certificates) (startup, error) {
	s := startup{began: owner.CreationTimestamp.UTC()}
	s.ended[stepStart], s.ended[stepReady] = runningSince(m), readySince(owner)
	var errs []error
	account := r.Accounts.Get(client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.AccountRef.Name})
	if account == nil || account.Inventory().LastComplete.IsZero() {
		errs = append(errs, errAccountUnread)
	} else {
		s.ended[stepQueue] = account.CreatedAt(m.Spec.Creation.Token)
	}
	names := append(cloudHostNames(m), namesOfNode(m)...)
	cluster := client.ObjectKey{Namespace: owner.Namespace, Name: owner.Spec.ClusterName}
	if node := owner.Status.NodeRef.Name; node != "" {
		names = []string{node}
		registered, err := r.registered(ctx, cluster, node)
		s.ended[stepRegister], errs = registered, append(errs, err)
	}
	if known[cluster] == nil {
		var err error
		known[cluster], err = r.Certificates(ctx, cluster)
		errs = append(errs, err)
	}
	for _, name := range names {
		if times := known[cluster][name]; !times[0].Before(s.began) { // otherwise of an earlier VM with this name
			s.ended[stepBoot], s.ended[stepCertificate] = times[0], times[1]
		}
	}
	return s, errors.Join(errs...)
}

// registered returns when a Node was created.
func (r Startups) registered(ctx context.Context, cluster client.ObjectKey, name string) (time.Time, error) {
	reader, err := r.ClusterCache.GetReader(ctx, cluster)
	if err != nil {
		return time.Time{}, fmt.Errorf("connecting to Cluster %s: %w", cluster, err)
	}
	node := &corev1.Node{}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return time.Time{}, fmt.Errorf("reading a Node of Cluster %s: %w", cluster, err)
	}
	return node.CreationTimestamp.UTC(), nil
}
