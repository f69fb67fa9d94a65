// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/naming"
)

func connect(t testing.TB, stub *gcpstub.Cloud) *driver {
	t.Helper()
	made, err := quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(stub.Transport())})
	if err != nil {
		t.Fatal(err)
	}
	return made.(*driver)
}

func testRequest(name string, edit func(*infrav1.GCPMachine)) cloud.Request {
	return cloud.Request{Token: "token-" + name, OwnershipID: "owner", Namespace: "team", Name: name, FailureDomain: gcpstub.Zones()[0],
		UserData: []byte("#cloud-config\n"), Spec: testMachine(edit)}
}

// ensured repeats a create until it ends.
func ensured(t testing.TB, d *driver, req cloud.Request) (made cloud.Resource, err error) {
	t.Helper()
	NewWithT(t).Eventually(func() cloud.Code {
		made, err = d.Ensure(t.Context(), req)
		return cloud.CodeOf(err)
	}, "10s").ShouldNot(Equal(cloud.Unavailable))
	return made, err
}

// everything sets all fields of a machine that can be set together.
func everything(m *infrav1.GCPMachine) {
	key := infrav1.GCPKMSKey{Name: "projects/p/locations/l/keyRings/r/cryptoKeys/k", ServiceAccount: "kms@p.iam.gserviceaccount.com"}
	m.Image = infrav1.GCPImage{Family: gcpstub.Image, Project: "ubuntu-os-cloud"}
	m.NetworkInterfaces = []infrav1.GCPNetworkInterface{{
		Network: gcpstub.Network, Subnetwork: gcpstub.Subnet, HostProject: gcpstub.Project,
		PublicIP:   &infrav1.GCPPublicIP{NetworkTier: "STANDARD"},
		PublicIPv6: infrav1.FeatureEnabled, StackType: "IPV4_IPV6", NICType: "GVNIC", QueueCount: 4,
		AliasIPRanges: []infrav1.GCPAliasIPRange{{Range: "/24", SecondaryRange: "pods"}},
	}, {Network: "other"}}
	m.BootDisk = infrav1.GCPDisk{SizeGiB: 64, Type: "hyperdisk-balanced", IOPS: 5000, ThroughputMiBps: 200, StoragePool: "pool", KMSKey: key}
	m.Disks = []infrav1.GCPDataDisk{
		{GCPDisk: infrav1.GCPDisk{SizeGiB: 10, Type: "pd-balanced"}, DeviceName: "data"},
		{Source: infrav1.GCPImage{Snapshot: "snap"}},
	}
	m.LocalSSDs = infrav1.GCPLocalSSDs{Count: 2, Interface: "SCSI"}
	m.ServiceAccount = &infrav1.GCPServiceAccount{Email: "nodes@p.iam.gserviceaccount.com",
		Scopes: []string{"https://www.googleapis.com/auth/compute"}}
	m.NetworkTags, m.Labels = []string{"nodes"}, map[string]string{"cost-center": "4711", cloud.TagToken: "stolen"}
	m.ResourceManagerTags = map[string]string{"tagKeys/1": "tagValues/2"}
	m.Metadata = map[string]string{"serial-port-logging-enable": "true"}
	m.IPForwarding, m.ProvisioningModel, m.TerminationAction, m.MaxRunSeconds = infrav1.FeatureEnabled, "SPOT", "STOP", 3600
	m.Shielded = infrav1.GCPShielded{SecureBoot: infrav1.FeatureEnabled, VTPM: infrav1.FeatureEnabled,
		IntegrityMonitoring: infrav1.FeatureDisabled}
	m.ConfidentialType, m.MinCPUPlatform, m.NestedVirtualization, m.ThreadsPerCore, m.VisibleCores = "SEV_SNP", "AMD Milan",
		infrav1.FeatureEnabled, 1, 2
	m.Accelerators = []infrav1.GCPAccelerator{{Type: "nvidia-tesla-t4", Count: 1}}
	m.Reservation = infrav1.GCPReservation{Type: "SPECIFIC_RESERVATION", Name: "nodes"}
	m.NodeAffinities = []infrav1.GCPNodeAffinity{{Key: "compute.googleapis.com/node-group-name", Values: []string{"hosts"}}}
	m.PlacementPolicy = "spread"
}

// TestRequest: Google's document has each member of the requests, every disk has the machine's
// labels, and all is deleted with the machine.
func TestRequest(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit  func(*infrav1.GCPMachine)
		parts int // the instance and its persistent disks
	}{
		"smallest":   {nil, 2},
		"everything": {everything, 4},
		"flexible":   {func(m *infrav1.GCPMachine) { m.ProvisioningModel = "FLEX_START" }, 2},
		"snapshot": {func(m *infrav1.GCPMachine) {
			m.Image = infrav1.GCPImage{Snapshot: "s"}
			m.ServiceAccount = &infrav1.GCPServiceAccount{}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{})
			d := connect(t, stub)
			req := testRequest("m-1", test.edit)
			made, err := ensured(t, d, req)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(stub.Left(cloud.TagToken, req.Token)).To(HaveLen(test.parts))
			g.Expect(d.Delete(t.Context(), []cloud.Resource{made})).To(Equal([]error{nil}))
			g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
		})
	}
}

// TestScheduling: a machine that Google takes back is deleted by default, and never restarted.
func TestScheduling(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	no := false
	for model, want := range map[infrav1.GCPProvisioningModel]scheduling{
		"":                  {},
		"STANDARD":          {ProvisioningModel: "STANDARD"},
		"SPOT":              {ProvisioningModel: "SPOT", TerminationAction: "DELETE", AutomaticRestart: &no, OnHostMaintenance: "TERMINATE"},
		"FLEX_START":        {ProvisioningModel: "FLEX_START", TerminationAction: "DELETE", AutomaticRestart: &no},
		"RESERVATION_BOUND": {ProvisioningModel: "RESERVATION_BOUND", TerminationAction: "DELETE", AutomaticRestart: &no},
	} {
		g.Expect(*schedulingFor(&infrav1.GCPMachine{ProvisioningModel: model})).To(Equal(want), string(model))
	}
	g.Expect(schedulingFor(&infrav1.GCPMachine{MaxRunSeconds: 60}).TerminationAction).To(Equal("DELETE"))
	g.Expect(schedulingFor(&infrav1.GCPMachine{ProvisioningModel: "SPOT", TerminationAction: "STOP"}).TerminationAction).To(Equal("STOP"))
}

// TestValidation: what a CRD can't check is refused before anything is made.
func TestValidation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(*infrav1.GCPMachine)
		path string
	}{
		"everything":     {everything, ""},
		"reserved label": {func(m *infrav1.GCPMachine) { m.Labels = map[string]string{"drover-x": "y"} }, "spec.cloud.gcp.labels[drover-x]"},
		"capitals":       {func(m *infrav1.GCPMachine) { m.Labels = map[string]string{"Team": "y"} }, "spec.cloud.gcp.labels[Team]"},
		"label value":    {func(m *infrav1.GCPMachine) { m.Labels = map[string]string{"team": "a/b"} }, "spec.cloud.gcp.labels[team]"},
		"metadata":       {func(m *infrav1.GCPMachine) { m.Metadata = map[string]string{"a b": "y"} }, "spec.cloud.gcp.metadata[a b]"},
		"manager tag": {func(m *infrav1.GCPMachine) { m.ResourceManagerTags = map[string]string{"x": "y"} },
			"spec.cloud.gcp.resourceManagerTags[x]"},
		"spot restarts": {func(m *infrav1.GCPMachine) { m.ProvisioningModel, m.AutomaticRestart = "SPOT", infrav1.FeatureEnabled },
			"spec.cloud.gcp.automaticRestart"},
		"spot migrates": {func(m *infrav1.GCPMachine) { m.ProvisioningModel, m.OnHostMaintenance = "SPOT", "MIGRATE" },
			"spec.cloud.gcp.onHostMaintenance"},
	} {
		var got string
		machine := testMachine(test.edit)
		delete(machine.Cloud.GCP.Labels, cloud.TagToken)
		for _, err := range Cloud().Union.ValidateMachine(machine, field.NewPath("spec")) {
			got += err.Field
		}
		if got != test.path {
			t.Errorf("%s: %q, want %q", name, got, test.path)
		}
	}
	account := testAccount()
	account.CredentialsRef, account.Cloud.GCP.Endpoint, account.Cloud.GCP.UniverseDomain,
		account.Cloud.GCP.CABundle = infrav1.LocalReference{}, "https://compute.example", "example", "PEM"
	if errs := Cloud().Union.ValidateAccount(account, field.NewPath("spec")); len(errs) != 3 {
		t.Errorf("a custom endpoint and universe without credentials: %v", errs)
	}
}

// TestIdentity: the provider ID is as Google's cloud controller writes it, the ID is the number
// with all its digits, and the guest's name is the instance's.
func TestIdentity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := connect(t, start(t, gcpstub.Options{}))
	made, err := ensured(t, d, testRequest("m-1", func(m *infrav1.GCPMachine) { m.NetworkInterfaces[0].PublicIP = &infrav1.GCPPublicIP{} }))
	g.Expect(err).NotTo(HaveOccurred())
	want := "gce://nodes-4711/europe-west4-a/m-1"
	g.Expect(made.ProviderID).To(Equal(want))
	g.Expect(made.ID).To(Equal("europe-west4-a/9007199254740994"))
	g.Expect(made.CreatedAt).To(BeTemporally("~", time.Now(), 10*time.Minute))
	guest := strings.NewReplacer("{{ v1.availability_zone }}", "europe-west4-a", "{{ v1.local_hostname }}", "m-1")
	g.Expect(guest.Replace(Cloud().ProviderID(testAccount()))).To(Equal(want))
	g.Expect(made.Addresses).To(HaveLen(3))
	g.Expect(made.Addresses).To(ContainElement(clusterv1.MachineAddress{Type: clusterv1.MachineExternalIP, Address: "203.0.113.7"}))
	long := strings.Repeat("long-", 20) + "x7k2p"
	for name, want := range map[string]string{"m-1": "m-1", "0": "m-0-", "1a": "m-1a-", "a.b": "a-b-", long: naming.NodeName(long)} {
		g.Expect(instanceName(cloud.Request{Name: name})).To(And(HavePrefix(want), MatchRegexp(`^[a-z][-a-z0-9]{0,61}[a-z0-9]$`)))
	}
	g.Expect(instanceName(cloud.Request{Name: "0"})).NotTo(Equal(instanceName(cloud.Request{Name: "m-0"})))
}

// TestForeignName: an instance of the same name that is not this machine's is neither taken nor
// changed.
func TestForeignName(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	alive := stub.Launch(gcpstub.Zones()[0], "m-1", map[string]any{"team": "others"})
	_, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(alive()).To(BeTrue())
	g.Expect(d.List(ctx)).To(BeEmpty())
}

// TestStockout: a create that Google accepts and then has no capacity for is no instance in a
// listing, ends with NoCapacity, leaves nothing, and can be tried again, in the same zone and in
// another one.
func TestStockout(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Boot: 2 * time.Second})
	d := connect(t, stub)
	undo := stub.Exhaust(gcpstub.Zones()[0])
	req := testRequest("m-1", nil)
	_, err := d.Ensure(ctx, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	g.Expect(err.(*cloud.Error).RetryAfter).To(Equal(d.poll))
	g.Expect(d.List(ctx)).To(BeEmpty(), "it may still be refused")
	shown, err := d.Describe(ctx, []cloud.Reference{{Token: req.Token, OwnershipID: "owner"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(shown).To(ConsistOf(HaveField("State", cloud.StatePending)))
	_, err = ensured(t, d, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "%v", err)
	g.Expect(err.Error()).To(ContainSubstring("ZONE_RESOURCE_POOL_EXHAUSTED"))
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())

	other := req
	other.Attempt, other.FailureDomain = 1, gcpstub.Zones()[1]
	made, err := ensured(t, d, other)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.FailureDomain).To(Equal(gcpstub.Zones()[1]))
	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))

	undo()
	d = connect(t, stub) // a process that knows nothing of the first attempt
	_, err = ensured(t, d, req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "Google repeats the old answer once: %v", err)
	made, err = ensured(t, d, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.FailureDomain).To(Equal(gcpstub.Zones()[0]))
}

// TestDecided: an instance for which Google has found capacity is listed and returned before it
// runs.
func TestDecided(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Boot: time.Hour})
	d := connect(t, stub)
	req := testRequest("m-1", nil)
	for range 3 {
		_, err := d.Ensure(ctx, req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	}
	stub.SetStatus(gcpstub.Zones()[0], "m-1", "STAGING")
	made, err := ensured(t, d, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.State).To(Equal(cloud.StatePending))
	g.Expect(d.List(ctx)).To(ConsistOf(HaveField("ID", made.ID)))
	g.Expect(stub.Made()).To(Equal(1))
}

// TestLook: machines that are being made share one read: of themselves if they are few, otherwise
// of everything.
func TestLook(t *testing.T) {
	t.Parallel()
	for n, filter := range map[int]string{3: "drover-creation-token = ", maxTokens + 1: ownFilter} {
		g := NewWithT(t)
		stub := start(t, gcpstub.Options{Boot: time.Hour})
		var asked []string
		wire := stub.Transport()
		made, err := quick(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
			Connect: conformance.Through(roundTrip(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/aggregated/instances") {
					asked = append(asked, r.URL.Query().Get("filter"))
				}
				return wire.RoundTrip(r)
			}))})
		g.Expect(err).NotTo(HaveOccurred())
		d := made.(*driver)
		d.poll, d.replay = time.Minute, time.Minute
		for range 3 {
			for i := range n {
				_, err := d.Ensure(t.Context(), testRequest(fmt.Sprintf("m-%d", i), nil))
				g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
			}
		}
		g.Expect(asked).To(ConsistOf(ContainSubstring(filter)))
	}
}

// TestForgottenRequest: when Google has forgotten the request's ID, the name protects.
func TestForgottenRequest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	req := testRequest("m-1", nil)
	made, err := ensured(t, connect(t, stub), req)
	g.Expect(err).NotTo(HaveOccurred())
	stub.Forget()
	again, err := ensured(t, connect(t, stub), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(made.ID))
	g.Expect(stub.Made()).To(Equal(1))
}

// TestOldFailure: the failure of an operation that an earlier process began is not today's answer.
// The instance is requested again, and there is never a second one.
func TestOldFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	req := testRequest("m-1", nil)
	undo := stub.Exhaust(gcpstub.Zones()[0])
	for range 2 {
		_, err := ensured(t, connect(t, stub), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity))
	}
	undo()
	_, err := ensured(t, connect(t, stub), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NoCapacity), "the operation is as young as the driver")
	late := func() *driver {
		d := connect(t, stub)
		d.started = time.Now().Add(2 * maxSkew)
		return d
	}
	made, err := ensured(t, late(), req)
	g.Expect(err).NotTo(HaveOccurred())
	again, err := ensured(t, late(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(made.ID))
	g.Expect(stub.Made()).To(Equal(1))
}

// TestRequestID: it is a UUID that differs by token, attempt, zone and failure.
func TestRequestID(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	seen := map[string]bool{}
	for _, token := range []string{"a", "b"} {
		for attempt := range 3 {
			for _, zone := range gcpstub.Zones() {
				for failures := range 3 {
					id := requestID(cloud.Request{Token: token, Attempt: attempt}, zone, failures)
					g.Expect(id).To(MatchRegexp(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`))
					seen[id] = true
				}
			}
		}
	}
	g.Expect(seen).To(HaveLen(54))
}

// TestNameUsedAgain: the deletion of an instance does not delete another one that has its name now.
func TestNameUsedAgain(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	first, err := ensured(t, d, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Delete(ctx, []cloud.Resource{first})).To(Equal([]error{nil}))
	alive := stub.Launch(gcpstub.Zones()[0], "m-1", nil)
	g.Expect(d.Delete(ctx, []cloud.Resource{first})).To(Equal([]error{nil}))
	g.Expect(alive()).To(BeTrue())
}

// TestDeadZone: a listing without an answer of one of the region's zones is believed in nothing,
// although Google reports success. Zones of other regions do not matter.
func TestDeadZone(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{PageSize: 1})
	d := connect(t, stub)
	var refs []cloud.Reference
	for i := range 3 {
		made, err := ensured(t, d, testRequest(fmt.Sprintf("m-%d", i), nil))
		g.Expect(err).NotTo(HaveOccurred())
		refs = append(refs, cloud.Reference{Token: made.Token, OwnershipID: "owner"})
	}
	undo := stub.Kill("us-east1-b")
	g.Expect(d.List(ctx)).To(HaveLen(3))
	undo()
	defer stub.Kill(gcpstub.Zones()[1])()
	found, err := d.List(ctx)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("zones/europe-west4-b")))
	g.Expect(found).To(BeEmpty())
	found, err = d.Describe(ctx, refs)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	g.Expect(found).To(BeEmpty())
}

// TestIncomplete: which warnings in a listing mean that it is not complete.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	const kind = `{"kind":"compute#instanceAggregatedList",`
	for body, complete := range map[string]bool{
		`{}`: false,
		kind + `"items":{"zones/europe-west4-a":{"warning":{"code":"NO_RESULTS_ON_PAGE","message":"x"}}}}`: true,
		kind + `"items":{"zones/europe-west4-a":{"warning":{"code":"UNREACHABLE","message":"x"}}}}`:        false,
		kind + `"items":{"zones/us-east1-b":{"warning":{"code":"UNREACHABLE","message":"x"}}}}`:            true,
		kind + `"items":{"global":{"warning":{"code":"PARTIAL_SUCCESS","message":"x"}}}}`:                  false,
		kind + `"items":{},"unreachables":["zones/us-east1-b"],"warning":{"code":"UNREACHABLE"}}`:          true,
		kind + `"items":{},"unreachables":["projects/p/zones/europe-west4-c"]}`:                            false,
		kind + `"items":{},"unreachables":["somewhere"]}`:                                                  false,
		kind + `"items":{},"warning":{"code":"UNREACHABLE"}}`:                                              false,
		kind + `"items":{},"warning":{"code":"LIST_OVERHEAD_QUOTA_EXCEED"}}`:                               false,
		kind + `"items":{},"warning":{"code":"NO_RESULTS_ON_PAGE"}}`:                                       true,
	} {
		stub := start(t, gcpstub.Options{})
		stub.Inject(gcpstub.Fault{Operation: "GET aggregated/instances", Status: http.StatusOK, Body: body})
		if _, err := connect(t, stub).List(t.Context()); (err == nil) != complete {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestStates: what the status of an instance becomes.
func TestStates(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := connect(t, start(t, gcpstub.Options{}))
	for status, want := range map[string]cloud.State{"": cloud.StatePending, "NEW": cloud.StatePending, "STAGING": cloud.StatePending,
		"RUNNING": cloud.StateRunning, "REPAIRING": cloud.StateRunning, "STOPPING": cloud.StateStopping, "TERMINATED": cloud.StateStopped,
		"SUSPENDED": cloud.StateStopped} {
		r := d.resource(&instance{Status: status, StatusMessage: "why"})
		g.Expect(r.State).To(Equal(want), status)
		g.Expect(r.Reason != "").To(Equal(want == cloud.StateStopped), status)
	}
	r := d.resource(&instance{Status: "RUNNING", ResourceStatus: &resourceStatus{&upcomingMaintenance{WindowStartTime: "2026-12-01T00:00:00Z",
		MaintenanceStatus: "PENDING"}}})
	g.Expect(r.Notice).To(ContainSubstring("PENDING, from 2026-12-01T00:00:00Z"))
}

// TestPreempted: a spot machine that Google took back says so, in listings and in live reads: while
// it is being deleted, for a while after that, or stopped where the machine's field says so. That
// takes one call, and no call while none ends.
func TestPreempted(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{Stop: time.Hour})
	d := connect(t, stub)
	zone := gcpstub.Zones()[0]
	var refs []cloud.Reference
	var ours []cloud.Resource
	for name, action := range map[string]infrav1.GCPTerminationAction{"deleted": "", "stopped": "STOP", "ours": "", "theirs": "", "quick": "",
		"runs": ""} {
		made, err := ensured(t, d, testRequest(name, func(m *infrav1.GCPMachine) { m.ProvisioningModel, m.TerminationAction = "SPOT", action }))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(made.Interruptible).To(BeTrue())
		refs = append(refs, cloud.Reference{Token: made.Token, OwnershipID: made.OwnershipID})
		if name == "ours" {
			ours = append(ours, made)
		}
	}
	asked := func() int { return stub.Calls()["GET aggregated/operations"] }
	read := func(of func() ([]cloud.Resource, error)) map[string]string {
		all, err := of()
		g.Expect(err).NotTo(HaveOccurred())
		seen := map[string]string{}
		for _, r := range all {
			if r.Kind == cloud.KindInstance {
				seen[strings.TrimPrefix(r.Token, "token-")] = fmt.Sprintf("%s %t %s", r.State, r.Reclaim == cloud.ReclaimCertain, r.Reason)
			}
		}
		return seen
	}
	list := func() map[string]string { return read(func() ([]cloud.Resource, error) { return d.List(ctx) }) }
	describe := func() map[string]string {
		return read(func() ([]cloud.Resource, error) { return d.Describe(ctx, refs) })
	}
	g.Expect(list()).To(HaveEach("Running false "))
	g.Expect(d.Delete(ctx, ours)).To(Equal([]error{nil}))
	g.Expect(list()).To(HaveKeyWithValue("ours", "Stopping false "))
	g.Expect(asked()).To(BeZero())

	for _, name := range []string{"deleted", "stopped"} {
		stub.Preempt(zone, name)
	}
	stub.Remove("theirs")
	want := map[string]string{"deleted": "Stopping true " + preempted, "stopped": "Stopped false " + preempted,
		"ours": "Stopping false ", "quick": "Running false ", "runs": "Running false "}
	g.Expect(list()).To(Equal(want))
	g.Expect(describe()).To(Equal(want))
	g.Expect(asked()).To(Equal(1), "for all, in any number of reads")

	stub.Preempt(zone, "quick")
	for _, name := range []string{"deleted", "quick", "ours"} {
		stub.Remove(name)
	}
	delete(want, "ours")
	want["deleted"], want["quick"] = "Terminated true "+preempted, "Terminated true "+preempted
	g.Expect(list()).To(Equal(want))
	g.Expect(describe()).To(Equal(want))
	g.Expect(asked()).To(Equal(2))

	stub.Start(zone, "stopped")
	want["stopped"] = "Running false "
	g.Expect(list()).To(Equal(want))
	stub.SetStatus(zone, "stopped", "TERMINATED") // by a user; the preemption was before
	want["stopped"] = "Stopped false the instance is TERMINATED: Instance was stopped."
	g.Expect(list()).To(Equal(want))
	g.Expect(list()).To(Equal(want))
	g.Expect(asked()).To(Equal(3))
	g.Expect(d.preemptions.all).To(HaveLen(4), "theirs and ours are forgotten")
}

// TestNotFoundOfAnother: only the answer that names the instance says that it is gone. A project, a
// zone, a path or another instance that is not found does not. The project's answer is from
// https://github.com/hashicorp/terraform/issues/4031.
func TestNotFoundOfAnother(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	zone := gcpstub.Zones()[0]
	made, err := ensured(t, d, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	ref := cloud.Reference{Token: made.Token, OwnershipID: made.OwnershipID, ProviderID: made.ProviderID}
	project := "projects/" + gcpstub.Project
	for _, message := range []string{
		"The resource '" + project + "' was not found",
		"The resource '" + project + "/zones/" + zone + "' was not found",
		"The resource '" + project + "/zones/" + zone + "/instances/m-10' was not found",
		"The resource '" + project + "/zones/" + gcpstub.Zones()[1] + "/instances/m-1' was not found",
		"The resource '" + project + "/zones/" + zone + "/disks/m-1' was not found",
		"Not found.",
		"",
	} {
		undo := stub.Inject(gcpstub.Fault{Operation: "GET instances", Status: http.StatusNotFound, Reason: notFound, Message: message})
		found, err := d.Find(ctx, ref)
		g.Expect(found).To(BeNil())
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.NotFound), "%q: %v", message, err)
		undo()
	}
	g.Expect(d.Find(ctx, ref)).NotTo(BeNil())
	stub.Remove("m-1")
	g.Expect(d.Find(ctx, ref)).To(BeNil())
}

// TestPreemptionsAreBounded: an endpoint decides how many spot machines it lists, and how large
// each is. Those that are remembered have bounds, and a machine's later reads find it among them.
func TestPreemptionsAreBounded(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var p preemptions
	read := func(ids ...string) {
		var found []instance
		var all []cloud.Resource
		for _, id := range ids {
			found = append(found, instance{Scheduling: &scheduling{}})
			all = append(all, cloud.Resource{ID: id, State: cloud.StateRunning, Interruptible: true})
		}
		p.observe(found, all, nil)
	}
	var many []string
	for i := range 2 * maxSpots {
		many = append(many, fmt.Sprint("zone/", i))
	}
	read(many...)
	g.Expect(p.all).To(HaveLen(maxSpots))
	read("zone/0")
	read("zone/0", "zone/new")
	g.Expect(p.all).To(HaveLen(2), "there is room again")
	read("zone/0", strings.Repeat("x", maxSpot))
	g.Expect(p.all).To(HaveLen(1))
}

// TestPreemptionUnread: without the permission to read operations, a listing succeeds, and does not
// ask again.
func TestPreemptionUnread(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	made, err := ensured(t, d, testRequest("m-1", func(m *infrav1.GCPMachine) { m.ProvisioningModel, m.TerminationAction = "SPOT", "STOP" }))
	g.Expect(err).NotTo(HaveOccurred())
	stub.Preempt(gcpstub.Zones()[0], "m-1")
	stub.Inject(gcpstub.Fault{Operation: "GET aggregated/operations", Count: 1, Status: http.StatusServiceUnavailable, Reason: "backendError"})
	stub.Inject(gcpstub.Fault{Operation: "GET aggregated/operations", Count: 1, Status: http.StatusForbidden, Reason: "forbidden"})
	for range 3 {
		g.Expect(d.List(ctx)).To(ConsistOf(And(HaveField("ID", made.ID), HaveField("State", cloud.StateStopped),
			HaveField("Reason", ContainSubstring("TERMINATED")))))
	}
	g.Expect(stub.Calls()["GET aggregated/operations"]).To(Equal(2))
}

// TestRefusals: what Google answers, and the code and words that it becomes.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault gcpstub.Fault
		code  cloud.Code
		words string
	}{
		"quota":          {gcpstub.Fault{Status: 403, Reason: "quotaExceeded", Message: "Quota 'CPUS' exceeded."}, cloud.QuotaExceeded, "CPUS"},
		"too many":       {gcpstub.Fault{Status: 429, Reason: "new"}, cloud.Throttled, ""},
		"permission":     {gcpstub.Fault{Status: 403, Reason: "forbidden"}, cloud.Unauthorized, "docs/clouds/gcp.md"},
		"required":       {gcpstub.Fault{Status: 403, Reason: "required"}, cloud.Unauthorized, ""},
		"required field": {gcpstub.Fault{Status: 400, Reason: "required"}, cloud.Unknown, ""},
		"API is off":     {gcpstub.Fault{Status: 403, Reason: "accessNotConfigured"}, cloud.Unauthorized, ""},
		"policy":         {gcpstub.Fault{Status: 412, Reason: "conditionNotMet"}, cloud.Unauthorized, "organization policy"},
		"zone has no type": {gcpstub.Fault{Status: 400, Reason: "invalid", Message: "Machine type with name 'x' does not exist in zone 'y'."},
			cloud.NoCapacity, ""},
		"invalid":   {gcpstub.Fault{Status: 400, Reason: "invalid"}, cloud.InvalidSpec, ""},
		"not ready": {gcpstub.Fault{Status: 400, Reason: "resourceNotReady"}, cloud.Unavailable, ""},
		"any 403":   {gcpstub.Fault{Status: 403, Reason: "new"}, cloud.Unauthorized, ""},
		"any 5xx":   {gcpstub.Fault{Status: 502, Reason: "new"}, cloud.Unavailable, ""},
		"any other": {gcpstub.Fault{Status: 418, Reason: "new"}, cloud.Unknown, ""},
		"several": {gcpstub.Fault{Status: 403,
			Body: `{"error":{"message":"x","errors":[{"reason":"new"},{"reason":"quotaExceeded","message":"which"}]}}`}, cloud.QuotaExceeded,
			"which"},
		"newer form": {gcpstub.Fault{Status: 403, Body: `{"error":{"message":"denied","status":"PERMISSION_DENIED"}}`}, cloud.Unauthorized,
			"denied"},
		"operation": {gcpstub.Fault{Status: 200, Body: `{"name":"o","targetId":"1","status":"DONE","httpErrorStatusCode":403,"error":{"errors":[{"code":"QUOTA_EXCEEDED","message":"Quota 'SSD_TOTAL_GB'"}]}}`},
			cloud.QuotaExceeded, "SSD_TOTAL_GB"},
		"operation, any": {gcpstub.Fault{Status: 200,
			Body: `{"name":"o","targetId":"1","status":"DONE","httpErrorStatusCode":503,"error":{"errors":[{"code":"NEW"}]}}`}, cloud.Unavailable,
			"NEW"},
		"operation, bare": {gcpstub.Fault{Status: 200, Body: `{"name":"o","targetId":"1","status":"DONE","httpErrorStatusCode":403}`},
			cloud.Unauthorized, "403"},
		"no operation": {gcpstub.Fault{Status: 200, Body: `{"kind":"compute#instance","name":"m-1","status":"RUNNING"}`}, cloud.Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{})
			test.fault.Operation = "POST instances"
			stub.Inject(test.fault)
			_, err := connect(t, stub).Ensure(t.Context(), testRequest("m-1", nil))
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(err.Error()).To(ContainSubstring(test.words))
			g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
		})
	}
}

// TestNextMinute: Google's quotas are full again when the minute begins, by Google's clock.
func TestNextMinute(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for date, want := range map[string]time.Duration{"Mon, 02 Jan 2006 15:04:05 GMT": 55 * time.Second,
		"Mon, 02 Jan 2006 15:04:59 GMT": time.Second, "Mon, 02 Jan 2006 15:04:00 GMT": time.Minute} {
		g.Expect(untilNextMinute(http.Header{"Date": {date}})).To(Equal(want), date)
	}
	g.Expect(untilNextMinute(http.Header{})).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
}

// TestThrottled: a create that comes too soon is to wait for the next minute, and then is like any
// other.
func TestThrottled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	stub.Inject(gcpstub.Fault{Operation: "POST instances", Count: 1, Status: http.StatusForbidden, Reason: "rateLimitExceeded"})
	_, err := d.Ensure(t.Context(), testRequest("m-1", nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Throttled))
	g.Expect(err.(*cloud.Error).RetryAfter).To(And(BeNumerically(">", 0), BeNumerically("<=", time.Minute)))
	_, err = ensured(t, d, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stub.Calls()["POST instances"]).To(Equal(2))
}

// TestNoAbsence: only Google's word that an instance does not exist is absence.
func TestNoAbsence(t *testing.T) {
	t.Parallel()
	for body, status := range map[string]int{
		`{}`: 404, `{"error":{"errors":[{"reason":"forbidden"}]}}`: 404, `{"error":{"message":"x"}}`: 404, `{"id":""}`: 200,
		`{"id":"1","name":"m-1","zone":"https://x/zones/europe-west4-b"}`: 200,
	} {
		g := NewWithT(t)
		stub := start(t, gcpstub.Options{})
		d := connect(t, stub)
		made, err := ensured(t, d, testRequest("m-1", nil))
		g.Expect(err).NotTo(HaveOccurred())
		stub.Inject(gcpstub.Fault{Operation: "GET instances", Status: status, Body: body})
		_, err = d.get(t.Context(), gcpstub.Zones()[0], "m-1")
		g.Expect(err).To(HaveOccurred(), body)
		_, err = d.Ensure(t.Context(), testRequest("m-1", nil))
		g.Expect(cloud.CodeOf(err)).To(BeElementOf(cloud.Unknown, cloud.Unavailable, cloud.Unauthorized), "%v", err)
		if status == http.StatusNotFound {
			stub.Inject(gcpstub.Fault{Operation: "DELETE instances", Status: status, Body: body})
			g.Expect(d.Delete(t.Context(), []cloud.Resource{made})[0]).To(HaveOccurred(), body)
		}
	}
}

// TestUserData: text stays as it is, and everything else is encoded, up to Google's limit.
func TestUserData(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for text, encoded := range map[string]bool{"#cloud-config\n\tä": false, "\x00": true, "\xff\xfe": true, "": false} {
		_, encoding := encodeUserData([]byte(text))
		g.Expect(encoding == "base64").To(Equal(encoded), "%q", text)
	}
	check := Cloud().CheckUserData
	g.Expect(check(bytes.Repeat([]byte("a"), 256<<10))).To(Succeed())
	g.Expect(check(bytes.Repeat([]byte("a"), 256<<10+1))).NotTo(Succeed())
	g.Expect(check(bytes.Repeat([]byte{0}, 192<<10))).To(Succeed())
	g.Expect(check(bytes.Repeat([]byte{0}, 192<<10+1))).NotTo(Succeed())
}

// TestConsole: the end of the output is shown.
func TestConsole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	made, err := ensured(t, d, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	text, err := d.Console(ctx, made)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).To(HaveSuffix("cloud-init: ready\n"))
	g.Expect(text).To(HaveLen(64 << 10))
	undo := stub.Inject(gcpstub.Fault{Operation: "GET instances/serialPort", Status: 400, Reason: "resourceNotReady"})
	g.Expect(d.Console(ctx, made)).To(BeEmpty())
	undo()
	stub.Inject(gcpstub.Fault{Operation: "GET instances/serialPort", Status: 200, Body: `{"contents":"x"}`})
	_, err = d.Console(ctx, made)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown))
}

// TestOffering: what the catalog says of a machine type, in the first zone that has it.
func TestOffering(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	offering, err := d.Offering(ctx, testMachine(func(m *infrav1.GCPMachine) {
		m.MachineType, m.BootDisk = "a2-highgpu-1g", infrav1.GCPDisk{SizeGiB: 100}
		m.Accelerators = []infrav1.GCPAccelerator{{Type: "nvidia-tesla-t4", Count: 2}}
	}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offering.Capacity["nvidia.com/gpu"]).To(HaveField("Value()", int64(3)))
	g.Expect(offering.Capacity.Memory().Value()).To(Equal(int64(85 << 30)))
	g.Expect(offering.Capacity.StorageEphemeral().Value()).To(Equal(int64(100 << 30)))
	g.Expect(offering.Architecture).To(Equal("amd64"))
	for kind, want := range map[string]string{"t2a-standard-1": "arm64", "n2-rare-4": "amd64"} {
		offering, err = d.Offering(ctx, testMachine(func(m *infrav1.GCPMachine) { m.MachineType = kind }))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(offering.Architecture).To(Equal(want))
	}
	for range 3 {
		_, err = d.Offering(ctx, testMachine(func(m *infrav1.GCPMachine) { m.MachineType = "n2-rare-4" }))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(stub.Calls()["GET machineTypes"]).To(Equal(4))
}

// TestProbe: the place is what Google answers, and nothing else is one.
func TestProbe(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	info, err := d.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(info).To(Equal(cloud.Info{Place: "gcp:googleapis.com:nodes-4711:europe-west4", FailureDomains: gcpstub.Zones()}))
	d.account.Region = "europe-west9"
	_, err = d.Probe(ctx)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec), "%v", err)
	for _, body := range []string{`{}`, `{"name":"europe-west4","selfLink":"https://x/projects/others-4711/regions/europe-west4"}`} {
		stub := start(t, gcpstub.Options{})
		stub.Inject(gcpstub.Fault{Operation: "GET regions", Status: 200, Body: body})
		_, err = connect(t, stub).Probe(ctx)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), body)
	}
}

// TestCalls counts the calls of a fleet: one for each machine and its deletion, and a few for all
// together.
func TestCalls(t *testing.T) {
	t.Parallel()
	const n = 300
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, gcpstub.Options{})
	d := connect(t, stub)
	calls := func() (sum int) {
		for _, n := range stub.Calls() {
			sum += n
		}
		return sum
	}
	d.poll, d.replay = time.Minute, time.Minute
	requests := make([]cloud.Request, n)
	for i := range n {
		requests[i] = testRequest(fmt.Sprintf("m-%03d", i), nil)
	}
	undo := stub.Inject(gcpstub.Fault{Operation: "POST instances", Status: 200, After: true,
		Body: `{"name":"o","targetId":"1","status":"RUNNING"}`})
	for _, req := range requests {
		_, err := d.Ensure(ctx, req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	}
	undo()
	var made []cloud.Resource
	var refs []cloud.Reference
	for _, req := range requests {
		r, err := d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		made, refs = append(made, r), append(refs, cloud.Reference{Token: r.Token, OwnershipID: "owner"})
	}
	g.Expect(calls()).To(BeNumerically("<=", n+5), "%v", stub.Calls())
	before := calls()
	for range 10 {
		g.Expect(d.List(ctx)).To(HaveLen(n))
	}
	g.Expect(calls()-before).To(BeNumerically("<=", 12), "%v", stub.Calls())
	before = calls()
	for batch := range slices.Chunk(made, maxDelete) {
		for _, err := range d.Delete(ctx, batch) {
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(d.Describe(ctx, refs)).To(BeEmpty())
	g.Expect(calls()-before).To(BeNumerically("<=", n*105/100), "%v", stub.Calls())
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}
