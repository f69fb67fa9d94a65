// SPDX-License-Identifier: Apache-2.0

package vcenter_test

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/vsphere"
	"github.com/drover-io/drover/internal/test/cloudinit"
	"github.com/drover-io/drover/internal/test/vcenter"
)

// datasource makes cloud-init's data source for VMware read the environment variables that it
// accepts instead of guestinfo, and makes cloud-init's renderer write systemd-networkd's files from
// the network configuration.
const datasource = `
import json, sys, tempfile
from cloudinit import distros, helpers
from cloudinit.net import network_state, networkd
from cloudinit.sources import DataSourceVMware as vmware
folder = tempfile.mkdtemp()
paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
source = vmware.DataSourceVMware({}, distros.fetch("debian")("debian", {}, paths), paths)
found = source._get_data()
state = network_state.parse_net_config_data(source.network_config)
hostname = source.get_hostname()
json.dump({
    "found": found,
    "platform": source.subplatform,
    "instance": source.get_instance_id(),
    "hostname": hostname if isinstance(hostname, str) else hostname.hostname,
    "userData": source.get_userdata_raw().decode() if isinstance(source.get_userdata_raw(), bytes) else source.get_userdata_raw(),
    "network": networkd.Renderer({})._render_content(state),
}, sys.stdout)
`

// TestCloudInit tests that Debian's cloud-init reads a machine's guestinfo variables correctly: the
// exact user data, the host name, and a network configuration that its renderer understands.
func TestCloudInit(t *testing.T) {
	g := NewWithT(t)
	v, err := vcenter.Start(vcenter.Options{Username: username, Password: password})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(v.Close)
	u, err := url.Parse(v.URL)
	g.Expect(err).NotTo(HaveOccurred())
	account := &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{Server: u.Host,
		Datacenter: vcenter.Datacenter, CABundle: string(v.CA)}}}
	row := vsphere.Cloud()
	d, err := row.New(cloud.Config{Account: account,
		Connect: func(trust *tls.Config) (http.RoundTripper, error) { return cloud.Connect(&http.Transport{}, trust) },
		Credentials: map[string][]byte{
			"username": []byte(username), "password": []byte(password)}})
	g.Expect(err).NotTo(HaveOccurred())

	userData := "#cloud-config\nruncmd:\n- echo 'what a kubelet needs: äöü, \"quotes\" and\ttabs'\n" + strings.Repeat("# long\n", 5000)
	made, err := d.Ensure(t.Context(), cloud.Request{
		Token: "0a1b2c3d", OwnershipID: "blue", Namespace: "team-a", Name: "blue-md-0-x7k2p", UserData: []byte(userData),
		Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{VSphere: &infrav1.VSphereMachine{
			Template: vcenter.Template, ResourcePool: vcenter.ResourcePool, Datastore: vcenter.Datastore,
			Networks: []infrav1.VSphereNetwork{
				{Name: "VM Network", MTU: 9000, MACAddress: "00:50:56:00:00:07"},
				{
					Name: "VM Network", Addresses: []string{"192.0.2.10/24", "2001:db8::10/64"}, Gateway4: "192.0.2.1", Gateway6: "2001:db8::1",
					Nameservers: []string{"192.0.2.53"}, SearchDomains: []string{"example.com"}, MACAddress: "00:50:56:00:00:08",
					Routes: []infrav1.VSphereRoute{{To: "198.51.100.0/24", Via: "192.0.2.254", Metric: 100}},
				},
			},
		}}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.VMs()).To(HaveLen(1))

	read := readByCloudInit(t, v.VMs()[0].Options)
	g.Expect(read.Found).To(BeTrue())
	g.Expect(read.Platform).To(HavePrefix("envvar "))
	g.Expect(strings.Replace(row.ProviderID(account), "{{ v1.instance_id }}", read.Instance, 1)).To(Equal(made.ProviderID))
	g.Expect(read.Hostname).To(Equal("blue-md-0-x7k2p"))
	g.Expect(read.UserData).To(Equal(userData))
	var dhcp, static string
	for _, text := range read.Network {
		if strings.Contains(text, "00:50:56:00:00:07") {
			dhcp = text
		} else {
			static = text
		}
	}
	g.Expect(dhcp).To(And(ContainSubstring("DHCP=ipv4"), ContainSubstring("MTUBytes=9000")))
	// Only netplan supports a route's metric: this version of cloud-init passes it to no other
	// renderer.
	for _, line := range []string{"MACAddress=00:50:56:00:00:08", "Name=eth1", "DHCP=no", "Address=192.0.2.10/24", "Address=2001:db8::10/64",
		"DNS=192.0.2.53",
		"Domains=example.com", "Gateway=192.0.2.1\n", "Gateway=2001:db8::1", "Gateway=192.0.2.254", "Destination=198.51.100.0/24"} {
		g.Expect(static).To(ContainSubstring(line))
	}
	g.Expect(static).NotTo(ContainSubstring("::/64\n"), "the default route leads everywhere")
}

// reading is what cloud-init read from the variables.
type reading struct {
	Found                                  bool
	Platform, Instance, Hostname, UserData string
	Network                                map[string]string // by file
}

func readByCloudInit(t *testing.T, options map[string]string) (r reading) {
	t.Helper()
	env := []string{"VMX_GUESTINFO=1"}
	for key, value := range options {
		if name, ok := strings.CutPrefix(key, "guestinfo."); ok {
			env = append(env, "VMX_GUESTINFO_"+strings.ToUpper(strings.ReplaceAll(name, ".", "_"))+"="+value)
		}
	}
	cloudinit.Run(t, datasource, env, &r)
	return r
}
