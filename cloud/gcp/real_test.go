// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

// realOwner is the ownership ID of what TestRealAccount makes.
const realOwner = "drover-real-account-test"

// realAccount is where TestRealAccount makes its machines: DROVER_GCP_REAL, as JSON.
type realAccount struct {
	infrav1.GCPAccount
	MachineType, Image, ImageProject, Subnetwork string
}

// TestRealAccount takes two machines through their life in a real project. It says what Google does
// where its documentation does not.
func TestRealAccount(t *testing.T) {
	text := os.Getenv("DROVER_GCP_REAL")
	if text == "" {
		t.Skip("DROVER_GCP_REAL is not set: no real project was asked")
	}
	var account realAccount
	if err := json.Unmarshal([]byte(text), &account); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDriver(cloud.Config{
		Account: &infrav1.DroverAccountSpec{CredentialsRef: infrav1.LocalReference{Name: "c"},
			Cloud: infrav1.AccountCloud{GCP: &account.GCPAccount}},
		Credentials: map[string][]byte{keyCredentials: key}, Connect: conformance.Through(http.DefaultTransport),
	})
	if err != nil {
		t.Fatal(err)
	}
	wholeLife(t, d.(*driver), &infrav1.GCPMachine{
		MachineType: account.MachineType, Image: infrav1.GCPImage{Name: account.Image, Project: account.ImageProject},
		NetworkInterfaces: []infrav1.GCPNetworkInterface{{Subnetwork: account.Subnetwork}},
	}, 2*time.Second)
}

// TestLife takes the same steps on the stand-in.
func TestLife(t *testing.T) {
	t.Parallel()
	stub := start(t, gcpstub.Options{Boot: 100 * time.Millisecond, Stop: 50 * time.Millisecond, Lag: 20 * time.Millisecond})
	wholeLife(t, connect(t, stub), testMachine(nil).Cloud.GCP, 10*time.Millisecond)
	if left := stub.Left(cloud.TagOwnership, realOwner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// wholeLife makes two machines of one name, one after the other, repeats each create, waits until
// it runs, and deletes it by its number. It deletes whatever it made, however it ends.
func wholeLife(t *testing.T, d *driver, spec *infrav1.GCPMachine, pace time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Minute)
	defer cancel()
	info, err := d.Probe(ctx)
	if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	t.Logf("place %s, zones %q", info.Place, info.FailureDomains)
	name, first := "drover-"+strings.ToLower(rand.Text()[:10]), cloud.Resource{}
	for _, token := range []string{name + "-1", name + "-2"} {
		req := cloud.Request{Token: token, OwnershipID: realOwner, Namespace: "test", Name: name, FailureDomain: info.FailureDomains[0],
			UserData: []byte("#cloud-config\n"), Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{GCP: spec}}}
		refs := []cloud.Reference{{Token: token, OwnershipID: realOwner}}
		func() {
			defer func() { conformance.Clean(ctx, t, d, refs, pace) }()
			made := oneLife(ctx, t, d, req, pace)
			if made.ID == first.ID {
				t.Errorf("two instances of one name have the number %s", made.ID)
			}
			if first.ID != "" {
				if err := d.Delete(ctx, []cloud.Resource{first})[0]; err != nil {
					t.Errorf("deleting what is gone, by its number: %v", err)
				}
				if now := shown(ctx, t, d, made.ID); now == nil || now.State != cloud.StateRunning {
					t.Errorf("the deletion of the first instance hit the second one: %+v", now)
				}
			}
			first = made
		}()
	}
}

// oneLife makes a machine and waits until it runs.
func oneLife(ctx context.Context, t *testing.T, d *driver, req cloud.Request, pace time.Duration) (made cloud.Resource) {
	t.Helper()
	began := time.Now()
	conformance.WaitFor(ctx, t, pace, "the instance is made", func() bool {
		var err error
		made, err = d.Ensure(ctx, req)
		if code := cloud.CodeOf(err); err != nil && code != cloud.Unavailable {
			t.Fatalf("Ensure: %v", err)
		}
		return err == nil
	})
	t.Logf("%s: made after %s", made.ID, time.Since(began).Round(time.Millisecond))
	later := req
	later.Attempt = 1 // another request ID, as when Google has forgotten the first one
	for what, repeated := range map[string]cloud.Request{"the same request": req,
		"another request for the name, which Google answers with 409": later} {
		conformance.WaitFor(ctx, t, pace, what, func() bool {
			again, err := d.Ensure(ctx, repeated)
			if err != nil && cloud.CodeOf(err) != cloud.Unavailable || err == nil && again.ID != made.ID {
				t.Fatalf("%s: %v, %v", what, again.ID, err)
			}
			return err == nil
		})
	}
	other := req
	other.Token += "-other"
	if _, err := d.Ensure(ctx, other); cloud.CodeOf(err) != cloud.Conflict {
		t.Errorf("another machine of the name: %v", err)
	}
	conformance.WaitFor(ctx, t, pace, "the instance runs", func() bool {
		r := shown(ctx, t, d, made.ID)
		return r != nil && r.State == cloud.StateRunning && len(r.Addresses) > 1
	})
	t.Logf("%s: runs after %s", made.ID, time.Since(began).Round(time.Millisecond))
	labeled := 0
	all, err := listAll(ctx, d, "ListDisks", allDisks, ownFilter, func(s scope) []disk { return s.Disks })
	for _, k := range all {
		if k.Labels[cloud.TagToken] == req.Token {
			labeled++
		}
	}
	if err != nil || labeled != 1 {
		t.Errorf("%d disks have the machine's labels: %v", labeled, err)
	}
	return made
}

// shown returns what a listing shows of an instance.
func shown(ctx context.Context, t *testing.T, d *driver, id string) *cloud.Resource {
	t.Helper()
	all, err := d.List(ctx)
	if err != nil {
		t.Logf("List: %v", err)
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}
