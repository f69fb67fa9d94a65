// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/test/cloudinit"
)

// datasource makes cloud-init's data source for Compute Engine read a guest, with a local server as
// the metadata server. What asks the computer itself is replaced. The user data is rendered with
// the file that cloud-init's handler for templates reads.
const datasource = `
import json, os, sys
from cloudinit import distros, helpers
from cloudinit.handlers.jinja_template import render_jinja_payload_from_file
from cloudinit.sources import DataSourceGCE as gce
folder = os.environ["GUEST"]
paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
gce.platform_reports_gce = lambda: True
config = {"datasource": {"GCE": {"metadata_url": os.environ["METADATA"] + "/computeMetadata/v1/"}}}
source = gce.DataSourceGCE(config, distros.fetch("debian")("debian", {}, paths), paths)
found = source._get_data()
source.persist_instance_data(write_cache=False)
hostname = source.get_hostname()
user_data = source.get_userdata_raw()
user_data = user_data.decode() if isinstance(user_data, bytes) else user_data
json.dump({
    "found": found,
    "instance": str(source.get_instance_id()),
    "hostname": hostname if isinstance(hostname, str) else hostname.hostname,
    "zone": source.availability_zone,
    "userData": user_data,
    "rendered": render_jinja_payload_from_file(user_data, "user-data", paths.get_runpath("instance_data_sensitive")),
}, sys.stdout)
`

// TestCloudInit tests that Debian's cloud-init, in a guest of what Google was told, finds the exact
// user data, the host name, the zone, and with the row's template the machine's provider ID.
func TestCloudInit(t *testing.T) {
	t.Parallel()
	template := "## template: jinja\n#cloud-config\nruncmd:\n- echo 'äöü, \"quotes\" and\ttabs'\n- echo %s\n" +
		strings.Repeat("# long\n", 20_000)
	for name, extra := range map[string]string{"text": "", "base64": "# \x01\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := start(t, gcpstub.Options{})
			req := testRequest("blue-md-0-x7k2p", nil)
			req.UserData = fmt.Appendf(nil, template+extra, Cloud().ProviderID(testAccount()))
			made, err := ensured(t, connect(t, stub), req)
			g.Expect(err).NotTo(HaveOccurred())

			var read struct {
				Found                                        bool
				Instance, Hostname, Zone, UserData, Rendered string
			}
			cloudinit.Run(t, datasource, guestOf(t, stub.Guests()[0]), &read)
			g.Expect(read.Found).To(BeTrue())
			g.Expect(read.UserData).To(Equal(string(req.UserData)))
			g.Expect(read.Hostname).To(Equal(req.Name))
			g.Expect(read.Zone).To(Equal(made.FailureDomain))
			g.Expect(read.Zone + "/" + read.Instance).To(Equal(made.ID))
			_, body, _ := strings.Cut(fmt.Sprintf(template+extra, made.ProviderID), "\n")
			g.Expect(strings.TrimSpace(read.Rendered)).To(Equal(strings.TrimSpace(body)))
		})
	}
}

// guestOf serves what a guest reads, and returns the environment variables that lead to it.
func guestOf(t *testing.T, guest gcpstub.Guest) (env []string) {
	t.Helper()
	server := httptest.NewServer(guest.MetadataServer())
	t.Cleanup(server.Close)
	return []string{"GUEST=" + t.TempDir(), "METADATA=" + server.URL}
}
