// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	controlplanev1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// balancerWith returns a load balancer with these targets; those with "!" are healthy.
func balancerWith(targets ...string) *cloud.Resource {
	b := &cloud.BalancerState{Address: "lb", Port: 6443}
	for _, t := range targets {
		healthy := t[len(t)-1] == '!'
		if healthy {
			t = t[:len(t)-1]
		}
		b.Targets = append(b.Targets, cloud.BalancerTarget{Address: t, Healthy: healthy})
	}
	return &cloud.Resource{Kind: cloud.KindBalancer, Balancer: b}
}

// machinesAs returns machines of a control plane from their addresses: "+" says that one serves,
// "-" that it is being deleted, and "?" that its address is unknown.
func machinesAs(all ...string) (machines []target) {
	now := metav1.Now()
	for _, a := range all {
		t := target{machine: &clusterv1.Machine{}}
		for len(a) > 0 && (a[len(a)-1] == '+' || a[len(a)-1] == '-') {
			if t.ready = a[len(a)-1] == '+'; !t.ready {
				t.machine.DeletionTimestamp = &now
			}
			a = a[:len(a)-1]
		}
		if t.isUnknown = a == "?"; !t.isUnknown {
			t.address = a
		}
		machines = append(machines, t)
	}
	return machines
}

func TestChooseTargets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machines []string
		current  *cloud.Resource
		want     []string
	}{
		"no machine":                          {nil, nil, nil},
		"no address":                          {[]string{""}, balancerWith(), nil},
		"the first at once":                   {[]string{"a"}, nil, []string{"a"}},
		"all while none is a target":          {[]string{"b", "a"}, balancerWith(), []string{"a", "b"}},
		"all while none answers":              {[]string{"a", "b"}, balancerWith("a"), []string{"a", "b"}},
		"another waits until it serves":       {[]string{"a", "b"}, balancerWith("a!"), []string{"a"}},
		"another that serves":                 {[]string{"a", "b+"}, balancerWith("a!"), []string{"a", "b"}},
		"a sick target stays":                 {[]string{"a", "b"}, balancerWith("a!", "b"), []string{"a", "b"}},
		"a deleted one goes":                  {[]string{"a", "b-"}, balancerWith("a!", "b!"), []string{"a"}},
		"the last stays":                      {[]string{"a-"}, balancerWith("a!"), []string{"a"}},
		"a deleted one that was none":         {[]string{"a-"}, balancerWith(), nil},
		"a deleted one until another answers": {[]string{"a-", "b"}, balancerWith("a!"), []string{"a", "b"}},
		"a deleted one when another answers":  {[]string{"a-", "b"}, balancerWith("a!", "b!"), []string{"b"}},
		"a target of nobody's":                {[]string{"a"}, balancerWith("a!", "x!"), []string{"a"}},
		"addresses that are not known":        {[]string{"?", "?"}, balancerWith("a!", "b!"), []string{"a", "b"}},
		"one address that is not known":       {[]string{"a", "?", "c-", "d"}, balancerWith("a!", "b!", "c!"), []string{"a", "b"}},
		"only unknown machines answer":        {[]string{"?", "c-", "d"}, balancerWith("b!", "c!"), []string{"b"}},
		"only a target of nobody's answers":   {[]string{"a", "b"}, balancerWith("a", "x!"), []string{"a", "b"}},
	} {
		if got := chooseTargets(machinesAs(c.machines...), c.current); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestTargetsProperties: whatever the load balancer says, the targets are sorted and unique, only
// machines are targets, one that is being deleted is one only while no other answers, and one that
// answers goes only if it is deleted and another answers.
func TestTargetsProperties(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		pick := func(marks ...string) (all []string) {
			for _, a := range []string{"a", "b", "c", "d"} {
				if r.IntN(2) == 0 {
					all = append(all, a+marks[r.IntN(len(marks))])
				}
			}
			return all
		}
		machines := machinesAs(pick("", "+", "-", "+-")...)
		current := balancerWith(pick("", "!")...)
		got := chooseTargets(machines, current)
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("seed %d: %q", seed, got)
		}
		answers := func(m target) bool {
			return slices.Contains(current.Balancer.Targets, cloud.BalancerTarget{Address: m.address, Healthy: true})
		}
		others := slices.ContainsFunc(machines, func(m target) bool { return answers(m) && !m.isDeleted() })
		for _, address := range got {
			i := slices.IndexFunc(machines, func(m target) bool { return m.address == address })
			if i < 0 || machines[i].isDeleted() && others {
				t.Errorf("seed %d: %q of %+v", seed, got, machines)
			}
		}
		for _, m := range machines {
			if answers(m) && !slices.Contains(got, m.address) && !(m.isDeleted() && others) {
				t.Errorf("seed %d: %s answers and is no target any more", seed, m.address)
			}
		}
	}
}

// TestIsServing: what KubeadmControlPlane says counts; of other control planes' machines a Node is
// enough.
func TestIsServing(t *testing.T) {
	t.Parallel()
	const healthy = controlplanev1.KubeadmControlPlaneMachineAPIServerPodHealthyCondition
	machine := func(owner string, node bool, conditions ...metav1.Condition) *clusterv1.Machine {
		m := &clusterv1.Machine{}
		if m.Status.Conditions = conditions; node {
			m.Status.NodeRef.Name = "n"
		}
		if owner != "" {
			yes := true
			m.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Controller: &yes}}
		}
		return m
	}
	got := []bool{
		isServing(machine("KubeadmControlPlane", true)),
		isServing(machine("KubeadmControlPlane", true, metav1.Condition{Type: healthy, Status: metav1.ConditionFalse})),
		isServing(machine("KubeadmControlPlane", false, metav1.Condition{Type: healthy, Status: metav1.ConditionTrue})),
		isServing(machine("OtherControlPlane", true)),
		isServing(machine("", true)),
		isServing(machine("", false)),
	}
	if want := []bool{false, false, true, true, true, false}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLetGo: a Machine that is deleted and still a target is kept for two minutes, and then goes
// with a Warning Event. One that nobody deletes keeps its hook.
func TestLetGo(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	now := time.Now()
	machine := func(name string, deleted time.Duration) *clusterv1.Machine {
		m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, Finalizers: []string{"a/b"}, Annotations: map[string]string{infrav1.EndpointHook: ""},
		}}
		if deleted > 0 {
			at := metav1.NewTime(now.Add(-deleted))
			m.DeletionTimestamp = &at
		}
		return m
	}
	all := []*clusterv1.Machine{machine("kept", 0), machine("fresh", 30*time.Second), machine("late", hookTimeout+time.Second)}
	api := newManagement(t, all[0], all[1], all[2])
	recorder := events.NewFakeRecorder(10)
	var log recorded
	r := &EndpointReconciler{Client: api, Recorder: recorder, Log: log.logger()}
	var targets []target
	for _, m := range all {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		targets = append(targets, target{machine: m, address: m.Name})
	}
	result, err := r.removeExpiredHooks(t.Context(), targets)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically("~", hookTimeout-30*time.Second, 2*time.Second))
	for _, m := range all {
		g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
		_, has := m.Annotations[infrav1.EndpointHook]
		g.Expect(has).To(Equal(m.Name != "late"), m.Name)
	}
	g.Expect(recorder.Events).To(Receive(And(ContainSubstring("Warning"), ContainSubstring("StillTarget"))))
	g.Expect(recorder.Events).NotTo(Receive())
	g.Expect(said(log.grep(t, ""))).To(Equal([]string{"Removed the hook"}))
}

// balancing is a driver whose cloud has a load balancer in this state.
type balancing struct {
	placed
	state cloud.State
	calls *atomic.Int32
}

func (d balancing) EnsureBalancer(_ context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	d.calls.Add(1)
	return cloud.Resource{Kind: cloud.KindBalancer, ID: "lb", Token: req.Token, OwnershipID: req.OwnershipID, State: d.state,
		Reason: "in ERROR", Balancer: &cloud.BalancerState{Address: "10.0.0.7", Port: req.Port}}, nil
}

// TestFailedBalancerIsNotRecorded: the address of a load balancer that the cloud failed to create
// would be the cluster's for good.
func TestFailedBalancerIsNotRecorded(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	var calls atomic.Int32
	x.Clouds[0].New = func(cloud.Config) (cloud.Driver, error) {
		return balancing{placed{place: "here"}, cloud.StateFailed, &calls}, nil
	}
	x.reconcile()
	x.reconcile()
	infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
	infra.Spec.Creation = infrav1.DroverClusterCreation{OwnershipID: "owner", LoadBalancerToken: "token-1"}
	x.Expect(x.Client.Create(t.Context(), infra)).To(Succeed())
	r := &EndpointReconciler{Client: x.Client, APIReader: x.Client, Unsent: &sync.Map{}}
	result, err := r.ensure(t.Context(), &endpointScope{DroverCluster: infra, account: x.live()}, nil)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "it is looked at again")
	x.Expect(infra.Spec.ControlPlaneEndpoint.IsValid()).To(BeFalse())
	x.Expect(conditions.GetReason(infra, infrav1.EndpointReadyCondition)).To(Equal(infrav1.LoadBalancerFailedReason))
	x.Expect(conditions.GetMessage(infra, infrav1.EndpointReadyCondition)).To(HaveSuffix("in ERROR"))

	stale := infra.DeepCopy()
	infra.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "10.0.0.7", Port: 6443}
	x.Expect(x.Client.Update(t.Context(), infra)).To(Succeed())
	_, err = r.ensure(t.Context(), &endpointScope{DroverCluster: stale, account: x.live()}, nil)
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(calls.Load()).To(Equal(int32(1)), "its address is in use, though the cache does not show it")
}

// TestBalancerWithAnotherAddress: a load balancer whose address is not the one that machines and
// kubeconfigs have serves nobody.
func TestBalancerWithAnotherAddress(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	var calls atomic.Int32
	x.Clouds[0].New = func(cloud.Config) (cloud.Driver, error) {
		return balancing{placed{place: "here"}, cloud.StateRunning, &calls}, nil
	}
	x.reconcile()
	x.reconcile()
	for host, want := range map[string]string{"10.0.0.7": infrav1.NoTargetsReason, "10.0.0.8": infrav1.LoadBalancerLostReason} {
		infra := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}
		infra.Spec.Creation = infrav1.DroverClusterCreation{OwnershipID: "owner", LoadBalancerToken: "token-" + host}
		infra.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: host, Port: 6443}
		r := &EndpointReconciler{Client: x.Client, APIReader: x.Client, Unsent: &sync.Map{}}
		_, err := r.ensure(t.Context(), &endpointScope{DroverCluster: infra, account: x.live()}, nil)
		x.Expect(err).NotTo(HaveOccurred())
		x.Expect(conditions.GetReason(infra, infrav1.EndpointReadyCondition)).To(Equal(want), host)
	}
}
