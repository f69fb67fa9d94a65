// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// TestMachineController takes a pool of machine-controller over, with the command killed after each
// of its writes: there, back, and there again.
func TestMachineController(t *testing.T) {
	s := startEmpty(t, MachineController(), "mc", controlled)
	s.AWS.SetKeep(false)
	g := NewWithT(t)
	s.Old.AddMC(Pool{Name: "a", Replicas: 2, Labels: map[string]any{"pool": "a"}})
	lease := s.Old.Lease(time.Now())
	before, began := s.Picture(), s.AWS.Calls()

	out, errs, code := s.Run("plan")
	g.Expect(code).To(Equal(0), out+errs)
	g.Expect(s.Picture()).To(Equal(before), "a plan changes nothing")
	s.Done("stage")
	s.deployment("webhook", "machine-controller:v1.62.0", "/usr/local/bin/webhook") // it goes on
	s.Renew(lease, time.Now().Add(time.Hour))                                       // as if it renewed it all the time
	out, _, code = s.Run("check")
	g.Expect(code).To(Equal(1))
	g.Expect(out).To(MatchRegexp(`Refused +Lease machine-controller +spec.renewTime`))
	s.Renew(lease, time.Now().Add(-time.Hour))
	s.Done("switch")
	s.Still(before, 2)
	s.servingCertificate("mc-a-6d4f5-0")
	s.Done("rollback")
	g.Expect(s.Picture()).To(Equal(before))

	s.Done("stage")
	s.Done("switch")
	s.Done("commit")
	for _, op := range []string{"RunInstances", "TerminateInstances"} {
		g.Expect(s.AWS.Calls()[op]).To(Equal(began[op]), op)
	}
	s.Committed(before)
	g.Expect(s.Count(&clusterv1.MachineHealthCheckList{})).To(Equal(0), "machine-controller replaces no unhealthy machine")
	out, _, _ = s.Run("status")
	g.Expect(out).To(HaveSuffix("it is complete\n"))

	s.Scale("a", 0)
	s.Empty()
}
