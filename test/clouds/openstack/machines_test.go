// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	driver "github.com/drover-io/drover/cloud/openstack"
)

func newToken() string { return strings.ToLower(rand.Text()) }

// newOwner returns an ownership ID. After the test, it deletes all machines with this ID and checks
// that nothing is left.
func newOwner(t testing.TB, who *tenant) string {
	owner := "test-" + newToken()[:16]
	t.Cleanup(func() {
		d := connect(t, who, http.DefaultTransport)
		// A server that is deleted before Nova has found a host for it disappears from listings,
		// reappears in BUILD, and then disappears by itself.
		until(t, "nothing is left of "+owner, func() bool { return deleteAll(t, d, owner) == 0 && len(who.left(owner)) == 0 })
	})
	return owner
}

// deleteAll performs one step of the deletion of everything with the ownership ID, servers first,
// and returns how many resources it found.
func deleteAll(t testing.TB, d cloud.Driver, owner string) int {
	ctx := withoutEnd(t)
	found, err := d.List(ctx)
	if err != nil {
		t.Log(err)
		return 1
	}
	found = slices.DeleteFunc(found, func(r cloud.Resource) bool { return r.OwnershipID != owner })
	servers := slices.DeleteFunc(slices.Clone(found), func(r cloud.Resource) bool { return r.Kind != cloud.KindInstance })
	now := found
	if len(servers) > 0 {
		now = slices.DeleteFunc(servers, func(r cloud.Resource) bool { return r.State == cloud.StateStopping })
	}
	if err := errors.Join(d.Delete(ctx, now)...); err != nil {
		t.Log(err)
	}
	return len(found)
}

// withPorts sets two ports for the machine, with all fields of a port.
func withPorts(m *infrav1.OpenStackMachine) {
	m.Ports = []infrav1.OpenStackPort{
		{Network: "nodes", SecurityGroups: []string{"default"}, AllowedAddressPairs: []infrav1.OpenStackAddressPair{{IPAddress: "10.244.0.0/16"}},
			VNICType: "normal", Tags: []string{"team-a"}},
		{Network: "storage", PortSecurity: infrav1.FeatureDisabled},
	}
}

// withFloatingIP is withPorts with a floating IP for the first port.
func withFloatingIP(m *infrav1.OpenStackMachine) {
	withPorts(m)
	m.Ports[0].FloatingNetwork = "public"
}

// withAll sets all resources that Drover creates for a machine: ports, a floating IP, a trunk and
// volumes.
func withAll(m *infrav1.OpenStackMachine) {
	withFloatingIP(m)
	m.Ports[1].Trunk = infrav1.FeatureEnabled
	m.AvailabilityZone = "az-1"
	m.RootVolume = infrav1.OpenStackVolume{SizeGiB: 3, Type: "fast", InMachineZone: infrav1.FeatureEnabled}
	m.Volumes = []infrav1.OpenStackVolume{{SizeGiB: 2}, {SizeGiB: 1, AvailabilityZone: "nova"}}
}

// ensureMade calls Ensure until the volumes of the machine are available.
func ensureMade(t testing.TB, d cloud.Driver, req cloud.Request) (made cloud.Resource) {
	t.Helper()
	until(t, "it is made", func() bool {
		var err error
		made, err = d.Ensure(t.Context(), req)
		if err != nil && !strings.Contains(err.Error(), "waiting for volume") {
			t.Fatal(err)
		}
		return err == nil
	})
	return made
}

var poolSize = flag.Int("machines", 10, "how many machines TestPool makes")

// TestPool tests that machines with their own ports, created in parallel, run in the requested
// zones and are deleted without leftovers. It also counts the calls.
func TestPool(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner, calls := newOwner(t, who), &counted{}
	d := connect(t, who, calls)
	machines := *poolSize
	var wg sync.WaitGroup
	errs := make([]error, machines)
	for i := range machines {
		wg.Go(func() {
			req := request(owner, newToken(), machine(withPorts))
			req.FailureDomain = fmt.Sprint("az-", 1+i%2)
			_, errs[i] = d.Ensure(t.Context(), req)
		})
	}
	wg.Wait()
	g.Expect(errors.Join(errs...)).NotTo(HaveOccurred())
	t.Logf("calls to make %d machines with two ports each: %v", machines, calls.calls)
	g.Expect(calls.calls["CreateServer"]).To(Equal(machines))
	g.Expect(calls.calls["CreatePorts"]).To(Equal(machines), "one call makes all of a machine's ports")
	// One create per machine, and a share of the live reads, which concurrent calls share. The
	// token and the names are requested once.
	g.Expect(calls.total()-calls.calls["CreatePorts"]).To(BeNumerically("<=", machines+16), "%v", calls.calls)

	var tagged struct{ Ports []struct{ ID string } }
	who.do(who.network, http.MethodGet, "ports?fields=id&tags=team-a", nil, &tagged)
	g.Expect(tagged.Ports).To(HaveLen(machines))

	zones := map[string]int{}
	until(t, "all run", func() bool {
		found, err := d.List(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		clear(zones)
		ports := 0
		for _, r := range found {
			switch {
			case r.OwnershipID != owner:
			case r.Kind == cloud.KindNIC:
				ports++
			case r.State == cloud.StateRunning:
				g.Expect(r.Addresses).To(HaveLen(3), "%v", r.Addresses)
				zones[r.FailureDomain]++
			default:
				g.Expect(r.State).To(Equal(cloud.StatePending), r.Reason)
			}
		}
		g.Expect(ports).To(Equal(2 * machines))
		return zones["az-1"]+zones["az-2"] == machines
	})
	g.Expect(zones).To(Equal(map[string]int{"az-1": (machines + 1) / 2, "az-2": machines / 2}))

	calls.reset()
	until(t, "all are gone", func() bool { return deleteAll(t, d, owner) == 0 })
	g.Expect(who.left(owner)).To(BeEmpty())
	t.Logf("calls to delete them: %v", calls.calls)
	g.Expect(calls.calls["DeletePort"]).To(Equal(2 * machines))
}

// TestMachine tests that the fields of a machine reach Nova.
func TestMachine(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	key, group := "key-"+owner, struct {
		Group struct{ ID string } `json:"server_group"`
	}{}
	who.do(who.compute, http.MethodPost, "os-keypairs", map[string]any{"keypair": map[string]any{"name": key, "public_key": publicKey}}, nil)
	t.Cleanup(func() { who.do(who.compute, http.MethodDelete, "os-keypairs/"+key, nil, nil) })
	who.do(who.compute, http.MethodPost, "os-server-groups",
		map[string]any{"server_group": map[string]any{"name": owner, "policies": []string{"soft-anti-affinity"}}}, &group)
	t.Cleanup(func() { who.do(who.compute, http.MethodDelete, "os-server-groups/"+group.Group.ID, nil, nil) })
	made, err := d.Ensure(t.Context(), request(owner, newToken(), machine(func(m *infrav1.OpenStackMachine) {
		m.Image = infrav1.OpenStackImage{Tags: []string{"node"}}
		m.Ports = []infrav1.OpenStackPort{
			{Network: "storage", SecurityGroups: []string{"default"}}, {Network: "nodes", SecurityGroups: []string{"default"}},
		}
		m.AvailabilityZone = "az-2"
		m.ServerGroupID = group.Group.ID
		m.SchedulerHints = map[string]string{"note": "none"}
		m.KeyName, m.ConfigDrive = key, infrav1.FeatureEnabled
		m.Metadata, m.Tags = map[string]string{"cost-center": "4711"}, []string{"worker"}
	})))
	g.Expect(err).NotTo(HaveOccurred())
	var now struct {
		Server struct {
			Status      string
			KeyName     string `json:"key_name"`
			ConfigDrive string `json:"config_drive"`
			Zone        string `json:"OS-EXT-AZ:availability_zone"`
			Metadata    map[string]string
			Tags        []string
			Addresses   map[string]any
		}
	}
	until(t, "the machine runs", func() bool {
		who.do(who.compute, http.MethodGet, "servers/"+made.ID, nil, &now)
		return now.Server.Status == "ACTIVE"
	})
	g.Expect(now.Server.KeyName).To(Equal(key))
	g.Expect(now.Server.ConfigDrive).To(Equal("True"))
	g.Expect(now.Server.Zone).To(Equal("az-2"))
	g.Expect(now.Server.Metadata).To(HaveKeyWithValue("cost-center", "4711"))
	g.Expect(now.Server.Tags).To(ContainElement("worker"))
	g.Expect(now.Server.Addresses).To(And(HaveKey("nodes"), HaveKey("storage")))
	var members struct {
		Group struct{ Members []string } `json:"server_group"`
	}
	who.do(who.compute, http.MethodGet, "os-server-groups/"+group.Group.ID, nil, &members)
	g.Expect(members.Group.Members).To(ConsistOf(made.ID))
}

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGpVnYwEo6Wc0HGOpYWPS2MZdYjVfpFHnqUbCBHqGSqN test"

// TestNoValidHost tests that a machine for which no host has room fails with Nova's message, and is
// not created again in its place.
func TestNoValidHost(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(func(m *infrav1.OpenStackMachine) { withPorts(m); m.Flavor = "huge" }))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	until(t, "the machine fails", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveLen(3), "the server and its ports")
		g.Expect(found[0].ID).To(Equal(made.ID))
		// Nova stores the fault a moment after the state.
		return found[0].State == cloud.StateFailed && found[0].Code == cloud.NoCapacity &&
			strings.HasPrefix(found[0].Reason, "No valid host was found")
	})
	again, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(made.ID))
	g.Expect(again.State).To(Equal(cloud.StateFailed))
}

// TestBuildAborts tests that a machine whose host aborts the build fails with Nova's message, is
// not created again in its place, and is deleted with its dependants.
func TestBuildAborts(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(func(m *infrav1.OpenStackMachine) { withFloatingIP(m); m.Image.Name = "doomed-image" }))
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	until(t, "the machine fails", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found[0].ID).To(Equal(made.ID))
		g.Expect(found[0].State).NotTo(Equal(cloud.StateRunning))
		return found[0].State == cloud.StateFailed && strings.Contains(found[0].Reason, "aborted: FakeBuildAbortDriver")
	})
	again, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(made.ID))
}

// TestQuota tests that an exhausted quota is reported as such and leaves no port behind. Once the
// quota is raised, the same machine is created.
func TestQuota(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(withPorts))
	undo := setQuota(t, admin, who.project, "instances", 0)
	_, err := d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	g.Expect(err).To(MatchError(ContainSubstring("Quota exceeded for instances")))
	g.Expect(who.left(owner)).To(BeEmpty())
	undo()
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestRevokedToken tests that a token that is revoked while in use costs one login and nothing
// else. It is revoked before Glance sees it, because Nova, which has seen it, accepts it for a
// while.
func TestRevokedToken(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	calls := &counted{}
	d := connect(t, who, calls)
	revoked := false
	calls.before = func(op string, req *http.Request) error {
		token := req.Header.Get("X-Auth-Token")
		if op == "ListImages" && !revoked {
			revoked = true
			asked, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, keystone+"/auth/tokens", nil)
			g.Expect(err).NotTo(HaveOccurred())
			asked.Header.Set("X-Auth-Token", token)
			asked.Header.Set("X-Subject-Token", token)
			resp, err := http.DefaultClient.Do(asked)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(resp.Body.Close()).To(Succeed())
			g.Expect(resp.StatusCode).To(Equal(http.StatusNoContent))
		}
		return nil
	}
	_, err := d.Ensure(t.Context(), request(owner, newToken(), machine(nil)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(calls.calls).To(HaveKeyWithValue("CreateToken", 2))
	g.Expect(calls.calls).To(HaveKeyWithValue("ListImages", 2))
	g.Expect(calls.calls).To(HaveKeyWithValue("CreateServer", 1))
	g.Expect(who.left(owner)).To(ContainElement(HavePrefix("server ")))
}

// TestCredentials tests that each kind of credentials can log in, and none for another project.
func TestCredentials(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	var user struct {
		Token struct{ User struct{ ID string } }
	}
	who.do(who.identity, http.MethodGet, "auth/tokens", nil, &user, "X-Subject-Token", who.provider.Token())
	credentials := "users/" + user.Token.User.ID + "/application_credentials"
	var made struct {
		Credential struct{ ID, Secret string } `json:"application_credential"`
	}
	who.do(who.identity, http.MethodPost, credentials, map[string]any{"application_credential": map[string]any{"name": "drover"}}, &made)
	t.Cleanup(func() { who.do(who.identity, http.MethodDelete, credentials+"/"+made.Credential.ID, nil, nil) })
	for name, auth := range map[string]map[string]string{
		"password":               {"user_id": user.Token.User.ID, "password": who.name},
		"application credential": {"application_credential_id": made.Credential.ID, "application_credential_secret": made.Credential.Secret},
		"token":                  {"token": who.provider.Token()},
	} {
		for project, want := range map[string]cloud.Code{who.project: "", admin.project: cloud.Unauthorized} {
			d, err := driver.Cloud().New(cloud.Config{Account: account(project), Credentials: clouds(auth),
				Connect: conformance.Through(&counted{})})
			g.Expect(err).NotTo(HaveOccurred())
			info, err := d.Probe(t.Context())
			g.Expect(cloud.CodeOf(err)).To(Equal(want), "%s: %v", name, err)
			if want == "" {
				g.Expect(info.Place).To(Equal("openstack:" + project + ":RegionOne"))
				g.Expect(info.FailureDomains).To(Equal([]string{"az-1", "az-2"}))
			}
		}
	}
}

// TestForeign tests that Drover neither adopts nor changes a server with the same name, or a port,
// that is not its own.
func TestForeign(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(nil))
	var theirs struct{ Server struct{ ID, Status string } }
	who.do(who.compute, http.MethodPost, "servers", map[string]any{"server": foreignServer(who, req.Name)}, &theirs)
	t.Cleanup(func() { who.do(who.compute, http.MethodDelete, "servers/"+theirs.Server.ID, nil, nil) })
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.ID).NotTo(Equal(theirs.Server.ID))
	found, err := d.List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).NotTo(ContainElement(HaveField("ID", theirs.Server.ID)))
	until(t, "ours is gone", func() bool { return deleteAll(t, d, owner) == 0 })
	who.do(who.compute, http.MethodGet, "servers/"+theirs.Server.ID, nil, &theirs)
	g.Expect(theirs.Server.Status).To(Equal("ACTIVE"))
}

// TestCrash stops managers before and after each of their calls, and the next one continues with
// the existing resources. There is one server with its ports, its floating IP, its trunk and its
// volumes, and nothing is left after its deletion.
func TestCrash(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	req := request(owner, newToken(), machine(withAll))
	crashes := func(steps []string, step func(cloud.Driver), then func()) {
		for _, op := range steps {
			for _, when := range []string{"before", "after"} {
				dying := crashing(when, op)
				d := connect(t, who, dying)
				until(t, "it crashes "+when+" "+op, func() bool { step(d); return dying.count(op) > 0 })
				then()
			}
		}
	}
	next := connect(t, who, http.DefaultTransport)
	crashes([]string{"CreatePorts", "CreateFloatingIP", "CreateTrunk", "CreateVolume", "CreateServer"}, func(d cloud.Driver) {
		_, err := d.Ensure(t.Context(), req)
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "%v", err)
	}, func() { // The token finds what exists so far, even without another attempt: a port with a floating IP is found once the IP is gone.
		found, err := next.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		if err == nil {
			g.Expect(found == nil).To(Equal(len(who.left(owner)) == 0))
			return
		}
		g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Unavailable), "where nothing is, something may still come: %v", err)
		g.Expect(who.left(owner)).To(BeEmpty())
	})
	ensureMade(t, next, req)
	g.Expect(who.left(owner)).To(ConsistOf(HavePrefix("server "), HavePrefix("port "), HavePrefix("port "), HavePrefix("floating IP "),
		HavePrefix("trunk "), HavePrefix("volume "), HavePrefix("volume ")))
	// The port of the trunk is deleted last.
	crashes([]string{"DeleteServer", "DeleteFloatingIP", "DeleteTrunk", "DeletePort"},
		func(d cloud.Driver) { deleteAll(t, oneByOne{d}, owner) }, func() {})
}

// oneByOne deletes one resource at a time. Resources that would be deleted in parallel with the
// crashing call stay for the next crash.
type oneByOne struct{ cloud.Driver }

func (o oneByOne) Delete(ctx context.Context, resources []cloud.Resource) (errs []error) {
	for _, r := range resources {
		errs = append(errs, o.Driver.Delete(ctx, []cloud.Resource{r})...)
	}
	return errs
}

// TestAbandoned tests that resources of a crashed manager are deleted, even if the server is never
// created.
func TestAbandoned(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner := newOwner(t, who)
	_, err := connect(t, who, crashing("after", "CreateVolume")).Ensure(t.Context(), request(owner, newToken(), machine(withAll)))
	g.Expect(err).To(HaveOccurred())
	g.Expect(who.left(owner)).To(HaveLen(5), "two ports, a floating IP, a trunk and the first of two volumes")
	d := connect(t, who, http.DefaultTransport)
	until(t, "all is gone", func() bool { return deleteAll(t, d, owner) == 0 })
	g.Expect(who.left(owner)).To(BeEmpty())
}

// crashing passes calls until the given one. It cuts off this call, before sending it or before its
// answer arrives, and all calls after it.
func crashing(when, op string) *counted {
	crashed, crash := atomic.Bool{}, errors.New("crash")
	cut := func(now, called string) error {
		if crashed.Load() || now == when && called == op {
			crashed.Store(true)
			return crash
		}
		return nil
	}
	return &counted{
		before: func(called string, _ *http.Request) error { return cut("before", called) },
		after:  func(called string) error { return cut("after", called) },
	}
}

// TestFloatingIP tests that a machine has the address of its floating IP, and that the IP is
// deleted with the ports if the server is refused.
func TestFloatingIP(t *testing.T) {
	g := NewWithT(t)
	who, admin := newTenant(t), logIn(t, "admin")
	owner := newOwner(t, who)
	d := connect(t, who, http.DefaultTransport)
	req := request(owner, newToken(), machine(withFloatingIP))
	undo := setQuota(t, admin, who.project, "instances", 0)
	_, err := d.Ensure(t.Context(), req)
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	g.Expect(who.left(owner)).To(BeEmpty())
	undo()
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(who.floatingIPs()).To(HaveLen(1))
	want := clusterv1.MachineAddress{Type: clusterv1.MachineExternalIP, Address: who.floatingIPs()[0].Address}
	until(t, "the address is told", func() bool {
		found, err := d.Describe(t.Context(), []cloud.Reference{{Token: req.Token}})
		g.Expect(err).NotTo(HaveOccurred())
		return slices.Contains(found[0].Addresses, want)
	})
	admin.do(admin.network, http.MethodPut, "quotas/"+who.project, map[string]any{"quota": map[string]any{"floatingip": 1}}, nil)
	t.Cleanup(func() { admin.do(admin.network, http.MethodDelete, "quotas/"+who.project, nil, nil) })
	over := newOwner(t, who)
	_, err = d.Ensure(t.Context(), request(over, newToken(), machine(withFloatingIP)))
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	g.Expect(who.left(over)).To(BeEmpty())
}

// pagesOf limits the pages of a listing to the given size.
func pagesOf(size int) func(string, *http.Request) error {
	return func(_ string, req *http.Request) error {
		query := req.URL.Query()
		if n, err := strconv.Atoi(query.Get("limit")); err == nil && n > size {
			query.Set("limit", strconv.Itoa(size))
			req.URL.RawQuery = query.Encode()
		}
		return nil
	}
}

// TestPages tests that 100 servers are listed in pages of 20.
func TestPages(t *testing.T) {
	g := NewWithT(t)
	who := newTenant(t)
	owner, calls := newOwner(t, who), &counted{before: pagesOf(20)}
	many := foreignServer(who, "many")
	many["min_count"], many["tags"], many["metadata"] = 100, []string{"drover"},
		map[string]string{cloud.TagOwnership: owner, cloud.TagToken: newToken()}
	who.do(who.compute, http.MethodPost, "servers", map[string]any{"server": many}, nil)
	found, err := connect(t, who, calls).List(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	ids := map[string]bool{}
	for _, r := range found {
		if r.OwnershipID == owner {
			ids[r.ID] = true
		}
	}
	g.Expect(ids).To(HaveLen(100))
	g.Expect(calls.calls["ListServers"]).To(BeNumerically(">=", 5))
}
