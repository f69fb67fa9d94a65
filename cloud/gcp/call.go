// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	// pageSize is the most that Compute Engine returns in one page.
	pageSize = 500
	// maxMembers bounds the members of objects in a page of a listing of all zones. Each may be a
	// zone, which takes more than a member of another map. An instance has about 30.
	maxMembers = 128 << 10
	// noResults is the warning of a page, or of a zone's part of it, that is empty.
	noResults = "NO_RESULTS_ON_PAGE"
)

// request is one call of Compute Engine.
type request struct {
	op     string
	class  cloud.Class
	method string
	// project whose resource it is; "" means the account's.
	project string
	// path is the part after the project's.
	path string
	// address replaces all of that, for another service than Compute Engine.
	address string
	query   url.Values
	in, out any
}

// call makes one attempt of one call.
func (d *driver) call(ctx context.Context, r request) error {
	token, err := d.tokens.get(ctx, d.login)
	if err != nil {
		return err
	}
	address := cmp.Or(r.address, d.endpoint+"/compute/v1/projects/"+cmp.Or(r.project, d.account.ProjectID)+"/"+r.path)
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	req, err := d.api.NewRequest(ctx, r.op, r.class, r.method, address, r.in)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return d.api.Do(req, func(a *driverkit.Answer) error {
		if a.Status == http.StatusUnauthorized { // it was revoked
			d.tokens.forget(token)
		}
		if a.Status != http.StatusOK {
			return d.refusal(a)
		}
		return a.Decode(r.out)
	})
}

// change makes a call that begins an operation. It returns the error of the call, or of the
// operation if that has failed by now, and reports whether the operation has ended.
func (d *driver) change(ctx context.Context, r request) (ended bool, err error) {
	var answer operation
	r.out = &answer
	if err := d.call(ctx, r); err != nil {
		return false, err
	}
	if answer.Name == "" || answer.Status == "" {
		return false, d.api.Unexpected(r.op, "without an operation")
	}
	return answer.Status == "DONE", d.outcome(r.op, &answer)
}

// listing is a listing of all zones, and what the driver reads of its resources: all of them have
// their user data in their metadata. "Using partial responses" in Compute Engine's guide has the
// syntax.
type listing struct{ collection, fields string }

var (
	allInstances = listing{"instances", "id,name,zone,status,statusMessage,creationTimestamp,lastStartTimestamp,machineType,labels,tags/items," +
		"networkInterfaces(networkIP,ipv6Address,accessConfigs/natIP,ipv6AccessConfigs/externalIpv6)," +
		"scheduling(provisioningModel,instanceTerminationAction,preemptible),resourceStatus/upcomingMaintenance(windowStartTime,maintenanceStatus)"}
	allDisks      = listing{"disks", "id,name,zone,creationTimestamp,labels,users"}
	allOperations = listing{"operations", "name,insertTime,status,targetId"}
)

// listAll reads a listing of all zones to its end, and returns what the account's region has. A
// listing in which one of the region's zones is missing is an error.
func listAll[T any](ctx context.Context, d *driver, op string, c listing, filter string, of func(scope) []T) ([]T, error) {
	return driverkit.SizedPages(ctx, op, &d.sizes, 1, pageSize, func(ctx context.Context, next string, size int) ([]T, string, error) {
		var page aggregated
		ctx = driverkit.WithBounds(ctx, driverkit.Bounds{Members: maxMembers})
		query := pageQuery(filter, next, size)
		query.Set("fields", "kind,nextPageToken,unreachables,warning,items/*/warning,items/*/"+c.collection+"("+c.fields+")")
		err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "aggregated/" + c.collection, query: query,
			out: &page})
		switch {
		case err != nil:
			return nil, "", err
		case !strings.HasSuffix(page.Kind, "AggregatedList"):
			return nil, "", d.api.Unexpected(op, "without a list")
		}
		if missing := d.missing(&page); missing != "" {
			return nil, "", cloud.Errorf(cloud.Unavailable, "%s: the listing is incomplete: %s", op, d.api.Secrets.Clean(missing, 256))
		}
		var all []T
		for name, s := range page.Items {
			if d.inRegion(name) {
				all = append(all, of(s)...)
			}
		}
		return all, page.NextPageToken, nil
	})
}

// listGlobal reads a listing of resources that are in no region to its end.
func listGlobal[T any](ctx context.Context, d *driver, op string, c collection, filter string) ([]T, error) {
	return driverkit.SizedPages(ctx, op, &d.sizes, 1, pageSize, func(ctx context.Context, next string, size int) ([]T, string, error) {
		var page listed[T]
		err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: c.path, query: pageQuery(filter, next, size),
			out: &page})
		return page.Items, page.NextPageToken, page.check(d, op, err)
	})
}

// check returns err, or an error if the page says that something is missing.
func (l *listed[T]) check(d *driver, op string, err error) error {
	switch w := l.Warning; {
	case err != nil:
		return err
	case !strings.HasPrefix(l.Kind, "compute#"):
		return d.api.Unexpected(op, "without a list")
	case w != nil && w.Code != noResults:
		return cloud.Errorf(cloud.Unavailable, "%s: the listing is incomplete: %s", op, d.api.Secrets.Clean(w.Code+": "+w.Message, 256))
	}
	return nil
}

// pageQuery returns the parameters of a page of a listing.
func pageQuery(filter, next string, size int) url.Values {
	query := url.Values{"maxResults": {strconv.Itoa(size)}}
	if filter != "" {
		query.Set("filter", filter)
	}
	if next != "" {
		query.Set("pageToken", next)
	}
	return query
}

// inRegion reports whether a scope of a listing, such as "zones/europe-west4-a", is in the
// account's region, or might be.
func (d *driver) inRegion(scope string) bool {
	parent, name := path.Split(scope)
	return path.Base(parent) != "zones" || strings.HasPrefix(name, d.account.Region+"-")
}

// missing returns what a page of a listing says about zones that did not answer; "" if it has all
// of the region's. Google reports such zones with status 200. Those of other regions do not matter.
func (d *driver) missing(page *aggregated) string {
	for _, name := range page.Unreachables {
		if d.inRegion(name) {
			return name + " can't be reached"
		}
	}
	for name, s := range page.Items {
		if w := s.Warning; w != nil && w.Code != noResults && d.inRegion(name) {
			return name + ": " + w.Code + ": " + w.Message
		}
	}
	w := page.Warning
	if w == nil || w.Code == noResults {
		return ""
	}
	if (w.Code == "UNREACHABLE" || w.Code == "PARTIAL_SUCCESS") && len(page.Unreachables) > 0 {
		return "" // it is about the zones above
	}
	return w.Code + ": " + w.Message
}
