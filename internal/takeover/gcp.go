// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"strings"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// instanceOnGCP returns zone and name of the instance in a Node's provider ID, or "".
func instanceOnGCP(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, "gce://")
	project, id, _ := strings.Cut(rest, "/")
	zone, name, _ := strings.Cut(id, "/")
	if !ok || project == "" || zone == "" || name == "" || strings.Contains(name, "/") {
		return ""
	}
	return id
}

// zone sets the pool's zone, and refuses one of another region than the account's.
func (s findings) zone(pool *Pool, field, zone string, target *Target) {
	if region := target.Account.Spec.Cloud.GCP.Region; zone != "" && !strings.HasPrefix(zone, region+"-") {
		s.addRefused(field, "it is %q, and the DroverAccount's region is %q", zone, region)
	}
	pool.FailureDomain = zone
}

// afterPart returns what follows a part of a URL or path, such as "/subnetworks/", or all of it if
// the part is not in it. project is that of the URL; "" is the account's.
func (t *Target) afterPart(url, part string) (name, project string) {
	name = url
	if at := strings.LastIndex(url, part); at >= 0 {
		name = url[at+len(part):]
	}
	if _, rest, found := strings.Cut(url, "projects/"); found {
		project, _, _ = strings.Cut(rest, "/")
	}
	if project == t.Account.Spec.Cloud.GCP.ProjectID {
		project = ""
	}
	return name, project
}

// imageOnGCP returns the image of a URL or path.
func (t *Target) imageOnGCP(url string) (i infrav1.GCPImage) {
	name, project := t.afterPart(url, "/images/")
	if family, is := strings.CutPrefix(name, "family/"); is {
		return infrav1.GCPImage{Family: family, Project: project}
	}
	return infrav1.GCPImage{Name: name, Project: project}
}
