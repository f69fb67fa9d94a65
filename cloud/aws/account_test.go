// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/internal/test/engine"
)

// testFleet returns an account with the engine, as the manager has it.
func testFleet(t *testing.T, spec infrav1.DroverAccountSpec) *fleet.Account {
	t.Helper()
	return engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall)},
		fleet.AccountConfig{Spec: spec, Credentials: testCredentials()})
}

// TestAccountFindsTheZone: an account skips zones without capacity, and zones in which the machine
// has no subnet, for which it makes no call to EC2.
func TestAccountFindsTheZone(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		subnets infrav1.AWSSelector
		full    string
		runs    int
	}{
		"no capacity": {subnets: infrav1.AWSSelector{Tags: map[string]string{"role": "nodes"}}, full: "us-east-1a", runs: 2},
		"no subnet":   {subnets: infrav1.AWSSelector{IDs: []string{"subnet-0b1"}}, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			if test.full != "" {
				stub.SetCapacity(test.full, 0)
			}
			account := testFleet(t, *testAccount(stub.URL))
			var made cloud.Resource
			for range 2 { // as the controller does: one zone, then the next if there was no capacity
				req := request("token", func(m *infrav1.AWSMachine) { m.Subnets = test.subnets })
				zone, err := account.Domain(req.Spec, []string{"us-east-1a", "us-east-1b"})
				g.Expect(err).NotTo(HaveOccurred())
				if made, err = account.Ensure(t.Context(), req, []string{zone}); err == nil {
					break
				}
				g.Expect(code(err)).To(Equal(cloud.NoCapacity), "%v", err)
			}
			g.Expect(made.FailureDomain).To(Equal("us-east-1b"))
			g.Expect(stub.Calls()["RunInstances"]).To(Equal(test.runs))
		})
	}
}

// handler carries requests to a handler, without a network, which a synctest bubble can't wait for.
type handler struct{ http.Handler }

func (h handler) RoundTrip(r *http.Request) (*http.Response, error) {
	w, in := httptest.NewRecorder(), r.Clone(r.Context())
	in.Host = r.URL.Host // which is signed
	h.ServeHTTP(w, in)
	return w.Result(), nil
}

// TestTokenOfAnEarlierProcess: an earlier process has sent a create, and the next one's is another
// request, because another subnet has more free addresses by now. EC2 refuses it whatever became of
// the first one. If that made nothing, the next attempt makes the machine. If it made an instance
// that EC2 shows late, the machine has that one and no other.
func TestTokenOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first func(*ec2stub.Cloud) (undo func())
		code  cloud.Code
		made  bool
	}{
		"refused": {code: cloud.NoCapacity, first: func(stub *ec2stub.Cloud) func() {
			stub.SetCapacity("us-east-1a", 0)
			return func() { stub.SetCapacity("us-east-1a", -1) }
		}},
		"made": {code: cloud.Unavailable, made: true, first: func(stub *ec2stub.Cloud) func() {
			return stub.Inject(ec2stub.Fault{Operation: runInstances, Code: "InternalError", Status: http.StatusInternalServerError, After: true})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Lag: 90 * time.Second})
			synctest.Test(t, func(t *testing.T) {
				g, ctx := NewWithT(t), t.Context()
				process := func() *fleet.Account {
					return engine.Start(t,
						fleet.Options{Clouds: []cloud.Cloud{Cloud()}, Times: fleet.TimesFor(fleet.DefaultCall), Transport: handler{stub}},
						fleet.AccountConfig{Spec: *testAccount(stub.URL), Credentials: testCredentials()})
				}
				ensure := func(a *fleet.Account, subnet string, attempt int, maybeSent bool) (cloud.Resource, error) {
					req := request("token", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{subnet}} })
					req.Attempt, req.MaybeSent = attempt, maybeSent
					return a.Ensure(ctx, req, []string{req.FailureDomain})
				}
				undo := test.first(stub)
				_, err := ensure(process(), "subnet-0a1", 0, true)
				g.Expect(code(err)).To(Equal(test.code), "%v", err)
				undo()

				next, ref := process(), cloud.Reference{Token: "token", OwnershipID: "owner"}
				_, err = ensure(next, "subnet-0a2", 0, true)
				g.Expect(code(err)).To(Equal(cloud.Conflict), "%v", err)
				g.Expect(errors.As(err, new(*fleet.Unfinished))).To(BeFalse(), "the next one's create made nothing")
				isSettled, isFound := false, false // as the controller finds out
				begin := time.Now()
				for time.Since(begin) < 10*time.Minute && !isSettled && !isFound {
					isSettled = next.ConfirmNothingCreated(ref)
					isFound = next.Observe(ref, false).Instance != nil
					time.Sleep(time.Second)
				}
				g.Expect(isFound).To(Equal(test.made))
				g.Expect(isSettled).NotTo(Equal(isFound))
				attempt := 0
				if isSettled {
					g.Expect(time.Since(begin)).To(BeNumerically(">=", consistency), "an instance may be hidden for that long")
					attempt++
				}
				made, err := ensure(next, "subnet-0a2", attempt, false)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(stub.Left(cloud.TagToken, "token")).To(Equal([]string{made.ID}))
			})
		})
	}
}
