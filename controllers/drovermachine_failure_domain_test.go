// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

// zonalBench has one machine without a VM that is claimed for a zone, and whose Machine allows only
// sim-1a.
func zonalBench(t *testing.T, claimed string) *bench {
	t.Helper()
	objects := edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) {
		unmade(m)
		m.Spec.Creation.FailureDomain = claimed
	})
	for _, o := range objects {
		if owner, ok := o.(*clusterv1.Machine); ok {
			owner.Spec.FailureDomain = "sim-1a"
		}
	}
	return newBenchWith(t, true, objects...)
}

// refuseCreates makes the cloud refuse the next creates with a code.
func (b *bench) refuseCreates(code string, count int) {
	b.t.Helper()
	b.addFault(simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.RunInstances, Code: code, Count: count})
}

// TestOpenAttemptIsSettled: an earlier process may have sent a create, and the cloud refuses the
// attempt now. The machine leaves the attempt once live reads have proved that nothing was made.
func TestOpenAttemptIsSettled(t *testing.T) {
	t.Parallel()
	for code, reason := range map[string]cloud.Code{
		wire.InvalidParameterValue: cloud.InvalidSpec, wire.InstanceNotFound: cloud.NotFound,
		wire.InsufficientInstanceCapacity: cloud.NoCapacity, wire.InstanceLimitExceeded: cloud.QuotaExceeded,
		wire.ResourceInUse: cloud.Conflict,
	} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := zonalBench(t, "sim-1b")
				b.refuseCreates(code, 1)
				b.reconcile("m")
				b.Expect(b.calls(wire.RunInstances)).To(Equal(1))
				m := b.machine("m")
				b.Expect(m.Spec.Creation.FailureDomain).To(Equal("sim-1b"), "while the attempt is open the machine stays")
				b.Expect(m.Spec.Creation.Attempt).To(BeZero())
				b.Expect(readyReason(m)).To(Equal(cloudReason(reason)))

				b.reconcile("m")
				b.Expect(b.calls(wire.RunInstances)).To(Equal(1), "asked again, it would be open for longer")

				b.wait(5 * time.Minute)
				m = b.machine("m")
				b.Expect(m.Spec.Creation.FailureDomain).To(Equal("sim-1a"))
				b.Expect(m.Spec.Creation.Attempt).To(BeEquivalentTo(1), "another token of the cloud's")

				b.reconcile("m")
				b.Expect(b.vms()).To(HaveLen(1))
				b.Expect(b.vms()[0].Zone).To(Equal("sim-1a"))
				b.Expect(b.machine("m").Spec.ProviderID).To(HaveSuffix(b.vms()[0].ID))
			})
		})
	}
}

// TestOpenAttemptIsFound: the create of an earlier process made a VM, and the machine adopts it
// although the cloud refuses the attempt now.
func TestOpenAttemptIsFound(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := zonalBench(t, "sim-1b")
		b.addFault(simulator.Fault{Kind: simulator.CutAfter, Operation: wire.RunInstances, Count: 1})
		b.reconcile("m")
		b.Expect(b.vms()).To(HaveLen(1))
		b.Expect(b.machine("m").Spec.ProviderID).To(BeEmpty())
		b.start()
		b.refuseCreates(wire.InstanceNotFound, 0)
		b.reconcile("m")
		b.wait(5 * time.Minute)
		m := b.machine("m")
		b.Expect(b.vms()).To(HaveLen(1))
		b.Expect(m.Spec.ProviderID).To(HaveSuffix(b.vms()[0].ID))
		b.Expect(m.Spec.Creation.FailureDomain).To(Equal("sim-1b"))
	})
}

// TestOpenAttemptIsAskedAgain: without a definite answer, the attempt stays on record.
func TestOpenAttemptIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, code := range []string{wire.InternalError, wire.ServiceUnavailable, wire.RequestLimitExceeded, wire.AuthFailure} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := zonalBench(t, "sim-1b")
				b.refuseCreates(code, 0)
				for range 3 {
					b.reconcile("m")
					b.wait(2 * time.Minute)
				}
				m := b.machine("m")
				b.Expect(m.Spec.Creation.FailureDomain).To(Equal("sim-1b"))
				b.Expect(m.Spec.Creation.Attempt).To(BeZero())
			})
		})
	}
}

// TestRefusedAttemptIsCounted: after a definite refusal, the next create has a new attempt number,
// because the cloud may bind a token to its first request. The number is raised at the next
// attempt, not at once.
func TestRefusedAttemptIsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := zonalBench(t, "sim-1a")
		b.r.attempts.set(b.machine("m"), attemptNotSent)
		b.refuseCreates(wire.InstanceLimitExceeded, 1)
		b.Expect(b.reconcile("m").RequeueAfter).NotTo(BeZero())
		b.Expect(b.machine("m").Spec.Creation.Attempt).To(BeZero(), "it is written when it is needed")
		b.reconcile("m")
		b.Expect(b.machine("m").Spec.Creation.Attempt).To(BeEquivalentTo(1))

		b.refuseCreates(wire.RequestLimitExceeded, 1)
		b.reconcile("m")
		b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.ThrottledReason))
		b.wait(time.Minute)
		b.reconcile("m")
		b.Expect(b.calls(wire.RunInstances)).To(Equal(3))
		b.Expect(b.machine("m").Spec.Creation.Attempt).To(BeEquivalentTo(1), "a throttled create was not looked at")
		b.Expect(b.machine("m").Spec.ProviderID).To(HaveSuffix(b.vms()[0].ID))
	})
}

// TestUnfinishedCreateIsOpen: a create of which the cloud accepted a part may have made something,
// although it ended for a reason that otherwise means that nothing was done.
func TestUnfinishedCreateIsOpen(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBench(t, edit(fleetOf("m"), "m", unmade)...)
		s, err := readMachine(t.Context(), b.r.Client, b.r.Accounts, client.ObjectKeyFromObject(b.machine("m")))
		b.Expect(err).NotTo(HaveOccurred())
		for _, cause := range []error{&cloud.Queued{}, cloud.Errorf(cloud.Throttled, "x"), cloud.Errorf(cloud.Unauthorized, "x")} {
			for err, want := range map[error]attemptState{cause: attemptNotSent, &fleet.Unfinished{Err: cause}: attemptUnknown} {
				b.r.attempts.set(s.DroverMachine, attemptUnknown) // as before each create
				_, failed := b.r.handleCreateError(t.Context(), s, attemptNotSent, err)
				b.Expect(failed).NotTo(HaveOccurred())
				b.Expect(b.r.attempts.get(s.DroverMachine)).To(Equal(want), "%T %v", err, err)
			}
		}
	})
}

// TestMachineOutsideItsDomain: a machine is made in its Machine's failure domain or not at all,
// however many zones its own fields allow.
func TestMachineOutsideItsDomain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, wanted, got string }{
		"another zone":       {"sim-1b", "sim-1a", ""},
		"the same":           {"sim-1a", "sim-1a", "sim-1a"},
		"only the Machine's": {"", "sim-1c", "sim-1c"},
		"only its own":       {"sim-1b", "", "sim-1b"},
	} {
		for _, zonal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, zonal %v", name, zonal), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					objects := edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) {
						unmade(m)
						m.Spec.Cloud.Simulated.Zone = c.own
					})
					for _, o := range objects {
						if owner, ok := o.(*clusterv1.Machine); ok {
							owner.Spec.FailureDomain = c.wanted
						}
					}
					b := newBenchWith(t, zonal, objects...)
					for range 3 {
						b.reconcile("m")
						b.wait(time.Minute)
					}
					if c.got == "" {
						b.Expect(b.vms()).To(BeEmpty())
						b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.InvalidSpecReason))
						return
					}
					b.Expect(b.vms()).To(HaveLen(1))
					b.Expect(b.vms()[0].Zone).To(Equal(c.got))
				})
			})
		}
	}
}

// TestDomainsOfATemplate: a template says to which zones its own fields limit its machines.
func TestDomainsOfATemplate(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string][]string{"sim-1b": {"sim-1b"}, "": nil} {
		t.Run(zone, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				template := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "cp"}}
				template.Spec.Template.Spec.AccountRef.Name = "main"
				template.Spec.Template.Spec.Cloud.Simulated = &infrav1.SimulatedMachine{InstanceType: "small", Image: "node-image", Zone: zone}
				b := newBench(t, template)
				r := &DroverMachineTemplateReconciler{Client: b.management, Accounts: b.r.Accounts}
				_, err := r.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(template)})
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(b.management.Get(b.t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
				b.Expect(template.Status.Capacity).NotTo(BeEmpty())
				b.Expect(template.Status.FailureDomains).To(Equal(want))

				// What the size can't be asked about does not hide the zones.
				template.Status = infrav1.DroverMachineTemplateStatus{}
				b.Expect(b.management.Status().Update(b.t.Context(), template)).To(Succeed())
				_, err = b.cloud.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.DescribeCatalog,
					Code: wire.InternalError})
				b.Expect(err).NotTo(HaveOccurred())
				_, err = r.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(template)})
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(b.management.Get(b.t.Context(), client.ObjectKeyFromObject(template), template)).To(Succeed())
				b.Expect(template.Status.FailureDomains).To(Equal(want))
			})
		})
	}
}

// TestEachDomainIsTried: a machine that may go to any zone is tried in each of them, at once,
// before it waits. It is tried again when a zone may have changed, and goes to the first that takes
// it.
func TestEachDomainIsTried(t *testing.T) {
	t.Parallel()
	for name, zonal := range map[string]bool{"zonal": true, "regional": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := edit(fleetOf("m"), "m", func(m *infrav1.DroverMachine) { unmade(m); m.Spec.Creation.Token = "" })
				zones := []string{"sim-1a", "sim-1b", "sim-1c"}
				for _, o := range objects {
					if account, ok := o.(*infrav1.DroverAccount); ok {
						account.Status.FailureDomains = zones
					}
				}
				b := newBenchWith(t, zonal, objects...)
				fault, err := b.cloud.AddFault(t.Context(), simulator.Fault{Kind: simulator.ErrorBefore, Operation: wire.RunInstances,
					Code: wire.InsufficientInstanceCapacity})
				b.Expect(err).NotTo(HaveOccurred())
				b.follow("m", time.Minute)
				b.Expect(b.calls(wire.RunInstances)).To(Equal(len(zones)))
				b.Expect(readyReason(b.machine("m"))).To(Equal(infrav1.NoCapacityReason))
				b.follow("m", 4*time.Minute)
				b.Expect(b.calls(wire.RunInstances)).To(BeNumerically("<=", 2*len(zones)))

				b.Expect(b.cloud.RemoveFault(t.Context(), fault)).To(Succeed())
				b.follow("m", 5*time.Minute)
				b.Expect(b.vms()).To(HaveLen(1))
				b.Expect(b.machine("m").Spec.ProviderID).To(HaveSuffix(b.vms()[0].ID))
			})
		})
	}
}
