// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/drover-io/drover/test/scenario"
)

// TestMachineController takes a pool of machine-controller over, with the command killed after each
// of its writes: there, back, and there again.
func TestMachineController(t *testing.T) {
	s := startEmpty(t, kubermatic, "mc")
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.old.addMC(pool{name: "a", replicas: 2, labels: map[string]any{"pool": "a"}})
	lease := s.old.lease(time.Now())
	before, began := s.picture(), s.AWS.Calls()

	out, errs, code := s.run("plan")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(s.picture()).To(Equal(before), "a plan changes nothing")
	s.done("stage")
	s.deployment("webhook", "machine-controller:v1.62.0", "/usr/local/bin/webhook") // it goes on
	s.renew(lease, time.Now())                                                      // it has renewed it all the time
	out, _, code = s.run("check")
	g.Expect(code).To(Equal(1))
	g.Expect(out).To(MatchRegexp(`Refused +Lease machine-controller +spec.renewTime`))
	s.renew(lease, time.Now().Add(-time.Hour))
	s.done("switch")
	s.still(before, 2)
	s.servingCertificate("mc-a-6d4f5-0")
	s.done("rollback")
	g.Expect(s.picture()).To(Equal(before))

	s.done("stage")
	s.done("switch")
	s.done("commit")
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(s.AWS.Calls()[op]).To(Equal(began[op]), op)
	}
	s.committed(before)
	g.Expect(s.count(&clusterv1.MachineHealthCheckList{})).To(Equal(0), "machine-controller replaces no unhealthy machine")
	out, _, _ = s.run("status")
	g.Expect(out).To(HaveSuffix("it is complete\n"))

	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "mc-a"}}
	s.Do(scenario.Patch(s.Ctx, s.Rig.Client, d, func() { d.Spec.Replicas = ptr.To[int32](0) }))
	s.Empty()
}
