// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
)

// The users whose writes are counted: the managers in the management cluster, and the user of the
// kubeconfig in the workload cluster.
const (
	droverUser = "system:serviceaccount:drover-system:drover-manager"
	coreUser   = "system:serviceaccount:capi-system:capi-manager"
	adopter    = "adopter"
)

// policy makes the API server log only the writes of these users.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
- level: Metadata
  users: ["` + droverUser + `", "` + coreUser + `", "` + adopter + `"]
- level: None
`

// Writes counts write requests that an API server answered, successful or not, by what was written:
// for instance "patch drovermachines/status". Refused requests have the status code added: "patch
// drovermachines 409".
type Writes map[string]int

// event holds the fields that are read from a line of the audit log.
type event struct {
	Verb, UserAgent string
	User            struct{ Username string }
	ObjectRef       struct{ Resource, Subresource, Namespace string }
	ResponseStatus  struct{ Code int }
}

func (e event) what() string {
	what := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		what += "/" + e.ObjectRef.Subresource
	}
	if code := e.ResponseStatus.Code; code >= 300 {
		what += fmt.Sprintf(" %d", code)
	}
	return what
}

// auditLog reads an API server's audit log as it grows.
type auditLog struct {
	path         string
	offset       int64
	drover, core Writes
}

// read reads new lines and returns all writes so far, by Drover and by Cluster API.
func (l *auditLog) read() (drover, core Writes, err error) {
	if l.drover == nil {
		l.drover, l.core = Writes{}, Writes{}
	}
	f, err := os.Open(l.path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.NewSectionReader(f, l.offset, 1<<40))
	if err != nil {
		return nil, nil, fmt.Errorf("read the audit log: %w", err)
	}
	whole := bytes.LastIndexByte(raw, '\n') + 1 // the last line may be incomplete
	l.offset += int64(whole)
	for line := range bytes.Lines(raw[:whole]) {
		e := event{}
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, nil, fmt.Errorf("read the audit log: %w", err)
		}
		switch {
		case e.User.Username == droverUser || e.User.Username == adopter && strings.HasPrefix(e.UserAgent, "drover/"):
			l.drover[e.what()]++
		default:
			l.core[e.what()]++
		}
	}
	return maps.Clone(l.drover), maps.Clone(l.core), nil
}

// minus returns the difference from earlier counts.
func (w Writes) minus(before Writes) Writes {
	d := Writes{}
	for what, n := range w {
		if n -= before[what]; n != 0 {
			d[what] = n
		}
	}
	return d
}

// The sides that Drover's writes are assigned to.
const (
	Infrastructure = "infrastructure"
	Bootstrap      = "bootstrap"
	// Aside is for Events, leader election and what is written once per cluster. These writes do
	// not count towards machines.
	Aside = "aside"
)

// side returns which of Drover's providers writes the resource.
func side(what string) string {
	resource, _, _ := strings.Cut(strings.Fields(what)[1], "/")
	switch resource {
	case "events", "leases", "clusterrolebindings", "drovermachinetemplates", "droveraccounts", "droverclusters", "adoptedcontrolplanes":
		return Aside
	case "droverconfigs", "secrets", "certificatesigningrequests":
		return Bootstrap
	default:
		return Infrastructure // DroverMachines, Nodes, and anything that should not be written
	}
}

// Side returns the sum of the writes of one side.
func (w Writes) Side(s string) int {
	n := 0
	for what, count := range w {
		if side(what) == s {
			n += count
		}
	}
	return n
}

// Total returns the sum of all writes except Aside.
func (w Writes) Total() int { return w.Side(Infrastructure) + w.Side(Bootstrap) }
