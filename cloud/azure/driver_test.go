// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/internal/naming"
)

func connect(t testing.TB, stub *armstub.Cloud) *driver {
	t.Helper()
	made, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
		Connect: conformance.Through(stub.Transport())})
	if err != nil {
		t.Fatal(err)
	}
	return made.(*driver)
}

func testRequest(name string, edit func(*infrav1.AzureMachine)) cloud.Request {
	return cloud.Request{Token: "token-" + name, OwnershipID: "owner", Namespace: "team", Name: name, UserData: []byte("#cloud-config\n"),
		Spec: testMachine(edit)}
}

// TestRequest: Microsoft's models have each member of the requests, and every part is deleted with
// the machine and has its tags.
func TestRequest(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*infrav1.AzureMachine){
		"smallest":   nil,
		"everything": armstub.Everything,
		"others": func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{Marketplace: &infrav1.AzureMarketplaceImage{Publisher: armstub.Paid, Offer: armstub.Paid, SKU: armstub.Paid,
				Plan: infrav1.AzurePlanRequired}}
			m.AvailabilitySetID = "/subscriptions/s/set"
			m.OSDisk = &infrav1.AzureOSDisk{Ephemeral: &infrav1.AzureEphemeralDisk{Placement: "ResourceDisk"}}
		},
		"host":  func(m *infrav1.AzureMachine) { m.HostID = "/subscriptions/s/host" },
		"group": func(m *infrav1.AzureMachine) { m.HostGroupID = "/subscriptions/s/hosts" },
		"gallery": func(m *infrav1.AzureMachine) {
			m.Image = infrav1.AzureImage{CommunityGalleryImageID: "/CommunityGalleries/nodes-4711/Images/ubuntu/Versions/1.0.0"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, armstub.Options{})
			stub.AcceptTerms(true)
			d := connect(t, stub)
			req := testRequest("m-1", edit)
			req.FailureDomain = "2"
			made, err := d.Ensure(t.Context(), req)
			g.Expect(err).NotTo(HaveOccurred())
			wantZone := "2"
			if req.Spec.Cloud.Azure.AvailabilitySetID != "" {
				wantZone = ""
			}
			g.Expect(made.FailureDomain).To(Equal(wantZone))
			g.Expect(made.Interruptible).To(Equal(req.Spec.Cloud.Azure.Spot != nil))
			parts := 1 + len(req.Spec.Cloud.Azure.NetworkInterfaces) + 1 + len(req.Spec.Cloud.Azure.DataDisks)
			for _, nic := range req.Spec.Cloud.Azure.NetworkInterfaces {
				if nic.PublicIP != nil {
					parts++
				}
			}
			g.Expect(stub.Left(cloud.TagToken, req.Token)).To(HaveLen(parts))
			g.Expect(d.Delete(t.Context(), []cloud.Resource{made})).To(Equal([]error{nil}))
			g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
		})
	}
}

// TestValidation: what a CRD can't check is refused before anything is made.
func TestValidation(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit func(*infrav1.AzureMachine)
		path string
	}{
		"everything":   {edit: armstub.Everything},
		"reserved tag": {func(m *infrav1.AzureMachine) { m.Tags = map[string]string{"Drover-x": "y"} }, "spec.cloud.azure.tags[Drover-x]"},
		"invalid tag":  {func(m *infrav1.AzureMachine) { m.Tags = map[string]string{"a/b": "y"} }, "spec.cloud.azure.tags[a/b]"},
		"ultra": {func(m *infrav1.AzureMachine) {
			m.DataDisks = []infrav1.AzureDataDisk{{Type: "UltraSSD_LRS", SizeGiB: 4}}
		}, "spec.cloud.azure.ultraSSD"},
		"confidential": {func(m *infrav1.AzureMachine) {
			m.OSDisk = &infrav1.AzureOSDisk{SecurityEncryptionType: "VMGuestStateOnly"}
		}, "spec.cloud.azure.osDisk.securityEncryptionType"},
		"no diagnostics": {func(m *infrav1.AzureMachine) {
			m.BootDiagnostics, m.BootDiagnosticsStorageURI = infrav1.FeatureDisabled, "https://x"
		}, "spec.cloud.azure.bootDiagnosticsStorageURI"},
	} {
		var got string
		machine := testMachine(test.edit)
		delete(machine.Cloud.Azure.Tags, cloud.TagToken)
		for _, err := range Cloud().Union.ValidateMachine(machine, field.NewPath("spec")) {
			got += err.Field
		}
		if got != test.path {
			t.Errorf("%s: %q, want %q", name, got, test.path)
		}
	}
	account := testAccount()
	account.CredentialsRef = infrav1.LocalReference{}
	if errs := Cloud().Union.ValidateAccount(account, field.NewPath("spec")); len(errs) != 1 || errs[0].Field != "spec.cloud.azure.custom" {
		t.Errorf("a custom endpoint without credentials: %v", errs)
	}
}

// TestProviderID: it is as Azure's cloud controller writes it, whatever case Azure answers in.
func TestProviderID(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	d := connect(t, start(t, armstub.Options{}))
	made, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	want := "azure:///subscriptions/" + armstub.Subscription + "/resourceGroups/nodes/providers/Microsoft.Compute/virtualMachines/m-1"
	g.Expect(made.ProviderID).To(Equal(want))
	g.Expect(strings.Replace(Cloud().ProviderID(testAccount()), "{{ ds.meta_data.imds.compute.name }}", "m-1", 1)).To(Equal(want))
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(HaveField("ProviderID", want)))
	g.Expect(all[0].Addresses).To(Equal([]clusterv1.MachineAddress{{Type: clusterv1.MachineHostName, Address: "m-1"},
		{Type: clusterv1.MachineInternalIP, Address: "10.0.0.5"}}))
}

// TestName: a machine has the name that its Node will have, even if that is long or has dots.
func TestName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"m-1", "blue.md-0.x7k2p", strings.Repeat("long-", 20) + "x7k2p"} {
		g := NewWithT(t)
		d := connect(t, start(t, armstub.Options{}))
		made, err := d.Ensure(t.Context(), testRequest(name, nil))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(lastPart(made.ID)).To(Equal(naming.NodeName(name)))
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: made.Token, OwnershipID: made.OwnershipID, ProviderID: made.ProviderID}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(1))
	}
}

// TestNameUsedAgain: a second machine of a name does not have the addresses of the first one, nor
// its power.
func TestNameUsedAgain(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := &driver{account: testAccount().Cloud.Azure}
	first, second := time.Now().Add(-time.Minute), time.Now()
	r := d.instance(&virtualMachine{Name: "m-1", Properties: machineProperties{TimeCreated: &first}}, nil)
	nic := dependant{Properties: dependantProperties{VirtualMachine: &reference{r.ID}}}
	d.addresses.learn(d, []dependant{nic}, nil)
	g.Expect(d.addresses.get(&r)).To(HaveLen(1))
	r.CreatedAt = second
	g.Expect(d.addresses.get(&r)).To(BeEmpty())
	d.addresses.learn(d, []dependant{nic}, nil)
	g.Expect(d.addresses.get(&r)).To(HaveLen(1), "the second's")
	for i := range 100 {
		d.addresses.get(&cloud.Resource{ID: fmt.Sprint("unknown-", i)})
	}
	g.Expect(d.addresses.created).To(HaveLen(1), "what has no addresses is not remembered")
	view := &instanceView{Statuses: []status{{Code: "PowerState/deallocated"}}}
	p := powers{at: first.Add(time.Second), views: map[string]*instanceView{r.ID: view}}
	g.Expect(p.get(r.ID, &first)).To(Equal(view))
	g.Expect(p.get(r.ID, &second)).To(BeNil())
	for code, want := range map[string]bool{"PowerState/starting": false, "PowerState/running": false, "ProvisioningState/stopped": false,
		"PowerState/deallocating": true} {
		g.Expect((&instanceView{Statuses: []status{{Code: code}}}).isStopped()).To(Equal(want), code)
	}
}

// TestForeignName: a machine of the same name that is not this machine's is neither taken nor
// changed.
func TestForeignName(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	alive := stub.Launch("m-1", map[string]any{"team": "others"})
	_, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
	g.Expect(alive()).To(BeTrue())
	all, err := d.List(ctx)
	g.Expect(all, err).To(BeEmpty())
}

// TestExistingIsNotTaken: an answer with 200 says that the machine existed, and was changed.
func TestExistingIsNotTaken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Status: http.StatusOK,
		Body: `{"name":"m-1","location":"westeurope","properties":{},"tags":{}}`})
	_, err := connect(t, stub).Ensure(t.Context(), testRequest("m-1", nil))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "%v", err)
}

// TestAcceptedAndFailed: a machine that Azure accepted and then had no capacity for says so, in a
// listing too, and its parts go with it.
func TestAcceptedAndFailed(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{Boot: 50 * time.Millisecond, Keep: true})
	d := connect(t, stub)
	defer stub.Exhaust("2")()
	req := testRequest("m-1", nil)
	req.FailureDomain = "2"
	made, err := d.Ensure(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.State).To(Equal(cloud.StatePending))
	g.Eventually(func() cloud.State {
		made, err = d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		return made.State
	}).Should(Equal(cloud.StateFailed))
	g.Expect(made.Code).To(Equal(cloud.NoCapacity))
	g.Expect(made.Reason).To(HavePrefix("ZonalAllocationFailed: "))
	before := stub.Calls()["GET virtualMachines/instanceView"]
	for range 3 {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(ConsistOf(And(HaveField("State", cloud.StateFailed), HaveField("Code", cloud.NoCapacity))))
	}
	g.Expect(stub.Calls()["GET virtualMachines/instanceView"]-before).To(Equal(1), "the reason does not change")
	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))
	left, err := d.Describe(ctx, []cloud.Reference{{Token: req.Token, OwnershipID: "owner", ProviderID: made.ProviderID}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(ConsistOf(HaveField("Kind", cloud.KindNIC), HaveField("Kind", cloud.KindDisk)))
	g.Expect(d.Delete(ctx, left)).To(Equal([]error{nil, nil}))
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}

// TestFailedUpdate: a machine that runs for long and whose update failed is not replaced.
func TestFailedUpdate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	d := &driver{account: testAccount().Cloud.Azure}
	long, recent := time.Now().Add(-time.Hour), time.Now()
	view := &instanceView{Statuses: []status{{Code: "ProvisioningState/failed/VMExtensionError"}, {Code: "PowerState/running"}}}
	for at, want := range map[*time.Time]cloud.State{&long: cloud.StateRunning, &recent: cloud.StateFailed, nil: cloud.StateRunning} {
		vm := &virtualMachine{Name: "m-1", Properties: machineProperties{ProvisioningState: stateFailed, TimeCreated: at}}
		r := d.instance(vm, view)
		g.Expect(r.State).To(Equal(want))
		if want == cloud.StateRunning {
			g.Expect(r.Notice).To(ContainSubstring("VMExtensionError"))
		}
	}
	created := &virtualMachine{Name: "m-1", Properties: machineProperties{ProvisioningState: stateUpdating, TimeCreated: &recent}}
	g.Expect(d.instance(created, nil).State).To(Equal(cloud.StateRunning))
	created.Properties.ProvisioningState = stateFailed
	g.Expect(d.instance(created, view).State).To(Equal(cloud.StateRunning), "it was created before, so the update failed")
	again := recent.Add(time.Second)
	created.Properties.TimeCreated = &again
	g.Expect(d.instance(created, view).State).To(Equal(cloud.StateFailed), "another machine of the name")
}

// TestStates: the provisioning state is that of the last operation. A machine runs while a disk is
// attached to it or an extension is installed, unless Azure says that it is stopped.
func TestStates(t *testing.T) {
	t.Parallel()
	power := func(state string) *instanceView {
		return &instanceView{Statuses: []status{{Code: "PowerState/" + state}}}
	}
	for _, test := range []struct {
		provisioning string
		view         *instanceView
		want         cloud.State
	}{
		{"", nil, cloud.StatePending},
		{"New", nil, cloud.StatePending},
		{"Creating", nil, cloud.StatePending},
		{"Creating", power("starting"), cloud.StatePending},
		{"Creating", power("running"), cloud.StateRunning},
		{"Succeeded", nil, cloud.StateRunning},
		{"Updating", nil, cloud.StateRunning},
		{"Updating", power("running"), cloud.StateRunning},
		{"Updating", power("starting"), cloud.StatePending},
		{"Updating", power("deallocated"), cloud.StateStopped},
		{"Migrating", nil, cloud.StateRunning},
		{"Deleting", power("running"), cloud.StateStopping},
	} {
		d := &driver{account: testAccount().Cloud.Azure}
		got := d.instance(&virtualMachine{Properties: machineProperties{ProvisioningState: test.provisioning}}, test.view)
		NewWithT(t).Expect(got.State).To(Equal(test.want), "%+v", test)
	}
}

// TestStopped: a listing shows what was stopped, although Azure says that only in a listing of the
// subscription.
func TestStopped(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	_, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	stub.SetPower("m-1", "deallocated")
	stub.Inject(armstub.Fault{Operation: "GET allVirtualMachines", Code: "AuthorizationFailed", Status: http.StatusForbidden})
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(HaveField("State", cloud.StateRunning)), "without the permission, power is not known")
	stub = start(t, armstub.Options{})
	d = connect(t, stub)
	_, err = d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	stub.SetPower("m-1", "deallocated")
	all, err = d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(ConsistOf(And(HaveField("State", cloud.StateStopped), HaveField("Reason", ContainSubstring("deallocated")))))
}

// TestRefusals: what Azure answers, and the code and words that it becomes.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault armstub.Fault
		code  cloud.Code
		words string
		after time.Duration
	}{
		"seconds": {armstub.Fault{Status: 429, Code: "TooManyRequests", Header: map[string]string{"Retry-After": "17"}}, cloud.Throttled,
			"TooManyRequests", 17 * time.Second},
		"a date": {armstub.Fault{Status: 429, Code: "SubscriptionRequestsThrottled",
			Header: map[string]string{"Retry-After": "Mon, 02 Jan 2006 15:04:05 GMT"}}, cloud.Throttled, "", 0},
		"another holds": {armstub.Fault{Status: 429, Code: "RetryableErrorDueToAnotherOperation"}, cloud.Unavailable, "", 0},
		"quota": {armstub.Fault{Status: 409, Code: "OperationNotAllowed", Message: "exceeding approved standardDSv5Family Cores quota"},
			cloud.QuotaExceeded, "quota", 0},
		"nested three deep": {armstub.Fault{Status: 409,
			Body: `{"error":{"code":"DeploymentFailed","message":"At least one","details":[{"code":"Conflict","message":"x","details":[
			{"code":"ResourceOperationFailure","message":"y","details":[{"code":"SkuNotAvailable","message":"no such size here"}]}]}]}}`},
			cloud.NoCapacity, "no such size here", 0},
		"policy":    {armstub.Fault{Status: 403, Code: "RequestDisallowedByPolicy"}, cloud.Unauthorized, "", 0},
		"subnet":    {armstub.Fault{Status: 403, Code: "LinkedAuthorizationFailed"}, cloud.Unauthorized, "on the subnet", 0},
		"terms":     {armstub.Fault{Status: 400, Code: "ResourcePurchaseValidationFailed"}, cloud.Conflict, "az vm image terms accept", 0},
		"any 403":   {armstub.Fault{Status: 403, Code: "New"}, cloud.Unauthorized, "", 0},
		"any 5xx":   {armstub.Fault{Status: 503, Code: "New"}, cloud.Unavailable, "", 0},
		"any other": {armstub.Fault{Status: 400, Code: "New"}, cloud.Unknown, "", 0},
		"disk taken": {armstub.Fault{Status: 409, Code: "ConflictingUserInput", Message: "Disk m-1 already exists"}, cloud.Conflict,
			"already exists", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, armstub.Options{})
			test.fault.Operation = "PUT virtualMachines"
			stub.Inject(test.fault)
			_, err := connect(t, stub).Ensure(t.Context(), testRequest("m-1", nil))
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			g.Expect(err.Error()).To(ContainSubstring(test.words))
			g.Expect(err.(*cloud.Error).RetryAfter).To(Equal(test.after))
			g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
		})
	}
}

// TestNextLink: the token is sent to no other host, whatever the link to the next page says.
func TestNextLink(t *testing.T) {
	t.Parallel()
	for link, allowed := range map[string]bool{
		"https://elsewhere.test/next": false, "http://management.azure.test/next": false, "https://management.azure.test:8443/next": false,
		"https://management.azure.test@elsewhere.test/next": false, "https://user@management.azure.test/next": false, "/next": false,
		"https://management.azure.test:443/next?x=%2F": true, "https://MANAGEMENT.azure.test/next?x=%2F": true,
	} {
		d := &driver{endpoint: armstub.Endpoint}
		path, err := d.relative(link)
		if (err == nil) != allowed || allowed && path != "/next?x=%2F" {
			t.Errorf("%s: %q, %v", link, path, err)
		}
	}
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	stub.Inject(armstub.Fault{Operation: "GET virtualMachines", Status: 200, Body: `{"value":[],"nextLink":"https://elsewhere.test/next"}`})
	_, err := connect(t, stub).List(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), "%v", err)
}

// TestNoAbsence: only Azure's word that a machine does not exist is absence.
func TestNoAbsence(t *testing.T) {
	t.Parallel()
	for body, status := range map[string]int{
		`{"error":{"code":"ResourceGroupNotFound","message":"x"}}`: 404, `{"error":{"code":"SubscriptionNotFound","message":"x"}}`: 404,
		`{"error":{"code":"AuthorizationFailed","message":"x"}}`: 403, `{}`: 200, `{"value":null}`: 200,
	} {
		g := NewWithT(t)
		stub := start(t, armstub.Options{})
		d := connect(t, stub)
		made, err := d.Ensure(t.Context(), testRequest("m-1", nil))
		g.Expect(err).NotTo(HaveOccurred())
		stub.Inject(armstub.Fault{Operation: "GET virtualMachines", Status: status, Body: body})
		_, err = d.Describe(t.Context(), []cloud.Reference{{Token: made.Token, OwnershipID: "owner", ProviderID: made.ProviderID}})
		g.Expect(err).To(HaveOccurred(), body)
		_, err = d.List(t.Context())
		g.Expect(err).To(HaveOccurred(), body)
		_, err = d.get(t.Context(), "m-1")
		g.Expect(err).To(HaveOccurred(), body)
	}
}

// TestRevokedToken: a token that Azure no longer takes is replaced by the next call.
func TestRevokedToken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	_, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	stub.Revoke()
	_, err = d.Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%v", err)
	_, err = d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
}

// TestConsole: the output is read from the cloud's own storage only, without the token, and no
// error holds the link, which is a secret.
func TestConsole(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	made, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred())
	text, err := d.Console(ctx, made)
	g.Expect(string(text), err).To(Equal("cloud-init: ready\n"))
	for _, link := range []string{"https://blob.elsewhere.test/x", "http://diagnostics.blob.azure.test/x", "https://azure.test/x", "://"} {
		undo := stub.Inject(armstub.Fault{Operation: "POST virtualMachines/retrieveBootDiagnosticsData", Status: 200,
			Body: fmt.Sprintf(`{"serialConsoleLogBlobUri":%q}`, link+"?"+armstub.SAS)})
		_, err = d.Console(ctx, made)
		undo()
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unknown), link)
		g.Expect(err.Error()).NotTo(ContainSubstring(armstub.SAS))
	}
}

// TestOffering: what the catalog says of a size, and the zones that have it.
func TestOffering(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{})
	d := connect(t, stub)
	gpus := testMachine(func(m *infrav1.AzureMachine) { m.VMSize = "standard_nc4as_t4_v3" })
	offering, err := d.Offering(ctx, gpus)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offering.Capacity["nvidia.com/gpu"]).To(HaveField("Value()", int64(1)))
	g.Expect(offering.Capacity.Memory().Value()).To(Equal(int64(28 << 30)))
	g.Expect(offering.Architecture).To(Equal("amd64"))
	offering, err = d.Offering(ctx, testMachine(func(m *infrav1.AzureMachine) { m.VMSize = "Standard_D2ps_v5" }))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(offering.Architecture).To(Equal("arm64"))
	zones, err := d.FailureDomains(ctx, gpus)
	g.Expect(zones, err).To(Equal([]string{"1"}))
	zones, err = d.FailureDomains(ctx, testMachine(nil))
	g.Expect(zones, err).To(Equal([]string{"1", "2", "3"}), "the subscription may not use zone 4")
	g.Expect(stub.Calls()["GET skus"]).To(Equal(1))
}

// TestCalls counts the calls of a fleet: one for each machine and its deletion, and a few for all
// together.
func TestCalls(t *testing.T) {
	t.Parallel()
	const n = 300
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{PageSize: n})
	d := connect(t, stub)
	began := time.Now()
	// calls returns the calls so far, without those for caches that end because the run is slow.
	calls := func() (sum int) {
		for _, n := range stub.Calls() {
			sum += n
		}
		return sum - 4*int(time.Since(began)/powerTTL)
	}
	var made []cloud.Resource
	var refs []cloud.Reference
	for i := range n {
		r, err := d.Ensure(ctx, testRequest(fmt.Sprintf("m-%03d", i), nil))
		g.Expect(err).NotTo(HaveOccurred())
		made, refs = append(made, r), append(refs, cloud.Reference{Token: r.Token, OwnershipID: "owner", ProviderID: r.ProviderID})
		if i%30 == 29 { // one listing each 5 seconds at 5 creates a second
			_, err := d.List(ctx)
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(calls()).To(BeNumerically("<=", n*11/10), "%v", stub.Calls())
	before := calls()
	for range 10 {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(n))
	}
	g.Expect(calls()-before).To(BeNumerically("<=", 10), "%v", stub.Calls())
	before = calls()
	for i := 0; i < n; i += maxDelete {
		for _, err := range d.Delete(ctx, made[i:i+maxDelete]) {
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	found, err := d.Describe(ctx, refs)
	g.Expect(found, err).To(BeEmpty())
	g.Expect(calls()-before).To(BeNumerically("<=", n*105/100), "%v", stub.Calls())
	g.Expect(stub.Left(cloud.TagOwnership, "owner")).To(BeEmpty())
}
