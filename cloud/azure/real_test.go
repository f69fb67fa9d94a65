// SPDX-License-Identifier: Apache-2.0

package azure

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
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
)

// realOwner is the ownership ID of what TestRealAccount makes.
const realOwner = "drover-real-account-test"

// realAccount is where TestRealAccount makes its machines: DROVER_AZURE_REAL, as JSON.
type realAccount struct {
	infrav1.AzureAccount
	Size, Image, Subnet string
}

// TestRealAccount takes two machines through their life on a real subscription. It says what Azure
// does where its documentation does not.
func TestRealAccount(t *testing.T) {
	text := os.Getenv("DROVER_AZURE_REAL")
	if text == "" {
		t.Skip("DROVER_AZURE_REAL is not set: no real subscription was asked")
	}
	var account realAccount
	if err := json.Unmarshal([]byte(text), &account); err != nil {
		t.Fatal(err)
	}
	secret := map[string][]byte{}
	for key, variable := range map[string]string{keyTenantID: "AZURE_TENANT_ID", keyClientID: "AZURE_CLIENT_ID",
		keyClientSecret: "AZURE_CLIENT_SECRET"} {
		secret[key] = []byte(os.Getenv(variable))
	}
	d, err := newDriver(cloud.Config{
		Account: &infrav1.DroverAccountSpec{CredentialsRef: infrav1.LocalReference{Name: "c"},
			Cloud: infrav1.AccountCloud{Azure: &account.AzureAccount}},
		Credentials: secret, Connect: conformance.Through(http.DefaultTransport),
	})
	if err != nil {
		t.Fatal(err)
	}
	wholeLife(t, d.(*driver), &infrav1.AzureMachine{
		VMSize: account.Size, Image: infrav1.AzureImage{ID: account.Image},
		NetworkInterfaces: []infrav1.AzureNetworkInterface{{SubnetID: account.Subnet}},
	}, 5*time.Second)
}

// TestLife takes the same steps on the stand-in.
func TestLife(t *testing.T) {
	t.Parallel()
	stub := start(t, armstub.Options{Boot: 50 * time.Millisecond, Stop: 50 * time.Millisecond, Lag: 20 * time.Millisecond})
	wholeLife(t, connect(t, stub), testMachine(nil).Cloud.Azure, 10*time.Millisecond)
	if left := stub.Left(cloud.TagOwnership, realOwner); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// wholeLife makes two machines, repeats each create, waits until they run, and deletes them. It
// deletes whatever it made, however it ends.
func wholeLife(t *testing.T, d *driver, spec *infrav1.AzureMachine, pace time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Minute)
	defer cancel()
	info, err := d.Probe(ctx)
	if err != nil {
		t.Fatalf("Probe: %v", err)
	}
	t.Logf("place %s, zones %q", info.Place, info.FailureDomains)
	var refs []cloud.Reference
	defer func() { conformance.Clean(ctx, t, d, refs, pace) }()
	for range 2 {
		name := "drover-" + strings.ToLower(rand.Text()[:10])
		req := cloud.Request{Token: name + "-token", OwnershipID: realOwner, Namespace: "test", Name: name, UserData: []byte("#cloud-config\n"),
			Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{Azure: spec}}}
		refs = append(refs, cloud.Reference{Token: req.Token, OwnershipID: realOwner})
		began := time.Now()
		made, err := d.Ensure(ctx, req)
		if err != nil {
			t.Fatalf("Ensure: %v", err)
		}
		again, err := d.Ensure(ctx, req)
		if err != nil || again.ID != made.ID {
			t.Fatalf("Ensure again, which Azure answers with 412: %v, %v", again.ID, err)
		}
		other := req
		other.Token += "-other"
		if _, err := d.Ensure(ctx, other); cloud.CodeOf(err) != cloud.Conflict {
			t.Errorf("Ensure of another machine of the name: %v", err)
		}
		conformance.WaitFor(ctx, t, pace, "a listing shows the machine", func() bool { return shown(ctx, t, d, req.Token) != nil })
		t.Logf("%s: listed after %s", name, time.Since(began).Round(time.Millisecond))
		conformance.WaitFor(ctx, t, pace, "the machine runs and has addresses", func() bool {
			r := shown(ctx, t, d, req.Token)
			return r != nil && r.State == cloud.StateRunning && len(r.Addresses) > 1
		})
		t.Logf("%s: runs after %s", name, time.Since(began).Round(time.Millisecond))
	}
	parts, err := d.readParts(ctx)
	if err != nil {
		t.Fatalf("listing parts: %v", err)
	}
	tagged := 0
	for _, disk := range parts.disks {
		if tag(disk.Tags, cloud.TagOwnership) == realOwner {
			tagged++
		}
	}
	if tagged != len(refs) {
		t.Errorf("%d of %d disks have their machine's tags", tagged, len(refs))
	}
}

// shown returns what a listing shows of a machine.
func shown(ctx context.Context, t *testing.T, d *driver, token string) *cloud.Resource {
	t.Helper()
	all, err := d.List(ctx)
	if err != nil {
		t.Logf("List: %v", err)
	}
	for i := range all {
		if all[i].Token == token && all[i].Kind == cloud.KindInstance {
			return &all[i]
		}
	}
	return nil
}
