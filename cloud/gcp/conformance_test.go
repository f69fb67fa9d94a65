// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"sync"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
)

const testEmail = "drover@" + gcpstub.Project + ".iam.gserviceaccount.com"

// testKeys are two keys of service accounts. Only the stub's knows the first one.
var testKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		keys[i] = key
	}
	return keys
})

// keyJSON returns a service account key as Google issues it, with changes.
func keyJSON(key *rsa.PrivateKey, changes map[string]any) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err)
	}
	file := map[string]any{
		"type": "service_account", "project_id": gcpstub.Project, "private_key_id": "4711", "client_email": testEmail,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"token_uri":   "https://oauth2.googleapis.com/token",
	}
	for name, value := range changes {
		file[name] = value
	}
	text, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	return text
}

func testCredentials() map[string][]byte {
	return map[string][]byte{keyCredentials: keyJSON(testKeys()[0], nil)}
}

func testAccount() *infrav1.DroverAccountSpec {
	return &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "c"},
		Cloud: infrav1.AccountCloud{GCP: &infrav1.GCPAccount{ProjectID: gcpstub.Project, Region: gcpstub.Region,
			UniverseDomain: googleapis}},
	}
}

// testMachine returns a machine that the stub can create.
func testMachine(edit func(*infrav1.GCPMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.GCPMachine{
		MachineType:       "e2-standard-2",
		Image:             infrav1.GCPImage{Name: gcpstub.Image},
		NetworkInterfaces: []infrav1.GCPNetworkInterface{{Subnetwork: gcpstub.Subnet}},
	}
	if edit != nil {
		edit(m)
	}
	return &infrav1.DroverMachineFields{AccountRef: infrav1.LocalReference{Name: "a"}, Cloud: infrav1.MachineCloud{GCP: m}}
}

// testBalancer returns settings with which the stub makes a load balancer.
func testBalancer() *infrav1.LoadBalancerCloud {
	return &infrav1.LoadBalancerCloud{GCP: &infrav1.GCPLoadBalancer{Network: gcpstub.Network}}
}

func start(t testing.TB, options gcpstub.Options) *gcpstub.Cloud {
	t.Helper()
	options.Email, options.Key = testEmail, &testKeys()[0].PublicKey
	stub := gcpstub.New(t, options)
	t.Cleanup(func() {
		for _, objection := range stub.Objections() {
			t.Errorf("Google's discovery document: %s", objection)
		}
	})
	return stub
}

// quick returns a driver for the stub's pace.
func quick(cfg cloud.Config) (cloud.Driver, error) {
	made, err := newDriver(cfg)
	if err != nil {
		return nil, err
	}
	d := made.(*driver)
	d.poll, d.replay = 10*time.Millisecond, 100*time.Millisecond
	d.partsPoll, d.readLag = 10*time.Millisecond, 500*time.Millisecond
	return d, nil
}

// TestConformance runs the suite over HTTPS: against a consistent Compute Engine whose instances
// leave their disks behind, and against one whose listings lag.
func TestConformance(t *testing.T) {
	t.Run("consistent", func(t *testing.T) { conform(t, gcpstub.Options{Keep: true}, 120) })
	t.Run("lagging", func(t *testing.T) { conform(t, gcpstub.Options{Lag: 300 * time.Millisecond}, 50) })
}

func conform(t *testing.T, options gcpstub.Options, machines int) {
	t.Parallel()
	options.PageSize, options.Boot, options.Stop, options.Parts = 50, 50*time.Millisecond, 50*time.Millisecond, 20*time.Millisecond
	stub := start(t, options)
	row := Cloud()
	row.New = quick
	row.Traits.ReadLag, row.Traits.TerminationTime = options.Lag, options.Stop // the row's own values are for Google's slow days
	refused := func(code cloud.Code, offeringToo bool, edit func(*infrav1.GCPMachine)) conformance.Refused {
		return conformance.Refused{Machine: testMachine(edit), Code: code, OfferingToo: offeringToo}
	}
	elsewhere := testAccount()
	elsewhere.Cloud.GCP.ProjectID = gcpstub.Other
	conformance.Run(t, conformance.Target{
		Cloud:          row,
		Account:        testAccount(),
		Credentials:    testCredentials(),
		BadCredentials: map[string][]byte{keyCredentials: keyJSON(testKeys()[1], nil)},
		Transport:      stub.Transport(),
		Machine:        testMachine(nil),
		Balancer:       testBalancer(),
		Refused: map[string]conformance.Refused{
			"unknown type":   refused(cloud.NoCapacity, true, func(m *infrav1.GCPMachine) { m.MachineType = "e2-enormous-2" }),
			"unknown image":  refused(cloud.NotFound, false, func(m *infrav1.GCPMachine) { m.Image.Name += "-x" }),
			"unknown subnet": refused(cloud.NotFound, false, func(m *infrav1.GCPMachine) { m.NetworkInterfaces[0].Subnetwork += "-x" }),
			"unknown domain": {Machine: testMachine(nil), FailureDomain: gcpstub.Region + "-z", Code: cloud.InvalidSpec},
			"other domain":   {Machine: testMachine(nil), FailureDomain: "us-east1-b", Code: cloud.InvalidSpec},
		},
		Machines: machines,
		Timeout:  20 * time.Second,
		// A new driver makes a call for its token, and one for the region's zones if the suite
		// leaves the zone open. Until a new instance is decided on, listings are read; the suite
		// asks often. What exists is read after its operation. A listing also reads disks, which
		// may take a page more than instances.
		Calls: conformance.Calls{Probe: 2, Create: 12, Again: 2, Offering: 3, List: 4, Describe: 3, Page: 50, Delete: 5, Console: 1,
			Balancer: 40, Targets: 1},
		Inject: injections(stub),
		Foreign: func(testing.TB) func() bool {
			return stub.Launch(gcpstub.Zones()[0], "other", map[string]any{"team": "others"})
		},
		OtherPlace: &conformance.Place{Account: elsewhere, Credentials: testCredentials()},
		LateCreates: func(testing.TB) func() {
			return stub.Inject(gcpstub.Fault{Operation: "POST instances", Late: true, Delay: 100 * time.Millisecond})
		},
		FailsLater: func(testing.TB) func() { return stub.FailLate("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS") },
		LosePermissions: func(testing.TB) func() {
			return stub.Inject(gcpstub.Fault{Operation: "GET aggregated/instances", Reason: "forbidden", Status: http.StatusForbidden})
		},
		Remaining: func(_ testing.TB, owner string) []string { return stub.Left(cloud.TagOwnership, owner) },
	})
}

// injections are the errors that the stub can produce.
func injections(stub *gcpstub.Cloud) map[cloud.Code]func(testing.TB) func() {
	inject := map[cloud.Code]func(testing.TB) func(){
		cloud.QuotaExceeded: func(testing.TB) func() {
			stub.Launch(gcpstub.Zones()[0], "quota", nil)
			return stub.SetQuota(1)
		},
	}
	for code, fault := range map[cloud.Code]gcpstub.Fault{
		cloud.Throttled:   {Reason: "rateLimitExceeded", Status: http.StatusForbidden},
		cloud.NoCapacity:  {Reason: "ZONE_RESOURCE_POOL_EXHAUSTED", Status: http.StatusServiceUnavailable},
		cloud.NotFound:    {Reason: "notFound", Status: http.StatusNotFound},
		cloud.Conflict:    {Reason: "resourceInUseByAnotherResource", Status: http.StatusBadRequest},
		cloud.Unavailable: {Reason: "backendError", Status: http.StatusServiceUnavailable, After: true},
		cloud.Unknown:     {Reason: "somethingNew", Status: http.StatusBadRequest},
	} {
		inject[code] = func(testing.TB) func() {
			fault.Operation = "POST instances"
			return stub.Inject(fault)
		}
	}
	return inject
}
