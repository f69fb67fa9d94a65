// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/internal/test/authority"
)

// sdk returns Microsoft's own client of the stub, with the driver's request bodies.
func sdk(t *testing.T, stub *armstub.Cloud) (*driver, *armcompute.VirtualMachinesClient) {
	t.Helper()
	d := connect(t, stub)
	credential, err := d.source.get()
	if err != nil {
		t.Fatal(err)
	}
	options := &arm.ClientOptions{DisableRPRegistration: true, ClientOptions: azcore.ClientOptions{
		APIVersion: machinesVersion, Cloud: placeOf(d.account).config, Transport: d.api.Client,
		Retry: policy.RetryOptions{MaxRetries: -1},
	}}
	client, err := armcompute.NewVirtualMachinesClient(armstub.Subscription, credential, options)
	if err != nil {
		t.Fatal(err)
	}
	return d, client
}

// TestContract: Microsoft's client for Go understands the stub: it follows its operations and its
// pages, and knows its errors. What the client reads is what the driver reads.
func TestContract(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := start(t, armstub.Options{Boot: 50 * time.Millisecond, Stop: 50 * time.Millisecond, PageSize: 2})
	d, client := sdk(t, stub)
	model := func(req cloud.Request) (vm armcompute.VirtualMachine) {
		text, err := json.Marshal(d.machine(req, req.Spec.Cloud.Azure))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(json.Unmarshal(text, &vm)).To(Succeed())
		return vm
	}
	once := &armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions{IfNoneMatch: new("*")}
	poll := &runtime.PollUntilDoneOptions{Frequency: time.Second} // the SDK's least

	poller, err := client.BeginCreateOrUpdate(ctx, armstub.Group, "m-1", model(testRequest("m-1", nil)), once)
	g.Expect(err).NotTo(HaveOccurred())
	done, err := poller.PollUntilDone(ctx, poll)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(*done.Properties.ProvisioningState).To(Equal("Succeeded"))

	_, err = client.BeginCreateOrUpdate(ctx, armstub.Group, "m-1", model(testRequest("m-1", nil)), once)
	g.Expect(statusOf(err)).To(Equal(http.StatusPreconditionFailed))
	made, err := d.Ensure(ctx, testRequest("m-1", nil))
	g.Expect(err).NotTo(HaveOccurred(), "the driver takes what the client made")
	g.Expect(made.State).To(Equal(cloud.StateRunning))

	defer stub.Exhaust("2")()
	nowhere := testRequest("m-2", nil)
	nowhere.FailureDomain = "2"
	poller, err = client.BeginCreateOrUpdate(ctx, armstub.Group, "m-2", model(nowhere), once)
	g.Expect(err).NotTo(HaveOccurred(), "it was accepted")
	_, err = poller.PollUntilDone(ctx, poll)
	var response *azcore.ResponseError
	g.Expect(errors.As(err, &response)).To(BeTrue())
	g.Expect(response.ErrorCode).To(Equal("ZonalAllocationFailed"))

	view, err := client.Get(ctx, armstub.Group, "m-2",
		&armcompute.VirtualMachinesClientGetOptions{Expand: new(armcompute.InstanceViewTypesInstanceView)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(*view.Properties.InstanceView.Statuses[0].Code).To(Equal("ProvisioningState/failed/ZonalAllocationFailed"))

	for _, name := range []string{"m-3", "m-4", "m-5"} {
		_, err := d.Ensure(ctx, testRequest(name, nil))
		g.Expect(err).NotTo(HaveOccurred())
	}
	pages, names := 0, []string{}
	for pager := client.NewListPager(armstub.Group, nil); pager.More(); pages++ {
		page, err := pager.NextPage(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		for _, vm := range page.Value {
			names = append(names, *vm.Name)
			g.Expect(*vm.Tags[cloud.TagToken]).To(Equal("token-" + *vm.Name))
			g.Expect(vm.Properties.OSProfile.CustomData).To(BeNil())
		}
	}
	g.Expect(pages).To(Equal(3))
	g.Expect(names).To(Equal([]string{"m-1", "m-2", "m-3", "m-4", "m-5"}))

	deletion, err := client.BeginDelete(ctx, armstub.Group, "m-1", nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = deletion.PollUntilDone(ctx, poll)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = client.Get(ctx, armstub.Group, "m-1", nil)
	g.Expect(statusOf(err)).To(Equal(http.StatusNotFound))
	found, err := d.Describe(ctx, []cloud.Reference{{Token: made.Token, OwnershipID: "owner", ProviderID: made.ProviderID}})
	g.Expect(found, err).To(BeEmpty())
}

// statusOf returns the HTTP status of the SDK's error.
func statusOf(err error) int {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}

// TestJudge: the judge of bodies finds a member that Microsoft's models do not have, wherever it
// is, and one of another type.
func TestJudge(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"location":"x","properties":{"storageProfile":{"osDisk":{"createOption":"FromImage","deleteOptions":"Delete"}}}}`:           "osDisk.deleteOptions is unknown",
		`{"properties":{"networkProfile":{"networkInterfaceConfigurations":[{"name":"n","properties":{"primary":true,"tagz":{}}}]}}}`: "[0].properties.tagz is unknown",
		`{"location":7}`:                    "virtualMachine: ",
		`{"location":"x","tags":{"a":"b"}}`: "",
	} {
		got := strings.Join(armstub.Judge("virtualMachine", []byte(body)), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// TestCredentials: each kind of Secret obtains a token by what it holds, and a Secret that lacks
// something never leads to the manager's own identity.
func TestCredentials(t *testing.T) {
	t.Parallel()
	certificate, judge := testCertificate(t)
	for name, test := range map[string]struct {
		change func(map[string][]byte)
		code   cloud.Code
	}{
		"a client secret": {},
		"a federated token": {change: func(s map[string][]byte) {
			delete(s, keyClientSecret)
			s[keyFederatedToken] = []byte("marked-federated")
		}},
		"a certificate": {change: func(s map[string][]byte) { delete(s, keyClientSecret); s[keyCertificate] = certificate }},
		"a Secret of machine-controller-manager": {change: func(s map[string][]byte) {
			clear(s)
			s["azureTenantId"], s["azureClientId"], s["azureClientSecret"] = []byte(testTenant), []byte(testClient), []byte(testSecret)
			s["azureSubscriptionId"], s["userData"] = []byte(armstub.Other), []byte("#cloud-config\n")
		}},
		"another token": {change: func(s map[string][]byte) { delete(s, keyClientSecret); s[keyFederatedToken] = []byte("marked-other") },
			code: cloud.Unauthorized},
		"no certificate": {change: func(s map[string][]byte) { delete(s, keyClientSecret); s[keyCertificate] = []byte("x") },
			code: cloud.Unauthorized},
		"nothing": {change: func(s map[string][]byte) { clear(s) }, code: cloud.Unauthorized},
		"two of them": {change: func(s map[string][]byte) { s[keyFederatedToken] = []byte("marked-federated") },
			code: cloud.Unauthorized},
		"a tenant of another": {change: func(s map[string][]byte) { s[keyTenantID] = []byte("other") }, code: cloud.Unauthorized},
		"a path as tenant":    {change: func(s map[string][]byte) { s[keyTenantID] = []byte("../x") }, code: cloud.Unauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, armstub.Options{Assertions: func(a string) bool { return a == "marked-federated" || judge(a) }})
			secret := testCredentials()
			if test.change != nil {
				test.change(secret)
			}
			d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: secret, Connect: conformance.Through(stub.Transport())})
			if err == nil {
				_, err = d.Probe(t.Context())
			}
			g.Expect(cloud.CodeOf(err)).To(Equal(test.code), "%v", err)
			if err != nil {
				g.Expect(err.Error()).NotTo(ContainSubstring("marked"))
			}
		})
	}
}

// TestHugeKeyIsRefused: no number in a Secret's key keeps the manager computing.
func TestHugeKeyIsRefused(t *testing.T) {
	t.Parallel()
	certificate, _ := testCertificate(t)
	for name, key := range authority.HugeKeys(t) {
		secret := testCredentials()
		delete(secret, keyClientSecret)
		secret[keyCertificate] = append(key, certificate...)
		_, _, err := newCredential(testAccount().Cloud.Azure, secret, nil)
		NewWithT(t).Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized), "%s: %v", name, err)
	}
}

// TestPFXIsRefused: nothing is decrypted or computed for it, with a password or without.
func TestPFXIsRefused(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	secret := testCredentials()
	delete(secret, keyClientSecret)
	secret[keyCertificate], secret["clientCertificatePassword"] = []byte("0\x82\x09\x41\x02\x01\x03"), []byte("marked")
	_, _, err := newCredential(testAccount().Cloud.Azure, secret, nil)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	g.Expect(err).To(MatchError(ContainSubstring("is not PEM")))
}

// TestTokenErrors: what the token service answers is typed, and no secret of it is shown.
func TestTokenErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := start(t, armstub.Options{})
	secret := testCredentials()
	secret[keyClientSecret] = []byte("marked-and-wrong")
	d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: secret, Connect: conformance.Through(stub.Transport())})
	g.Expect(err).NotTo(HaveOccurred())
	for range 3 {
		_, err = d.List(t.Context())
		g.Expect(err).To(MatchError("Unauthorized: GetToken: invalid_client: AADSTS7000215: Invalid client secret provided: [credential]."))
	}
	g.Expect(stub.Calls()["POST token"]).To(Equal(1), "refused credentials are not tried again at once")
	for status, want := range map[int]cloud.Code{302: cloud.Unknown, 200: cloud.Unknown, 429: cloud.Throttled, 503: cloud.Unavailable,
		0: cloud.Unavailable} {
		stub := start(t, armstub.Options{})
		through := func(req *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(req.URL.Path, "/token") {
				return stub.Transport().RoundTrip(req)
			}
			if status == 0 {
				return nil, errors.New("marked: no route")
			}
			return foreignResponse(req, status, "<html>Welcome to the hotel</html>"), nil
		}
		d, err := newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(),
			Connect: conformance.Through(roundTrip(through))})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.List(t.Context())
		g.Expect(cloud.CodeOf(err)).To(Equal(want), "%d: %v", status, err)
		g.Expect(err.Error()).NotTo(ContainSubstring("hotel"))
	}
	queued := roundTrip(func(*http.Request) (*http.Response, error) { return nil, &cloud.Queued{After: time.Minute} })
	d, err = newDriver(cloud.Config{Account: testAccount(), Credentials: testCredentials(), Connect: conformance.Through(queued)})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.List(t.Context())
	var late *cloud.Queued
	g.Expect(errors.As(err, &late)).To(BeTrue(), "%v", err)
}

// TestAmbient: the manager's own credentials are used only if there is no Secret, and never for a
// custom endpoint.
func TestAmbient(t *testing.T) {
	var asked []string
	record := roundTrip(func(req *http.Request) (*http.Response, error) {
		asked = append(asked, req.URL.Host)
		return foreignResponse(req, http.StatusBadRequest, `{"error":"invalid_request"}`), nil
	})
	try := func(spec *infrav1.DroverAccountSpec, secret map[string][]byte) error {
		d, err := newDriver(cloud.Config{Account: spec, Credentials: secret, Connect: conformance.Through(record)})
		if err == nil {
			_, err = d.Probe(context.Background())
		}
		return err
	}
	g := NewWithT(t)
	public := testAccount()
	public.Cloud.Azure.Custom = infrav1.AzureCustomCloud{}
	g.Expect(cloud.CodeOf(try(testAccount(), nil))).To(Equal(cloud.InvalidSpec))
	g.Expect(cloud.CodeOf(try(public, map[string][]byte{}))).To(Equal(cloud.Unauthorized))
	g.Expect(asked).To(BeEmpty())
	g.Expect(try(public, nil)).NotTo(Succeed())
	g.Expect(asked).To(ContainElement("169.254.169.254"), "a managed identity")

	file := t.TempDir() + "/token"
	writeFile(t, file, "federated")
	t.Setenv("AZURE_FEDERATED_TOKEN_FILE", file)
	t.Setenv("AZURE_TENANT_ID", testTenant)
	t.Setenv("AZURE_CLIENT_ID", testClient)
	asked = nil
	g.Expect(try(public, nil)).NotTo(Succeed())
	g.Expect(asked).To(HaveEach("login.microsoftonline.com"), "a workload identity")
}
