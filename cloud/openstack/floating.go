// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// The driver creates a floating IP for an existing port whose description announces it. That port
// is deleted last: see dependants.

// floatingIP holds the fields of Neutron's that the driver reads. Its description is the portName.
type floatingIP struct {
	ID          string    `json:"id"`
	PortID      string    `json:"port_id"`
	Description string    `json:"description"`
	Address     string    `json:"floating_ip_address"`
	CreatedAt   time.Time `json:"created_at"`
}

// adoptFloatingIPs returns the machine's floating IPs. Fresh ports, given by index, have none.
func (d *driver) adoptFloatingIPs(ctx context.Context, req cloud.Request, wanted []infrav1.OpenStackPort,
	fresh map[int]bool) ([]floatingIP, error) {
	for i := range wanted {
		if wanted[i].FloatingNetwork != "" && !fresh[i] {
			return d.floatingIPs(ctx, url.Values{"description": {portName(req.Token)}}, nil)
		}
	}
	return nil, nil
}

// ensureFloatingIPs creates missing floating IPs and returns all that exist, even after an error.
func (d *driver) ensureFloatingIPs(ctx context.Context, req cloud.Request, wanted []infrav1.OpenStackPort, ports []port, there []floatingIP,
	mine *creation) ([]floatingIP, error) {
	for i := range wanted {
		if wanted[i].FloatingNetwork == "" || slices.ContainsFunc(there, func(f floatingIP) bool { return f.PortID == ports[i].ID }) {
			continue
		}
		pool, err := d.networkID(ctx, wanted[i].FloatingNetwork)
		if err != nil {
			return there, err
		}
		made, err := d.createFloatingIP(ctx, req.Token, pool, ports[i].ID)
		mine.recordError(err)
		if err != nil {
			return there, err
		}
		there = append(there, made)
	}
	return there, nil
}

// createFloatingIP is "Create floating IP" in Neutron's API reference, which refuses a second
// floating IP for the same address of a port.
func (d *driver) createFloatingIP(ctx context.Context, token, pool, port string) (floatingIP, error) {
	op := operation{"CreateFloatingIP", cloud.ClassCreate, network, http.MethodPost}
	var answer struct {
		Made floatingIP `json:"floatingip"`
	}
	err := d.call(ctx, op, "floatingips", map[string]any{"floatingip": map[string]string{
		"floating_network_id": pool, "port_id": port, "description": portName(token),
	}}, &answer)
	if err == nil && answer.Made.ID == "" {
		err = unexpectedResponse(op)
	}
	return answer.Made, err
}

// floatingIPs reads all pages of the project's floating IPs that match the query.
func (d *driver) floatingIPs(ctx context.Context, query url.Values, maxPages *int) ([]floatingIP, error) {
	op := operation{"ListFloatingIPs", cloud.ClassRead, network, http.MethodGet}
	query.Set("project_id", d.account.ProjectID)
	query["fields"] = []string{"id", "port_id", "description", "floating_ip_address", "created_at"}
	return pages(ctx, d, op, maxPages, func(ctx context.Context, marker string, limit int) ([]floatingIP, bool, error) {
		var page struct {
			FloatingIPs *[]floatingIP `json:"floatingips"`
			Links       []link        `json:"floatingips_links"`
		}
		if err := d.call(ctx, op, "floatingips?"+pageOf(marker, limit, query).Encode(), nil, &page); err != nil {
			return nil, false, err
		}
		return completePage(op, page.FloatingIPs, page.Links)
	}, func(f floatingIP) string { return f.ID })
}

// addresses returns the floating IPs that the ports announce.
func (d *driver) addresses(ctx context.Context, ports []port, tokens []string, owners map[string]string,
	maxPages *int) (all []cloud.Resource, err error) {
	if !slices.ContainsFunc(ports, func(p port) bool { return p.floating() }) {
		return nil, nil
	}
	query := url.Values{}
	if len(tokens) > 0 {
		query = url.Values{"description": portNames(tokens)}
	}
	found, err := d.floatingIPs(ctx, query, maxPages)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if owner := owners[f.Description]; owner != "" {
			all = append(all, cloud.Resource{Kind: cloud.KindAddress, ID: f.ID, Token: tokenOf(f.Description), OwnershipID: owner,
				CreatedAt: f.CreatedAt})
		}
	}
	return all, nil
}

// describedAddresses returns the floating IPs with these descriptions that are wanted.
func (d *driver) describedAddresses(ctx context.Context, owners map[string]cloud.Reference,
	wanted func(floatingIP) bool) (all []cloud.Resource, err error) {
	for some := range slices.Chunk(slices.Sorted(maps.Keys(owners)), maxTokens) {
		found, err := d.floatingIPs(ctx, url.Values{"description": some}, nil)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if ref, is := owners[f.Description]; is && wanted(f) {
				all = append(all, cloud.Resource{Kind: cloud.KindAddress, ID: f.ID, Token: ref.Token, OwnershipID: ref.OwnershipID,
					CreatedAt: f.CreatedAt})
			}
		}
	}
	return all, nil
}
