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

// The users whose writes are counted: the managers in the management cluster, and whose kubeconfig
// they use in the workload cluster.
const (
	droverUser = "system:serviceaccount:drover-system:drover-manager"
	coreUser   = "system:serviceaccount:capi-system:capi-manager"
	adopter    = "adopter"
)

// policy has the API server log the writes of the managers, and nothing else.
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

// Writes counts write requests that an API server answered, whatever the answer, by what was
// written: for instance "patch cloudmachines/status". A refused one has its status added: "patch
// cloudmachines 409".
type Writes map[string]int

// event is what is read of a line of the audit log.
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

// read takes in what was written since it was last called, and returns all writes so far, Drover's
// and Cluster API's.
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
	whole := bytes.LastIndexByte(raw, '\n') + 1 // the last line may still be under way
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

// minus returns what came on top of the earlier counts.
func (w Writes) minus(before Writes) Writes {
	d := Writes{}
	for what, n := range w {
		if n -= before[what]; n != 0 {
			d[what] = n
		}
	}
	return d
}

// The sides that Drover's writes belong to.
const (
	Infrastructure = "infrastructure"
	Bootstrap      = "bootstrap"
	// Aside are Events, leader election, and what is written once for a cluster: they do not count
	// for a machine.
	Aside = "aside"
)

// side tells which of Drover's providers writes a thing.
func side(what string) string {
	resource, _, _ := strings.Cut(strings.Fields(what)[1], "/")
	switch resource {
	case "events", "leases", "clusterrolebindings", "cloudmachinetemplates", "cloudaccounts", "cloudclusters", "adoptedcontrolplanes":
		return Aside
	case "cloudinitconfigs", "secrets", "certificatesigningrequests":
		return Bootstrap
	default:
		return Infrastructure // CloudMachines and Nodes, and whatever else should not be written
	}
}

// Side sums the writes of one side.
func (w Writes) Side(s string) int {
	n := 0
	for what, count := range w {
		if side(what) == s {
			n += count
		}
	}
	return n
}

// Total is the sum of all writes but those aside.
func (w Writes) Total() int { return w.Side(Infrastructure) + w.Side(Bootstrap) }
