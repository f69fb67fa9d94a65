// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/record"
)

// recorded is the record as a log in JSON has it, over all processes of a test.
type recorded struct {
	mu  sync.Mutex
	all []string
}

func (r *recorded) logger() logr.Logger {
	return funcr.NewJSON(func(line string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, line)
	}, funcr.Options{})
}

// line is what the tests read of a line.
type line struct {
	Said       string `json:"msg"`
	Cluster    string `json:"cluster"`
	Machine    string `json:"machine"`
	Account    string `json:"account"`
	ProviderID string `json:"providerID"`
	Token      string `json:"token"`
	By         record.Cause
	Reason     string
	Message    string `json:"message"`
}

// grep returns the lines that contain text.
func (r *recorded) grep(t *testing.T, text string) (lines []line) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, raw := range r.all {
		if !strings.Contains(raw, text) {
			continue
		}
		var l line
		if err := json.Unmarshal([]byte(raw), &l); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		lines = append(lines, l)
	}
	return lines
}

func said(lines []line) (all []string) {
	for _, l := range lines {
		all = append(all, l.Said)
	}
	return all
}

// deleteMachine deletes a Machine as Cluster API does: it stays until its DroverMachine is gone.
func (b *bench) deleteMachine(name string) {
	b.t.Helper()
	m := &clusterv1.Machine{}
	b.Expect(b.management.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, m)).To(Succeed())
	if m.DeletionTimestamp.IsZero() {
		b.remove(m)
	}
	b.remove(b.machine(name))
}

// changeMachine changes a Machine.
func (b *bench) changeMachine(name string, change func(*clusterv1.Machine)) {
	b.t.Helper()
	m := &clusterv1.Machine{}
	b.Expect(b.management.Get(b.t.Context(), client.ObjectKey{Namespace: "team-a", Name: name}, m)).To(Succeed())
	change(m)
	b.Expect(b.management.Update(b.t.Context(), m)).To(Succeed())
}

// withFinalizers keeps deleted Machines and the Cluster, as Cluster API does.
func withFinalizers(objects []client.Object) []client.Object {
	for _, o := range objects {
		switch o.(type) {
		case *clusterv1.Machine:
			o.SetFinalizers([]string{clusterv1.MachineFinalizer})
		case *clusterv1.Cluster:
			o.SetFinalizers([]string{clusterv1.ClusterFinalizer})
		}
	}
	return objects
}

// repeat reconciles a machine some more times, which must say nothing new.
func (b *bench) repeat(name string) {
	b.t.Helper()
	for range 3 {
		b.reconcile(name)
		b.wait(2 * time.Minute)
	}
}

// TestRecordOfALife: these are the lines of one machine's life, in this order, although each step
// is repeated, and a new process takes over after each.
func TestRecordOfALife(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, withFinalizers(edit(fleetOf("m"), "m",
			func(m *infrav1.DroverMachine) { m.Spec.ProviderID, m.Spec.Creation.Token = "", "" }))...)
		b.reconcile("m") // claims
		b.addFault(simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.RunInstances, Code: wire.InstanceLimitExceeded, Count: 3})
		b.repeat("m")
		for range 10 { // the quota has room again
			b.wait(10 * time.Minute)
			b.reconcile("m")
		}
		id := b.machine("m").Spec.ProviderID
		b.Expect(id).NotTo(BeEmpty())
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ReadyReason))
		b.start()
		b.repeat("m")
		b.deleteMachine("m")
		b.reconcile("m")
		b.start()
		b.wait(2 * time.Minute)
		b.reconcile("m")
		b.wait(5 * time.Minute)
		b.reconcile("m")
		b.Expect(b.isGone("m")).To(BeTrue())

		lines := b.record.grep(t, "")
		b.Expect(said(lines)).To(Equal([]string{saidCreating, saidNotReady, saidExists, saidRecorded, saidDeleting, saidDeleted}))
		for i, l := range lines {
			b.Expect([]string{l.Cluster, l.Machine, l.Account}).To(Equal([]string{"team-a/prod", "team-a/m", "team-a/main"}), l.Said)
			b.Expect(l.Token).To(HavePrefix("01234567"), l.Said)
			if i >= 2 {
				b.Expect(l.ProviderID).To(Equal(id), l.Said)
			}
		}
		b.Expect(lines[1].Reason).To(Equal(infrav1.QuotaExceededReason))
		b.Expect(lines[1].Message).NotTo(BeEmpty())
	})
}

// TestWhoDeletedIt: one grep for the VM's ID in the log says by what and why it went, for each way
// in which a machine's VM can go, and says it once. The test of the orphan collector has the last
// way.
func TestWhoDeletedIt(t *testing.T) {
	t.Parallel()
	condition := func(kind, message string) func(*clusterv1.Machine) {
		return func(m *clusterv1.Machine) {
			m.Status.Conditions = append(m.Status.Conditions,
				metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Because", Message: message})
		}
	}
	showing := func(change func(*cloud.Resource)) func([]cloud.Resource) []cloud.Resource {
		return func(all []cloud.Resource) []cloud.Resource {
			for i := range all {
				if all[i].State != cloud.StateTerminated {
					change(&all[i])
				}
			}
			return all
		}
	}
	user := func(b *bench) { b.deleteMachine("m") }
	for name, c := range map[string]struct {
		vanish  func(b *bench)
		said    string
		by      record.Cause
		message string
	}{
		"the Machine is deleted": {user, saidDeleting, record.MachineDeleted, ""},
		"marked, and then scaled down": {func(b *bench) {
			b.changeMachine("m", func(m *clusterv1.Machine) {
				m.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: "yes"}
			})
			user(b)
		}, saidDeleting, record.MachineDeleted, "it was marked by cluster.x-k8s.io/delete-machine"},
		"remediation": {func(b *bench) {
			b.changeMachine("m", condition(clusterv1.MachineHealthCheckSucceededCondition, "the Node does not report"))
			user(b)
		}, saidDeleting, record.MachineDeleted, "its health check failed: the Node does not report"},
		"rollout": {func(b *bench) {
			b.changeMachine("m", condition(clusterv1.MachineUpToDateCondition, "version v1.34, v1.35 required"))
			user(b)
		}, saidDeleting, record.MachineDeleted, "it was not up to date: version v1.34, v1.35 required"},
		"the Cluster is deleted": {func(b *bench) {
			b.remove(&clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod"}})
			user(b)
		}, saidDeleting, record.ClusterDeleted, ""},
		"the DroverMachine is deleted": {func(b *bench) { b.remove(b.machine("m")) }, saidDeleting, record.ObjectDeleted,
			"its Machine is not being deleted"},
		"the DroverMachine is deleted, without a Machine": {func(b *bench) {
			b.changeMachine("m", func(m *clusterv1.Machine) { m.Finalizers = nil })
			user(b)
		}, saidDeleting, record.ObjectDeleted, "no Machine owns it"},
		"the cloud recommends to leave it": {func(b *bench) {
			b.show(ending)
			b.wait(2 * time.Minute)
			user(b)
		}, saidReplacing, record.Replacement, "the cloud recommends to leave it"},
		"the cloud announces the end": {func(b *bench) {
			b.show(showing(func(x *cloud.Resource) {
				x.Interruptible, x.Reclaim, x.Notice = true, cloud.ReclaimCertain, "it ends in two minutes"
			}))
			b.wait(2 * time.Minute)
			user(b)
		}, saidReplacing, record.Replacement, "it ends in two minutes"},
		"the cloud had no capacity after all": {func(b *bench) {
			b.show(showing(func(x *cloud.Resource) {
				x.State, x.Code, x.Reason = cloud.StateFailed, cloud.NoCapacity, "no host has room"
			}))
			b.wait(2 * time.Minute)
			user(b)
		}, saidReplacing, record.FailedStart, "no host has room"},
		"terminated in the cloud": {func(b *bench) {
			b.act(simulator.ActTerminate)
			b.wait(5 * time.Minute)
			user(b)
		}, saidGone, record.Cloud, "is gone from the cloud"},
		"vanished from the cloud": {func(b *bench) {
			b.act(simulator.ActVanish)
			b.wait(5 * time.Minute)
			user(b)
		}, saidGone, record.Cloud, "is gone from the cloud"},
		"abandoned": {func(b *bench) {
			m := b.machine("m")
			m.Annotations = map[string]string{infrav1.AbandonAnnotation: "m"}
			b.Expect(b.management.Update(b.t.Context(), m)).To(Succeed())
			user(b)
		}, saidAbandoning, record.Abandoned, ""},
		"by a process that ends at once": {func(b *bench) {
			user(b)
			b.reconcile("m")
			b.start()
		}, saidDeleting, record.MachineDeleted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := fleetOf("m")
				b := newBench(t, withFinalizers(poolOf(objects, func(*clusterv1.MachineSet, *clusterv1.MachineDeployment) {}))...)
				b.reconcile("m")
				b.wait(time.Minute)
				id := b.machine("m").Spec.ProviderID
				id = id[strings.LastIndex(id, "/")+1:]
				c.vanish(b)
				for range 4 {
					if !b.isGone("m") {
						b.reconcile("m")
					}
					b.wait(2 * time.Minute)
				}
				b.Expect(b.isGone("m")).To(BeTrue())

				lines := b.record.grep(t, id)
				b.Expect(lines).NotTo(BeEmpty())
				times := map[string]int{}
				for _, s := range said(lines) {
					times[s]++
				}
				for s, n := range times {
					b.Expect(n).To(Equal(1), "%q is said %d times", s, n)
				}
				var first line // the answer is the first line that names a cause
				for _, l := range lines {
					if l.By != "" {
						first = l
						break
					}
				}
				b.Expect(first.Said).To(Equal(c.said))
				b.Expect(first.By).To(Equal(c.by))
				if c.message == "" {
					b.Expect(first.Message).To(BeEmpty())
				}
				b.Expect(first.Message).To(ContainSubstring(c.message))
				if c.by != record.Abandoned {
					b.Expect(lines[len(lines)-1].Said).To(Equal(saidDeleted), "its end")
				}
				if c.by != record.Cloud {
					b.Expect(lines[len(lines)-1].By).To(Equal(c.by), "the end has the same cause")
				}
			})
		})
	}
}

// TestWhoDeletedTheLate: a VM whose create got no answer is found only when its machine is being
// deleted. The record has it, and by what it goes.
func TestWhoDeletedTheLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, withFinalizers(edit(fleetOf("m"), "m", unmade))...)
		b.addFault(simulator.Fault{Kind: simulator.CutAfter, Operation: wire.RunInstances})
		b.reconcile("m")
		b.Expect(b.vms()).To(HaveLen(1))
		id := b.vms()[0].ID
		b.deleteMachine("m")
		for range 5 {
			if !b.isGone("m") {
				b.reconcile("m")
			}
			b.wait(2 * time.Minute)
		}
		b.Expect(b.isGone("m")).To(BeTrue())
		lines := b.record.grep(t, id)
		b.Expect(said(lines)).To(Equal([]string{saidExists, saidRecorded, saidDeleting, saidDeleted}))
		b.Expect(lines[2].By).To(Equal(record.MachineDeleted))
		b.Expect(lines[3].By).To(Equal(record.MachineDeleted))
	})
}

// TestIdleRecord: a fleet that runs says nothing, and neither does a process that takes it over.
func TestIdleRecord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		names := []string{"m1", "m2", "m3", "m4", "m5"}
		b := newBench(t, fleetOf(names...)...)
		for range 2 {
			for _, name := range names {
				b.reconcile(name)
			}
			b.wait(time.Hour)
			b.start()
		}
		b.Expect(b.record.grep(t, "")).To(BeEmpty())
	})
}

// TestRecordedEvents: users see when the VM is made, by what it goes and when it is gone, with its
// provider ID.
func TestRecordedEvents(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, withFinalizers(edit(fleetOf("m"), "m", unmade))...)
		b.reconcile("m")
		id := b.machine("m").Spec.ProviderID
		b.wait(time.Minute)
		b.deleteMachine("m")
		b.repeat("m")
		b.Expect(b.isGone("m")).To(BeTrue())
		for _, want := range []string{
			"Normal InstanceCreated VM " + id + " exists", "Normal InstanceDeleting Deleting VM " + id + ": MachineDeleted",
			"Normal InstanceDeleted VM " + id + " is deleted: MachineDeleted",
		} {
			b.Expect(b.recorder.Events).To(Receive(Equal(want)))
		}
		b.Expect(b.recorder.Events).NotTo(Receive())
	})
}
