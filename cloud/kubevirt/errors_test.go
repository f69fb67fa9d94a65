// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// TestRefusedCreate: what an API server answers to a create, and the code that it becomes.
func TestRefusedCreate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int32
		kind   string
		words  string
		want   cloud.Code
	}{
		// https://github.com/kubernetes/kubernetes/issues/67761
		"a race for a quota": {http.StatusConflict, "resourcequotas",
			`Operation cannot be fulfilled on resourcequotas "team": the object has been modified; please apply your changes to the latest version and try again`, cloud.Unavailable},
		"a race for a quota, without details": {http.StatusConflict, "",
			`Operation cannot be fulfilled on resourcequotas "compute": the object has been modified; please apply your changes to the latest version and try again`, cloud.Unavailable},
		"another object": {http.StatusConflict, "virtualmachines",
			`Operation cannot be fulfilled on virtualmachines.kubevirt.io "m": the UID in the precondition differs`, cloud.Conflict},
		"a name": {http.StatusConflict, "virtualmachines", `virtualmachines.kubevirt.io "m" already exists`, cloud.Conflict},
		"a full quota": {http.StatusForbidden, "virtualmachines",
			`virtualmachines.kubevirt.io "m" is forbidden: exceeded quota: team, requested: count/virtualmachines=1`, cloud.QuotaExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			status := &metav1.Status{Code: c.status, Message: c.words}
			if c.kind != "" {
				status.Details = &metav1.StatusDetails{Name: "team", Kind: c.kind}
			}
			for _, op := range []operation{createSecret, createMachine} {
				NewWithT(t).Expect(refused(op, status, driverkit.NewRedactor()).Code).To(Equal(c.want))
			}
		})
	}
}

// TestRefusedKeepsLittle: an error may be remembered, so it keeps no more of an answer than it
// shows or acts on.
func TestRefusedKeepsLittle(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 1<<20)
	err := refused(createMachine, &metav1.Status{Code: http.StatusConflict, Message: large, Reason: metav1.StatusReason(large),
		Details: &metav1.StatusDetails{Name: large, Kind: large}}, driverkit.NewRedactor())
	NewWithT(t).Expect(driverkit.SizeOf(err)).To(BeNumerically("<", 8<<10))
}

// TestRetryAfter: a wait is as long as the API server asks, or none.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int32]time.Duration{-1: 0, 0: 0, 1: time.Second, 30: 30 * time.Second} {
		status := &metav1.Status{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonServerTimeout,
			Details: &metav1.StatusDetails{RetryAfterSeconds: seconds}}
		if got := refused(createMachine, status, driverkit.NewRedactor()).RetryAfter; got != want {
			t.Errorf("%d: %s, want %s", seconds, got, want)
		}
	}
}
