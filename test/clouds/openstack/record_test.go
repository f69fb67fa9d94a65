// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"flag"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	driver "github.com/drover-io/drover/cloud/openstack"
)

// record writes the answers that cloud/openstack's own tests play back:
//
//	go test -C test ./clouds/openstack -run TestRecord -record ../../../cloud/openstack/testdata
var record = flag.String("record", "", "write the answers to this folder")

// recorder keeps the last answer to each operation.
type recorder struct {
	mu      sync.Mutex
	answers map[string][]byte
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	dump, err := httputil.DumpResponse(resp, true)
	op := cloud.OperationOf(req.Context()).Name
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[op] = dump
	return resp, err
}

var (
	secrets = regexp.MustCompile(`(?i)(X-Subject-Token: |"adminPass": ")[^"\r]+`)
	changes = regexp.MustCompile(`(?m)^(Date|Content-Length|Connection|Transfer-Encoding): .*\r\n`)
)

// TestRecord triggers the answers that the driver handles, and checks that the driver maps each to
// the right code.
func TestRecord(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	owner := newOwner(t, who)
	r := &recorder{answers: map[string][]byte{}}
	as := func(credentials map[string][]byte) cloud.Driver {
		d, err := driver.Cloud().New(cloud.Config{Account: account(who.project), Credentials: credentials, Connect: conformance.Through(r)})
		g.Expect(err).NotTo(HaveOccurred())
		return d
	}
	keep := func(op, name string) {
		g.Expect(r.answers).To(HaveKey(op))
		text := secrets.ReplaceAll(changes.ReplaceAll(r.answers[op], nil), []byte("${1}recorded"))
		if *record != "" {
			g.Expect(os.WriteFile(filepath.Join(*record, name+".http"), text, 0o644)).To(Succeed())
		}
	}
	d := as(password(who.name, who.name))
	ensure := func(token string, change func(*infrav1.OpenStackMachine), code cloud.Code) {
		_, err := d.Ensure(t.Context(), request(owner, token, machine(change)))
		g.Expect(cloud.CodeOf(err)).To(Equal(code), "%v", err)
	}
	describe := func(token string, state cloud.State, reason string) (found []cloud.Resource) {
		until(t, "it is "+string(state), func() bool {
			var err error
			found, err = d.Describe(t.Context(), []cloud.Reference{{Token: token}})
			g.Expect(err).NotTo(HaveOccurred())
			return len(found) > 0 && found[0].State == state && strings.Contains(found[0].Reason, reason)
		})
		return found
	}

	_, err := d.Probe(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	keep("CreateToken", "token")
	keep("ListAvailabilityZones", "zones")

	ensure("recorded-token-0001", nil, "")
	for op, name := range map[string]string{"ListServers": "servers-none", "ListFlavors": "flavors", "ListImages": "images",
		"ListNetworks": "networks", "CreateServer": "server-made"} {
		keep(op, name)
	}
	running := describe("recorded-token-0001", cloud.StateRunning, "")
	keep("ListServers", "servers")
	text, err := d.(cloud.Console).Console(t.Context(), running[0])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(text)).To(HaveSuffix("LAST LINE")) // the console output of Nova's fake hypervisor
	keep("GetConsoleOutput", "console")

	ensure("recorded-token-0002", func(m *infrav1.OpenStackMachine) { withPorts(m); m.Flavor = "huge" }, "")
	keep("ListPorts", "ports-none")
	keep("CreatePorts", "ports-made")
	keep("ListSecurityGroups", "groups")
	describe("recorded-token-0002", cloud.StateFailed, "No valid host")
	keep("ListServers", "server-failed")
	keep("GetServer", "server-fault")
	keep("ListPorts", "ports")

	ensure("recorded-token-0005", withFloatingIP, "")
	keep("CreateFloatingIP", "floating-ip-made")
	_, err = d.Describe(t.Context(), []cloud.Reference{{Token: "recorded-token-0005"}})
	g.Expect(err).NotTo(HaveOccurred())
	keep("ListFloatingIPs", "floating-ips")
	keep("ListPorts", "ports-floating")

	setVolumeQuota(t, admin, who, 0)
	ensure("recorded-token-0007", withAll, cloud.QuotaExceeded)
	keep("CreateVolume", "volume-over-quota")
	setVolumeQuota(t, admin, who, 1000)
	_, err = d.Ensure(t.Context(), request(owner, "recorded-token-0006", machine(withAll)))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err) // waits for the volumes
	keep("CreateTrunk", "trunk-made")
	keep("CreateVolume", "volume-made")
	ensureMade(t, d, request(owner, "recorded-token-0006", machine(withAll)))
	keep("ListPorts", "ports-trunk")
	keep("ListVolumes", "volumes")

	undo := setQuota(t, admin, who.project, "instances", 0)
	ensure("recorded-token-0003", nil, cloud.QuotaExceeded)
	keep("CreateServer", "server-over-quota")
	undo()
	admin.do(admin.network, http.MethodPut, "quotas/"+who.project, map[string]any{"quota": map[string]any{"port": 0}}, nil)
	ensure("recorded-token-0003", withPorts, cloud.QuotaExceeded)
	keep("CreatePorts", "ports-over-quota")
	admin.do(admin.network, http.MethodDelete, "quotas/"+who.project, nil, nil)
	ensure("recorded-token-0004", func(m *infrav1.OpenStackMachine) { m.Ports[0].Network = unknownID }, cloud.NotFound)
	keep("CreateServer", "server-refused")
	ensure("recorded-token-0004", func(m *infrav1.OpenStackMachine) { m.Image = infrav1.OpenStackImage{ID: unknownID} }, cloud.InvalidSpec)
	keep("GetImage", "image-unknown")

	g.Expect(d.Delete(t.Context(), []cloud.Resource{{Kind: cloud.KindInstance, ID: unknownID}, {Kind: cloud.KindNIC, ID: unknownID},
		{Kind: cloud.KindAddress, ID: unknownID},
		{Kind: cloud.KindNIC, ID: "trunk/" + unknownID}, {Kind: cloud.KindDisk, ID: unknownID}})).To(HaveEach(BeNil()))
	keep("DeleteFloatingIP", "floating-ip-gone")
	keep("DeleteServer", "server-gone")
	keep("DeletePort", "port-gone")
	keep("DeleteTrunk", "trunk-gone")
	keep("DeleteVolume", "volume-gone")

	_, err = as(password(who.name, "wrong")).Probe(t.Context())
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unauthorized))
	keep("CreateToken", "login-refused")
	asked, err := http.NewRequestWithContext(cloud.WithOperation(t.Context(), "Refused", cloud.ClassRead), http.MethodGet,
		who.compute.Endpoint+"servers", nil)
	g.Expect(err).NotTo(HaveOccurred())
	asked.Header.Set("X-Auth-Token", "revoked")
	refused, err := r.RoundTrip(asked)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(refused.Body.Close()).To(Succeed())
	g.Expect(refused.StatusCode).To(Equal(http.StatusUnauthorized))
	keep("Refused", "token-refused")
}
