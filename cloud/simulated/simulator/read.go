// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/drover-io/drover/cloud/simulated/wire"
)

// describe returns a page. partial is the fault PartialPage. The caller holds s.mu.
func (s *Server) describe(op string, a *account, req wire.DescribeRequest, partial bool) (*wire.DescribeResponse, *wire.ErrorResponse) {
	if s.region(req.Region) == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	if len(req.IDs) > wire.MaxBatch || len(req.TagValues) > wire.MaxBatch {
		return nil, refuse(wire.InvalidParameterValue, "a call may name at most %d IDs or tag values", wire.MaxBatch)
	}
	if req.MaxResults < 0 || req.MaxResults > wire.MaxResults {
		return nil, refuse(wire.InvalidParameterValue, "maxResults is 1 to %d", wire.MaxResults)
	}
	if len(req.TagValues) > 0 && req.TagKey == "" {
		return nil, refuse(wire.InvalidParameterValue, "tagValues without tagKey")
	}
	after, err := base64.RawURLEncoding.DecodeString(req.NextToken)
	if err != nil {
		return nil, refuse(wire.InvalidParameterValue, "nextToken is invalid")
	}
	if op == wire.DescribeInstances {
		req.Kinds = []wire.Kind{wire.Instance}
	}
	now, p := time.Now(), a.place(req.Region)
	p.sweep(now, s.settings.TerminatedVisible.Duration)
	found := p.find(now, s.settings.TerminatedVisible.Duration, newFilter(req))
	if op == wire.DescribeInstances && len(req.IDs) > 0 {
		if missing := firstMissing(req.IDs, found); missing != "" {
			return nil, refuse(wire.InstanceNotFound, "there is no instance %q", missing)
		}
	}
	size := s.settings.PageSize
	if req.MaxResults > 0 {
		size = min(size, req.MaxResults)
	}
	return page(found, string(after), func(most int) int {
		if partial {
			return s.rand.IntN(most + 1)
		}
		return most
	}, size), nil
}

// page returns the resources after a key, at most size, or as few as choose returns. An empty page
// repeats the key with a mark, so that NextToken is always different.
func page(found []wire.Resource, after string, choose func(most int) int, size int) *wire.DescribeResponse {
	key := strings.TrimRight(after, "+")
	marks := after[len(key):]
	start := 0
	for start < len(found) && sortKey(found[start]) <= key {
		start++
	}
	end := start + choose(min(size, len(found)-start))
	out := &wire.DescribeResponse{Resources: found[start:end]}
	if end < len(found) {
		if end > start {
			key, marks = sortKey(found[end-1]), ""
		} else {
			marks += "+"
		}
		out.NextToken = base64.RawURLEncoding.EncodeToString([]byte(key + marks))
	}
	return out
}

// filter is a DescribeRequest prepared for fast matching.
type filter struct {
	ids, values map[string]bool
	key         string
	kinds       []wire.Kind
}

func newFilter(req wire.DescribeRequest) filter {
	f := filter{key: req.TagKey, kinds: req.Kinds}
	set := func(list []string) map[string]bool {
		if len(list) == 0 {
			return nil
		}
		m := make(map[string]bool, len(list))
		for _, x := range list {
			m[x] = true
		}
		return m
	}
	f.ids, f.values = set(req.IDs), set(req.TagValues)
	return f
}

func (f filter) matches(r *wire.Resource) bool {
	if f.ids != nil && !f.ids[r.ID] {
		return false
	}
	if f.kinds != nil && !slices.Contains(f.kinds, r.Kind) {
		return false
	}
	if f.key == "" {
		return true
	}
	value, ok := r.Tags[f.key]
	return ok && (f.values == nil || f.values[value])
}

// find returns, sorted, what a read sees now with each resource's lag.
func (p *place) find(now time.Time, visible time.Duration, f filter) []wire.Resource {
	found := []wire.Resource{}
	for _, i := range p.instances {
		if !f.matches(&i.res) {
			continue
		}
		then := now.Add(-i.lag)
		if e, ok := i.at(then); !ok || (e.state == wire.Terminated && then.Sub(e.at) > visible) {
			continue
		}
		r, _ := i.view(then)
		found = append(found, r)
	}
	for _, d := range p.dependants {
		if f.matches(&d.res) {
			if r, ok := d.view(now.Add(-d.lag)); ok {
				found = append(found, r)
			}
		}
	}
	for _, b := range p.balancers {
		if f.matches(&b.res) {
			if r, ok := b.view(now.Add(-b.lag)); ok {
				found = append(found, r)
			}
		}
	}
	sortResources(found)
	return found
}

func firstMissing(ids []string, found []wire.Resource) string {
	there := map[string]bool{}
	for _, r := range found {
		there[r.ID] = true
	}
	for _, id := range ids {
		if !there[id] {
			return id
		}
	}
	return ""
}

// terminate terminates instances one by one. The caller holds s.mu.
func (s *Server) terminate(a *account, req wire.BatchRequest) (*wire.BatchResponse, *wire.ErrorResponse) {
	p := a.place(req.Region)
	return s.batch(req, func(id string) *wire.ErrorResponse {
		i := p.instances[id]
		if i == nil {
			return refuse(wire.InstanceNotFound, "there is no instance %q", id)
		}
		s.end(i, "Client.UserInitiatedShutdown")
		return nil
	})
}

// remove deletes dependants one by one. The caller holds s.mu.
func (s *Server) remove(a *account, req wire.BatchRequest) (*wire.BatchResponse, *wire.ErrorResponse) {
	now, p := time.Now(), a.place(req.Region)
	return s.batch(req, func(id string) *wire.ErrorResponse {
		if p.removeBalancer(id) {
			return nil
		}
		d := p.dependants[id]
		switch {
		case d == nil || (!d.gone.IsZero() && !now.Before(d.gone)):
			return refuse(wire.ResourceNotFound, "there is no resource %q", id)
		case d.attached(now):
			return refuse(wire.ResourceInUse, "%s is attached to %s", id, d.res.AttachedTo)
		}
		d.gone = now
		return nil
	})
}

func (s *Server) batch(req wire.BatchRequest, do func(id string) *wire.ErrorResponse) (*wire.BatchResponse, *wire.ErrorResponse) {
	if s.region(req.Region) == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	if len(req.IDs) == 0 || len(req.IDs) > wire.MaxBatch {
		return nil, refuse(wire.InvalidParameterValue, "a call must have 1 to %d IDs", wire.MaxBatch)
	}
	out := &wire.BatchResponse{Results: make([]wire.BatchResult, 0, len(req.IDs))}
	for _, id := range req.IDs {
		out.Results = append(out.Results, wire.BatchResult{ID: id, Error: do(id)})
	}
	return out, nil
}

// console returns an instance's output: the text set for it, or its body's. The caller holds s.mu.
func (s *Server) console(a *account, req wire.ConsoleRequest) (*wire.ConsoleResponse, *wire.ErrorResponse) {
	if s.region(req.Region) == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	i := a.place(req.Region).instances[req.ID]
	if i == nil {
		return nil, refuse(wire.InstanceNotFound, "there is no instance %q", req.ID)
	}
	text := i.console
	if text == nil {
		text = []byte(strings.Join(i.body.Report().Console, "\n"))
	}
	return &wire.ConsoleResponse{Output: text[max(0, len(text)-wire.MaxConsole):]}, nil
}

func (s *Server) catalog(a *account, req wire.CatalogRequest) (*wire.CatalogResponse, *wire.ErrorResponse) {
	region := s.region(req.Region)
	if region == nil {
		return nil, refuse(wire.InvalidParameterValue, "there is no region %q", req.Region)
	}
	catalog := &wire.CatalogResponse{Account: a.id, Zones: region.Zones, InstanceTypes: s.types, Networks: s.networks}
	for _, i := range s.images {
		catalog.Images = append(catalog.Images, i.Image)
	}
	return catalog, nil
}
