// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/drover-io/drover/cloud"
)

// Nova's listings omit servers of a cell that is down, with status 200: always if a listing has a
// filter or a limit ("Handling Down Cells" in its API guide). So a listing by tags does not prove
// absence. A read by ID returns 404 only if the server is gone.

// unknownStatus is the status of a server whose cell is down.
const unknownStatus = "UNKNOWN"

// checkAbsent checks machines without a server in the listings before they are reported as absent.
// It returns servers that exist nevertheless, and an error if a server may exist or may still be
// created.
func (d *driver) checkAbsent(ctx context.Context, refs []cloud.Reference, found []cloud.Resource) ([]cloud.Resource, error) {
	hasServer, hasAny := map[string]bool{}, map[string]bool{}
	for _, r := range found {
		hasAny[r.Token] = true
		hasServer[r.Token] = hasServer[r.Token] || r.Kind == cloud.KindInstance
	}
	var recorded []cloud.Reference
	var recordless []string
	for _, ref := range refs {
		id := serverID(ref.ProviderID)
		switch {
		case ref.Token == "" || hasServer[ref.Token] || d.deleted.Has(id):
		case id != "":
			recorded = append(recorded, ref)
		case !hasAny[ref.Token] && !ref.Balancer:
			recordless = append(recordless, ref.Token)
		}
	}
	if err := d.checkPending(ctx, recordless); err != nil {
		return nil, err
	}
	return d.byID(ctx, recorded)
}

// checkPending returns an error while a create for one of the tokens may still take effect,
// including one that an earlier process may have sent.
func (d *driver) checkPending(ctx context.Context, tokens []string) error {
	pending, inherited := time.Duration(0), false
	for _, token := range tokens {
		pending = max(pending, d.creating.pendingFor(token))
		inherited = inherited || !d.deleted.Has(token)
	}
	if inherited {
		pending = max(pending, time.Until(d.inheritedUntil))
	}
	switch {
	case pending > 0:
		return pendingCreate(pending)
	case inherited:
		return d.cellsAnswer(ctx)
	}
	return nil
}

// pendingCreate returns the error for a create that may still take effect.
func pendingCreate(pending time.Duration) error {
	return &cloud.Error{Code: cloud.Unavailable, RetryAfter: pending,
		Message: "waiting to learn whether an earlier create makes a server: its response was lost"}
}

// cellsAnswer returns an error while the project has a server in a cell that is down, because the
// wanted server may be there, too. The listing has no filter and no limit, so it shows such
// servers, if they fit on Nova's first page.
func (d *driver) cellsAnswer(ctx context.Context) error {
	down, err := d.cells.Get(ctx, "", func(ctx context.Context) (bool, error) {
		op := operation{"ListServerStates", cloud.ClassRead, computeStein, http.MethodGet}
		var page struct {
			Servers *[]server `json:"servers"`
		}
		err := d.call(ctx, op, "servers", nil, &page)
		switch {
		case isTooOld(err):
			return false, nil
		case err == nil && page.Servers == nil:
			err = unexpectedResponse(op)
		case err == nil:
			for _, s := range *page.Servers {
				if s.Status == unknownStatus {
					return true, nil
				}
			}
		}
		return false, err
	})
	if err == nil && down {
		err = cloud.Errorf(cloud.Unavailable, "a Nova cell is down: it may hold a server that listings omit")
	}
	return err
}

// byID reads each server by ID, maxParallelCalls at a time, and returns those that exist.
func (d *driver) byID(ctx context.Context, refs []cloud.Reference) (found []cloud.Resource, err error) {
	var mu sync.Mutex
	var reads cloud.Group
	reads.SetLimit(maxParallelCalls)
	for _, ref := range refs {
		reads.Go(func() error {
			r, err := d.readRecorded(ctx, ref)
			if err != nil || r.ID == "" {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, r)
			return nil
		})
	}
	err = reads.Wait()
	return found, err
}

// readRecorded reads the server of a ProviderID. It returns none if that is gone or has other tags.
func (d *driver) readRecorded(ctx context.Context, ref cloud.Reference) (cloud.Resource, error) {
	id := serverID(ref.ProviderID)
	s, exists, err := d.findServer(ctx, id)
	switch {
	case err != nil && !isServerError(err):
		return cloud.Resource{}, err
	case err == nil && !exists:
		d.recordDeleted(id, "")
		return cloud.Resource{}, nil
	case err != nil || s.Status == unknownStatus: // without metadata
		return cloud.Resource{
			Kind: cloud.KindInstance, ID: id, ProviderID: ref.ProviderID, Token: ref.Token, OwnershipID: ref.OwnershipID,
			CreatedAt: s.Created, State: cloud.StateRunning, Notice: "the server's state is unknown: its Nova cell is down",
		}, nil
	}
	r := d.resource(&s)
	if r.Token != ref.Token || ref.OwnershipID != "" && r.OwnershipID != ref.OwnershipID {
		return cloud.Resource{}, nil
	}
	return r, nil
}

// Find implements cloud.Finder. Of a server in a cell that is down, nothing is known.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	id := serverID(ref.ProviderID)
	if id == "" {
		return nil, cloud.Invalid("provider ID %q is not of a server", cloud.Clip(ref.ProviderID, 256))
	}
	s, exists, err := d.findServer(ctx, id)
	switch {
	case err != nil || !exists:
		return nil, err
	case s.Status == unknownStatus:
		return nil, cloud.Errorf(cloud.Unavailable, "the state of server %s is unknown: its Nova cell is down", cloud.Clip(id, 64))
	}
	r := d.resource(&s)
	return &r, nil
}

// findServer reads a server by ID. exists is false, without an error, if Nova says that it has
// none.
func (d *driver) findServer(ctx context.Context, id string) (s server, exists bool, err error) {
	s, err = d.getServer(ctx, computeStein, id)
	if isTooOld(err) {
		s, err = d.getServer(ctx, compute, id)
	}
	if isServerNotFound(err, id) {
		return server{}, false, nil
	}
	return s, err == nil, err
}

// isServerNotFound reports whether Nova has said that it has no server with the ID, and not that
// the call leads nowhere: https://docs.openstack.org/api-guide/compute/faults.html.
func isServerNotFound(err error, id string) bool {
	var refusal refusal
	return errors.As(err, &refusal) && refusal.status == http.StatusNotFound && refusal.kind == "itemNotFound" &&
		strings.Contains(refusal.message, id)
}

func (d *driver) getServer(ctx context.Context, service, id string) (server, error) {
	op := operation{"GetServer", cloud.ClassRead, service, http.MethodGet}
	var answer struct {
		Server server `json:"server"`
	}
	err := d.call(ctx, op, "servers/"+url.PathEscape(id), nil, &answer)
	if err == nil && answer.Server.ID == "" {
		err = unexpectedResponse(op)
	}
	return answer.Server, err
}

// isTooOld reports whether Nova does not support the microversion of the call.
func isTooOld(err error) bool {
	var refusal refusal
	return errors.As(err, &refusal) && refusal.status == http.StatusNotAcceptable
}

// isServerError reports whether Nova failed with status 500, as it does in older microversions if
// the cell is down.
func isServerError(err error) bool {
	var refusal refusal
	return errors.As(err, &refusal) && refusal.status == http.StatusInternalServerError
}

// serverID returns the ID in an OpenStack ProviderID, or "" for another ProviderID.
func serverID(providerID string) string {
	rest, ok := strings.CutPrefix(providerID, "openstack://")
	if !ok {
		return ""
	}
	return rest[strings.LastIndex(rest, "/")+1:]
}

// recordDeleted records a server, or a load balancer, that Nova does not find by ID or whose
// deletion was accepted: neither happens while the cell is down. The create with its token, if that
// is known, has taken effect. Forgetting it only costs a call.
func (d *driver) recordDeleted(id, token string) {
	for _, key := range []string{id, token} {
		if key != "" {
			d.deleted.Put(key, struct{}{}, goneTTL)
		}
	}
}
