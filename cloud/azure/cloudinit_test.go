// SPDX-License-Identifier: Apache-2.0

package azure

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/internal/test/cloudinit"
)

// datasource makes cloud-init's data source for Azure read a guest: the document on the guest's
// provisioning disk from a folder, and the metadata service from a local server. What asks the
// computer itself, or Azure's agent service, is replaced. The user data is rendered with the file
// that cloud-init's handler for templates reads.
const datasource = `
import json, os, sys
from cloudinit import distros, helpers
from cloudinit.handlers.jinja_template import render_jinja_payload_from_file
from cloudinit.sources import DataSourceAzure as azure
folder = os.environ["GUEST"]
paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
readurl = azure.readurl
azure.readurl = lambda url, **options: readurl(url.replace("http://169.254.169.254", os.environ["METADATA"]), **options)
azure.dmi.read_dmi_data = lambda key: os.environ["VMID"]
azure.get_boot_telemetry = azure.get_system_info = lambda: None
config = {"datasource": {"Azure": {"data_dir": folder + "/waagent"}}}
source = azure.DataSourceAzure(config, distros.fetch("debian")("debian", {}, paths), paths)
source._setup_ephemeral_networking = lambda **options: None
source._is_ephemeral_networking_up = lambda: True
source._negotiated = True
source._report_failure = lambda **options: False
found = source._get_data()
source.persist_instance_data(write_cache=False)
hostname = source.get_hostname()
user_data = source.get_userdata_raw()
user_data = user_data.decode() if isinstance(user_data, bytes) else user_data
json.dump({
    "found": found,
    "instance": source.get_instance_id(),
    "hostname": hostname if isinstance(hostname, str) else hostname.hostname,
    "zone": source.metadata["imds"]["compute"]["zone"],
    "v1Zone": source.availability_zone,
    "region": source.region,
    "userData": user_data,
    "rendered": render_jinja_payload_from_file(user_data, "user-data", paths.get_runpath("instance_data_sensitive")),
}, sys.stdout)
`

// TestCloudInit tests that Debian's cloud-init, in a guest of what Azure was told, finds the exact
// user data, the host name, the zone, and with the row's template and that of the flavor
// azure-kubeadm the machine's provider ID. The standardized zone (v1.availability_zone) is a fault
// domain, so the provider ID must not use it.
func TestCloudInit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guests := make(chan armstub.Guest, 1)
	stub := start(t, armstub.Options{Power: func(guest armstub.Guest) (off func()) { guests <- guest; return func() {} }})
	d := connect(t, stub)
	row := Cloud()
	req := testRequest("blue-md-0-x7k2p", nil)
	req.FailureDomain = "2"
	template := "## template: jinja\n#cloud-config\nruncmd:\n- echo 'äöü, \"quotes\" and\ttabs'\n- echo %s %s %s %s\n" +
		strings.Repeat("# long\n", 5000)
	flavor, err := os.ReadFile("../../templates/cluster-template-azure-kubeadm.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	ids := regexp.MustCompile(`value: (azure://.*)`).FindAllSubmatch(flavor, -1)
	g.Expect(ids).To(HaveLen(3), "init, join, and workers")
	req.UserData = fmt.Appendf(nil, template, row.ProviderID(testAccount()), ids[0][1], ids[1][1], ids[2][1])
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())

	var read struct {
		Found                                                        bool
		Instance, Hostname, Zone, V1Zone, Region, UserData, Rendered string
	}
	cloudinit.Run(t, datasource, guestOf(t, <-guests), &read)
	g.Expect(read.Found).To(BeTrue())
	g.Expect(read.UserData).To(Equal(string(req.UserData)))
	g.Expect(read.Hostname).To(Equal(req.Name))
	g.Expect(read.Zone).To(Equal(made.FailureDomain))
	g.Expect(read.V1Zone).To(Equal("0"))
	g.Expect(read.Region).To(Equal(armstub.Location))
	_, body, _ := strings.Cut(fmt.Sprintf(template, made.ProviderID, made.ProviderID, made.ProviderID, made.ProviderID), "\n")
	g.Expect(strings.TrimSpace(read.Rendered)).To(Equal(strings.TrimSpace(body)))
}

// guestOf lays out what a guest finds, a provisioning disk and a metadata service, and returns the
// environment variables that lead there.
func guestOf(t *testing.T, guest armstub.Guest) (env []string) {
	t.Helper()
	folder := t.TempDir()
	disk := filepath.Join(folder, "seed", "azure")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	document, err := guest.ProvisioningDisk()
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(disk, "ovf-env.xml"), string(document))
	server := httptest.NewServer(guest.Metadata("000D3A000001"))
	t.Cleanup(server.Close)
	return []string{"GUEST=" + folder, "METADATA=" + server.URL, "VMID=" + armstub.VMID}
}
