// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vmware/govmomi/vim25/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/driverkit"
)

// own turns all VMs of the simulator into machines, and returns their references.
func (v *vcsim) own() []cloud.Reference {
	var refs []cloud.Reference
	for i, m := range v.vms() {
		token := fmt.Sprintf("m-%d", i)
		v.Context.WithLock(m, func() {
			m.Config.InstanceUuid = identityOf(token)
			m.Config.ExtraConfig = append(m.Config.ExtraConfig,
				&types.OptionValue{Key: cloud.TagToken, Value: token}, &types.OptionValue{Key: cloud.TagOwnership, Value: "blue"})
		})
		refs = append(refs, cloud.Reference{Token: token, OwnershipID: "blue"})
	}
	return refs
}

// recorded is own for machines whose provider IDs are recorded.
func (v *vcsim) recorded() []cloud.Reference {
	refs := v.own()
	for i := range refs {
		refs[i].ProviderID = providerID(identityOf(refs[i].Token))
	}
	return refs
}

// TestPages: more machines than one answer holds are read completely or not at all.
func TestPages(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 210)
	refs := v.own()
	d := v.driver(t)
	d.page = 50
	g.Expect(d.Probe(t.Context())).To(HaveField("FailureDomains", []string{"rack-a", "rack-b"}))
	var found []cloud.Resource
	var err error
	calls := v.counted(func() { found, err = d.List(t.Context()) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(210))
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 2, "ContinueRetrievePropertiesEx": 8}),
		"five pages to find them, five to read them")

	calls = v.counted(func() { found, err = d.Describe(t.Context(), refs[:maxBatch]) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(maxBatch))
	g.Expect(calls).To(Equal(map[string]int{"RetrievePropertiesEx": 1}), "many are where the listing found them")
	calls = v.counted(func() { found, err = v.driver(t).Describe(t.Context(), refs[:maxBatch]) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(maxBatch))
	g.Expect(calls["RetrievePropertiesEx"]).To(Equal(2), "without a listing, by one look at all")
	g.Expect(calls).NotTo(HaveKey("FindAllByUuid"))
	calls = v.counted(func() { found, err = d.Describe(t.Context(), refs[:2]) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(HaveLen(2))
	g.Expect(calls).To(Equal(map[string]int{"FindAllByUuid": 2, "RetrievePropertiesEx": 1}), "few by the index")

	for _, spoilt := range []int{0, 4, 5, 9} { // the first and the last page of each read
		n := 0
		v.spoil(func(operation string, send func() (*http.Response, error)) (*http.Response, error) {
			if n++; n == spoilt+1 {
				return nil, http.ErrHandlerTimeout
			}
			return send()
		})
		found, err = d.List(t.Context())
		g.Expect(cloud.CodeOf(err)).To(BeElementOf(cloud.Unavailable, cloud.Unknown), "page %d", spoilt+1)
		g.Expect(found).To(BeEmpty())
	}
}

// TestUnreadable: a VM that vCenter can't read is found by the index of UUIDs, and is not taken for
// absent.
func TestUnreadable(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 6)
	refs := v.own()
	d := v.driver(t)
	g.Expect(vm{indexed: refs[0]}.identity()).To(Equal(identityOf("m-0")), "what the index named is the machine")
	g.Expect(vm{}.identity()).To(BeEmpty())
	// vcsim's index depends on the configuration and finds nothing then. vCenter's index does not.
	m := v.with(cloud.TagToken, "m-3")[0]
	v.Context.WithLock(m, func() { m.Config.InstanceUuid, m.Config.Uuid = "", "" })
	calls := v.counted(func() {
		found, err := d.Describe(t.Context(), refs)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(5))
	})
	g.Expect(calls["FindAllByUuid"]).To(Equal(2), "the index is asked for the one that could not be read, by both of its UUIDs")
}

// TestUntagged: a recorded VM whose options were taken off or changed is a Conflict, and not gone,
// in a read of one machine and of many. The others are read.
func TestUntagged(t *testing.T) {
	for name, test := range map[string]struct {
		token, owner string
		imported     bool
	}{
		"no options":                     {},
		"no ownership ID":                {token: "m-3"},
		"another cluster":                {token: "m-3", owner: "red"},
		"another token":                  {token: "m-9", owner: "blue"},
		"another token of the same VM":   {token: "again-", owner: "blue", imported: true},
		"another cluster's import of it": {token: "m-3-", owner: "red", imported: true},
	} {
		for _, listed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, listed), func(t *testing.T) {
				g := NewWithT(t)
				v := start(t, 6)
				refs := v.recorded()
				m := v.with(cloud.TagToken, "m-3")[0]
				i := slices.IndexFunc(refs, func(ref cloud.Reference) bool { return ref.Token == "m-3" })
				tag := func(token, owner string) {
					v.Context.WithLock(m, func() {
						m.Config.ExtraConfig = nil
						if token != "" {
							m.Config.ExtraConfig = append(m.Config.ExtraConfig, &types.OptionValue{Key: cloud.TagToken, Value: token},
								&types.OptionValue{Key: cloud.TagOwnership, Value: owner})
						}
					})
				}
				if test.imported {
					m.Config.InstanceUuid = "52bfc0ee-0000-0000-0000-000000000000"
					refs[i].Token, refs[i].ProviderID = "m-3-"+m.Config.Uuid, providerID(m.Config.Uuid)
					test.token += m.Config.Uuid
					tag(refs[i].Token, "blue")
				}
				a, d := v.connected(t), v.driver(t)
				if listed {
					g.Expect(d.List(t.Context())).To(HaveLen(6))
				}
				g.Expect(d.Describe(t.Context(), refs)).To(HaveLen(6))

				tag(test.token, test.owner)
				for range 2 {
					_, err := d.Describe(t.Context(), refs)
					g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "many: %v", err)
					_, err = d.Describe(t.Context(), refs[i:i+1])
					g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "one: %v", err)
					g.Expect(err).To(MatchError(And(ContainSubstring(m.Self.Value),
						ContainSubstring(cloud.TagToken+"="+refs[i].Token), ContainSubstring(cloud.TagOwnership+"=blue"))))
				}
				found, failed := a.Read(t.Context(), refs)
				g.Expect(found).To(HaveLen(5))
				g.Expect(failed).To(HaveLen(1))
				g.Expect(cloud.CodeOf(failed[refs[i].Token])).To(Equal(cloud.Conflict))
				unrecorded := cloud.Reference{Token: refs[i].Token, OwnershipID: "blue"}
				_, err := v.driver(t).Describe(t.Context(), []cloud.Reference{unrecorded})
				g.Expect(err).NotTo(HaveOccurred(), "a machine that never had a VM is not stopped by another's")

				tag(refs[i].Token, "blue")
				g.Expect(d.Describe(t.Context(), refs)).To(HaveLen(6))
				g.Expect(d.Describe(t.Context(), refs[i:i+1])).To(HaveLen(1))
			})
		}
	}
}

// TestUntaggedCopy: a VM that has a machine's UUID, but not its options, does not hold up a machine
// whose own VM is found, nor one whose clone still runs.
func TestUntaggedCopy(t *testing.T) {
	g := NewWithT(t)
	v := start(t, 7)
	refs := v.recorded()
	copied := v.with(cloud.TagToken, "m-6")[0]
	v.Context.WithLock(copied, func() {
		copied.Config.ExtraConfig, copied.Config.InstanceUuid = nil, identityOf("m-3")
		copied.Config.Uuid = copied.Config.InstanceUuid
	})
	refs = slices.DeleteFunc(refs, func(ref cloud.Reference) bool { return ref.Token == "m-6" })
	g.Expect(v.driver(t).Describe(t.Context(), refs)).To(HaveLen(6))
	g.Expect(v.driver(t).Describe(t.Context(), []cloud.Reference{referenceOf("m-3")})).To(HaveLen(1))
	g.Expect(v.driver(t).Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: identityOf("m-3"), Token: "m-3",
		OwnershipID: "blue"}})).To(ConsistOf(BeNil()))
	g.Expect(copied.Runtime.PowerState).To(Equal(types.VirtualMachinePowerStatePoweredOn))

	d, req := v.driver(t), request("slow")
	release := v.hold(t)
	defer release()
	_, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	v.Context.WithLock(copied, func() { copied.Config.InstanceUuid = identityOf("slow") }) // its own, incomplete
	g.Expect(d.Describe(t.Context(), []cloud.Reference{referenceOf("slow")})).To(ConsistOf(HaveField("State", cloud.StatePending)))
	_, err = v.driver(t).Describe(t.Context(), []cloud.Reference{referenceOf("slow")})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "a new manager waits for the clone: %v", err)
}

// TestAddresses: the VM's own adapters count. Addresses of pods and link-local ones do not.
func TestAddresses(t *testing.T) {
	g := NewWithT(t)
	m := vm{properties: map[string]types.AnyType{
		"guest.hostName":   "kubernetes.default",
		option(optionHost): types.OptionValue{Key: optionHost, Value: "node-1"},
		"guest.net": types.ArrayOfGuestNicInfo{GuestNicInfo: []types.GuestNicInfo{
			{DeviceConfigId: 4000, IpAddress: []string{"192.0.2.10", "2001:db8::10", "fe80::1", "169.254.1.1", "hostile"}},
			{DeviceConfigId: -1, IpAddress: []string{"10.244.0.1"}},
		}},
	}}
	g.Expect(m.resource("id", choice{}).GuestReported).To(Equal([]string{"192.0.2.10", "2001:db8::10"}), "the name is Drover's own")
	g.Expect(m.addresses(choice{})).To(Equal([]clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalIP, Address: "192.0.2.10"},
		{Type: clusterv1.MachineInternalIP, Address: "2001:db8::10"},
		{Type: clusterv1.MachineInternalDNS, Address: "node-1"},
	}))

	nics := m.properties["guest.net"].(types.ArrayOfGuestNicInfo).GuestNicInfo
	m.properties["guest.net"] = types.ArrayOfGuestNicInfo{GuestNicInfo: append(nics, types.GuestNicInfo{
		DeviceConfigId: 4001, Network: "nodes", IpAddress: []string{"198.51.100.10", "198.51.100.100"},
	})}
	chosen, err := newChoice(&infrav1.VSphereNodeAddresses{Network: "nodes", Exclude: []string{"2001:db8::/32", "198.51.100.100/32"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(m.addresses(chosen)).To(Equal([]clusterv1.MachineAddress{
		{Type: clusterv1.MachineInternalIP, Address: "198.51.100.10"},
		{Type: clusterv1.MachineInternalIP, Address: "192.0.2.10"},
		{Type: clusterv1.MachineInternalDNS, Address: "node-1"},
	}), "the network's first, and none of those that move")
	_, err = newChoice(&infrav1.VSphereNodeAddresses{Exclude: []string{"all"}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.InvalidSpec))
}

func TestFaults(t *testing.T) {
	g := NewWithT(t)
	v := &vcenter{redactor: driverkit.NewRedactor(password, username)}
	for code, faults := range map[cloud.Code][]types.BaseMethodFault{
		cloud.Unauthorized: {&types.InvalidLogin{}, &types.NotAuthenticated{}, &types.NoPermission{}, &types.PasswordExpired{}},
		cloud.NoCapacity: {&types.InsufficientResourcesFault{}, &types.InsufficientMemoryResourcesFault{}, &types.NoDiskSpace{},
			&types.NoCompatibleHost{}},
		cloud.QuotaExceeded: {&types.NotEnoughLicenses{}, &types.LicenseRestricted{}},
		cloud.Conflict:      {&types.DuplicateName{}, &types.FileAlreadyExists{}},
		cloud.NotFound:      {&types.ManagedObjectNotFound{}, &types.FileNotFound{}},
		cloud.InvalidSpec: {&types.InvalidArgument{}, &types.InvalidVmConfig{}, &types.InvalidDeviceSpec{}, &types.DatacenterMismatch{},
			&types.InvalidName{}, &types.InvalidDatastore{}, &types.NotSupported{}},
		cloud.Unavailable: {&types.TaskInProgress{}, &types.ConcurrentAccess{}, &types.HostNotConnected{}, &types.HostNotReachable{},
			&types.InvalidHostState{},
			&types.InvalidPowerState{}, &types.Timedout{}, &types.RequestCanceled{}, &types.InaccessibleDatastore{}, &types.FileLocked{}},
		cloud.Unknown: {&types.SystemErrorFault{}, &types.MethodNotFound{}},
	} {
		for _, f := range faults {
			g.Expect(v.faultError("CloneVM_Task", f, "").Code).To(Equal(code), "%T", f)
		}
	}
	e := v.faultError("CloneVM_Task", &types.InvalidArgument{InvalidProperty: "spec.location"}, "user "+username+" may not, with "+password)
	g.Expect(e.Message).To(Equal("CloneVM_Task: InvalidArgument (spec.location): user [credential] may not, with [credential]"))
	g.Expect(v.faultError("CloneVM_Task", nil, "").Code).To(Equal(cloud.Unknown))
}

// TestFaultErrorKeepsLittle: an error may be remembered, so it keeps a large fault's type alone.
func TestFaultErrorKeepsLittle(t *testing.T) {
	g := NewWithT(t)
	v := &vcenter{redactor: driverkit.NewRedactor()}
	e := v.faultError("CloneVM_Task", &types.InvalidName{Name: strings.Repeat("x", 1<<20)}, "")
	g.Expect(driverkit.SizeOf(e)).To(BeNumerically("<", 4<<10))
	g.Expect(isFault[*types.InvalidName](e)).To(BeTrue())
	ref := types.ManagedObjectReference{Type: "VirtualMachine", Value: "vm-1"}
	missing, ok := missingOf(v.faultError("RetrievePropertiesEx", &types.ManagedObjectNotFound{Obj: ref}, ""))
	g.Expect(ok).To(BeTrue())
	g.Expect(missing).To(Equal(ref))
}

// TestForeignAnswer: the body of an answer that is not vCenter's is not read.
func TestForeignAnswer(t *testing.T) {
	g := NewWithT(t)
	v := start(t)
	for name, test := range map[string]struct {
		status int
		header http.Header
		code   cloud.Code
		after  time.Duration
	}{
		"throttled": {status: 429, header: http.Header{"Retry-After": {"7"}}, code: cloud.Throttled, after: 7 * time.Second},
		"for long": {status: 503, header: http.Header{"Retry-After": {"99999999999999999999"}}, code: cloud.Unavailable,
			after: 24 * time.Hour},
		"out of order": {status: 503, header: http.Header{"Retry-After": {"never"}}, code: cloud.Unavailable},
		"a proxy":      {status: 407, code: cloud.Unknown},
		"forbidden":    {status: 403, code: cloud.Unauthorized},
	} {
		v.spoil(func(_ string, send func() (*http.Response, error)) (*http.Response, error) {
			resp, err := send()
			if err == nil {
				err = resp.Body.Close()
				resp.StatusCode, resp.Header, resp.Body = test.status, test.header, io.NopCloser(endless{})
			}
			return resp, err
		})
		_, err := v.driver(t).Probe(t.Context())
		g.Expect(cloud.CodeOf(err)).To(Equal(test.code), name)
		g.Expect(err).To(HaveField("RetryAfter", test.after), name)
	}
}

// endless is an endless stream of spaces.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestTrust: the driver refuses a server whose certificate the bundle does not verify, or whose
// thumbprint differs. The right thumbprint suffices, whatever the bundle says. Verified to fail
// without the comparison, and when the bundle was checked as well.
func TestTrust(t *testing.T) {
	g := NewWithT(t)
	v, other := start(t), start(t)
	account := v.account.DeepCopy()
	account.Cloud.VSphere.Server = other.account.Cloud.VSphere.Server
	ask := func() error {
		config, err := trust(account.Cloud.VSphere)
		if err != nil {
			return err
		}
		transport, err := cloud.Connect(&http.Transport{}, config)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(transport.(*http.Transport).CloseIdleConnections)
		d, err := newDriver(cloud.Config{Account: account, Credentials: credentials(), Connect: conformance.Through(transport)})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = d.Probe(t.Context())
		return err
	}
	g.Expect(ask()).To(Succeed(), "both simulators have httptest's certificate")
	block, _ := pem.Decode([]byte(account.Cloud.VSphere.CABundle))
	account.Cloud.VSphere.CABundle = strangersCA
	err := ask()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable))
	g.Expect(err).To(MatchError(ContainSubstring("certificate signed by unknown authority")))

	right := sha256.Sum256(block.Bytes)
	account.Cloud.VSphere.Thumbprint = hex.EncodeToString(right[:])
	g.Expect(ask()).To(Succeed(), "the thumbprint suffices")
	account.Cloud.VSphere.Thumbprint = strings.ReplaceAll(fmt.Sprintf("% X", right), " ", ":")
	g.Expect(ask()).To(Succeed(), "as openssl prints it")
	account.Cloud.VSphere.CABundle, right[31] = v.account.Cloud.VSphere.CABundle, right[31]^1
	account.Cloud.VSphere.Thumbprint = hex.EncodeToString(right[:])
	err = ask()
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "a bundle that vouches for it does not help")
	g.Expect(err).To(MatchError(ContainSubstring("which differs from spec.cloud.vsphere.thumbprint")))
	old := sha1.Sum(block.Bytes)
	account.Cloud.VSphere.Thumbprint = hex.EncodeToString(old[:])
	g.Expect(cloud.CodeOf(ask())).To(Equal(cloud.InvalidSpec), "SHA-1")
}

// strangersCA is an authority that signed no certificate in these tests.
const strangersCA = `-----BEGIN CERTIFICATE-----
MIIBgDCCASWgAwIBAgIUOOMkl26rdMKT1bhIT6zb2oq1B1IwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJc3RyYW5nZXJzMCAXDTI2MTEyMTE5NTgwN1oYDzIxMjYxMDI4
MTk1ODA3WjAUMRIwEAYDVQQDDAlzdHJhbmdlcnMwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARhG9YeJuTAHpQZxKMtvXo30ryOKd9gejd0eqLuTCtwQqhDlTA7BP5b
6PPV0KEOsPFwkvsYS+6H/HagB+1P+tHOo1MwUTAdBgNVHQ4EFgQUYHZ6GRb67+5n
/WBltEegQgy6qHkwHwYDVR0jBBgwFoAUYHZ6GRb67+5n/WBltEegQgy6qHkwDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAgfXUZncjmfT7kgMnJSPA
dYDHPjRIbZgY+6tLJ9PuAVkCIQDILxd37tEtII9NlA3MBYKoNyZoWM8GNkqP00Z/
LgG0AA==
-----END CERTIFICATE-----
`
