// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// MetadataAddress is where a guest finds its metadata server, at port 80.
const MetadataAddress = "169.254.169.254"

// MetadataServer is the guest's metadata server, as Google's documentation describes it.
func (g Guest) MetadataServer() http.Handler {
	attributes, _ := json.Marshal(g.Metadata) // a map of strings
	values := map[string]string{
		"instance/attributes/": string(attributes), "project/attributes/": "{}",
		"instance/id": strconv.FormatUint(g.ID, 10), "instance/zone": "projects/4711/zones/" + g.Zone,
		"instance/hostname": g.Name + "." + g.Zone + ".c." + g.Project + ".internal",
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		value, known := values[strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/")]
		switch {
		case r.Header.Get("Metadata-Flavor") != "Google":
			w.WriteHeader(http.StatusForbidden)
		case !known:
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = fmt.Fprint(w, value)
		}
	})
}
