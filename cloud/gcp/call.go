// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"mime"
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

// call makes one attempt of one call. Its errors never repeat a body that is not Google's own
// answer, because such a body may contain anything.
func (d *driver) call(ctx context.Context, r request) error {
	token, err := d.tokens.get(ctx, d.login)
	if err != nil {
		return err
	}
	ctx = cloud.WithOperation(ctx, r.op, r.class)
	if err := ctx.Err(); err != nil {
		return &cloud.Error{Code: cloud.Unavailable, Message: r.op + ": not sent: " + err.Error(), Err: err}
	}
	req, err := d.newRequest(ctx, r)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := d.client.Do(req)
	if err != nil {
		return d.secrets.NoResponse(r.op, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := d.secrets.ReadBody(r.op, resp.Body, driverkit.MaxAnswer)
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusUnauthorized: // it was revoked
		d.tokens.forget(token)
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		return d.refusal(r.op, resp, body)
	case !isJSON(resp):
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response of type %s (not Compute Engine): check spec.gcp", r.op, contentType(resp))
	}
	if err := json.Unmarshal(body, r.out); err != nil {
		return cloud.Errorf(cloud.Unavailable, "%s: the response is not complete JSON (%d bytes)", r.op, len(body))
	}
	return nil
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
		return false, cloud.Errorf(cloud.Unknown, "%s: unexpected response without an operation (not Compute Engine): check spec.gcp", r.op)
	}
	return answer.Status == "DONE", d.outcome(r.op, &answer)
}

func (d *driver) newRequest(ctx context.Context, r request) (*http.Request, error) {
	address := cmp.Or(r.address, d.endpoint+"/compute/v1/projects/"+cmp.Or(r.project, d.account.ProjectID)+"/"+r.path)
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	var body []byte
	if r.in != nil {
		var err error
		if body, err = json.Marshal(r.in); err != nil {
			return nil, &cloud.Error{Code: cloud.InvalidSpec, Message: r.op + ": the request can't be encoded", Err: err}
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(body))
	if err != nil {
		return nil, cloud.Errorf(cloud.InvalidSpec, "%s: the address is not a URL: check spec.gcp", r.op)
	}
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "drover")
	return req, nil
}

func isJSON(resp *http.Response) bool { return contentType(resp) == "application/json" }

func contentType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || t == "" {
		return "an unknown type"
	}
	return cloud.Clip(t, 64)
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
		err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "aggregated/" + c.collection, query: query, out: &page})
		switch {
		case err != nil:
			return nil, "", err
		case !strings.HasSuffix(page.Kind, "AggregatedList"):
			return nil, "", cloud.Errorf(cloud.Unknown, "%s: unexpected response without a list (not Compute Engine): check spec.gcp", op)
		}
		if missing := d.missing(&page); missing != "" {
			return nil, "", cloud.Errorf(cloud.Unavailable, "%s: the listing is incomplete: %s", op, d.secrets.Clean(missing, 256))
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
		err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: c.path, query: pageQuery(filter, next, size), out: &page})
		return page.Items, page.NextPageToken, page.check(d, op, err)
	})
}

// check returns err, or an error if the page says that something is missing.
func (l *listed[T]) check(d *driver, op string, err error) error {
	switch w := l.Warning; {
	case err != nil:
		return err
	case !strings.HasPrefix(l.Kind, "compute#"):
		return cloud.Errorf(cloud.Unknown, "%s: unexpected response without a list (not Compute Engine): check spec.gcp", op)
	case w != nil && w.Code != noResults:
		return cloud.Errorf(cloud.Unavailable, "%s: the listing is incomplete: %s", op, d.secrets.Clean(w.Code+": "+w.Message, 256))
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
