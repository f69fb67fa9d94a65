// SPDX-License-Identifier: Apache-2.0

package gcp

import (
	"context"
	"crypto/tls"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

type driver struct {
	account    *infrav1.GCPAccount
	api        driverkit.JSON
	endpoint   string
	credential *credential
	tokens     tokenCache
	guard      driverkit.LoginGuard
	sizes      driverkit.PageSizes

	zones            driverkit.Memo[region]
	machineTypes     driverkit.Memo[machineType]
	leftovers        driverkit.Memo[[]disk]
	instancesByToken driverkit.Memo[map[string]instance] // of machines that are being made

	started     time.Time
	creations   creations
	preemptions preemptions
	balancers   balancers
	poll        time.Duration // pollInterval
	replay      time.Duration // replayAfter
	partsPoll   time.Duration // partsPoll
	readLag     time.Duration
	lastDelete  atomic.Int64 // time of the last delete, in Unix nanoseconds
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	account, err := union.AccountOf(cfg.Account)
	if err != nil {
		return nil, err
	}
	if cfg.Credentials == nil && (account.Endpoint != "" || account.CABundle != "" || universeOf(account) != googleapis) {
		return nil, cloud.Invalid("a custom endpoint, caBundle or universe needs its own credentials")
	}
	pool, err := driverkit.CertPool(account.CABundle)
	if err != nil {
		return nil, err
	}
	var trust *tls.Config
	if pool != nil {
		trust = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	transport, err := cfg.Connect(trust)
	if err != nil {
		return nil, err
	}
	client := driverkit.Client(transport)
	credential, err := newCredential(account, cfg.Credentials, client)
	if err != nil {
		return nil, err
	}
	endpoint := account.Endpoint
	if endpoint == "" {
		endpoint = "https://compute." + universeOf(account)
	}
	return &driver{
		account: account, endpoint: endpoint, started: time.Now(), credential: credential, tokens: newTokenCache(),
		api:          driverkit.JSON{Client: client, Secrets: credential.secrets, Cloud: "Compute Engine", Settings: "spec.cloud.gcp"},
		zones:        driverkit.Memo[region]{TTL: zonesTTL},
		machineTypes: driverkit.Memo[machineType]{TTL: machineTypeTTL},
		leftovers:    driverkit.Memo[[]disk]{TTL: leftoversTTL},
		poll:         pollInterval,
		replay:       replayAfter,
		partsPoll:    partsPoll,
		readLag:      readLag,
	}, nil
}

// Probe reads the region, which says where the credentials lead, and which zones there are.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	r, err := d.readRegion(ctx)
	if err != nil {
		return cloud.Info{}, err
	}
	return cloud.Info{Place: strings.Join([]string{"gcp", universeOf(d.account), d.account.ProjectID, d.account.Region}, ":"),
		FailureDomains: r.Zones}, nil
}

// readRegion returns the region with the names of its zones, sorted.
func (d *driver) readRegion(ctx context.Context) (r region, err error) {
	const op = "GetRegion"
	err = d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "regions/" + d.account.Region, out: &r})
	switch {
	case driverkit.RefusedAs(err, notFound):
		return region{}, cloud.Errorf(cloud.InvalidSpec, "project %q or region %q does not exist: check spec.cloud.gcp", d.account.ProjectID,
			d.account.Region)
	case err != nil:
		return region{}, err
	case r.Name != d.account.Region || !strings.HasSuffix(r.SelfLink, "/projects/"+d.account.ProjectID+"/regions/"+r.Name):
		return region{}, d.api.Unexpected(op, "without the region")
	}
	for i, zone := range r.Zones {
		r.Zones[i] = lastPart(zone)
	}
	slices.Sort(r.Zones)
	return r, nil
}

// zoneOf returns the zone of a request. The engine always chooses one.
func (d *driver) zoneOf(ctx context.Context, req cloud.Request) (string, error) {
	if zone := req.FailureDomain; zone != "" {
		if !strings.HasPrefix(zone, d.account.Region+"-") || strings.ContainsAny(zone, "/?#%") {
			return "", cloud.Errorf(cloud.InvalidSpec, "failure domain %q is not a zone of region %s", zone, d.account.Region)
		}
		return zone, nil
	}
	r, err := d.zones.Get(ctx, "", d.readRegion)
	if err == nil && len(r.Zones) == 0 {
		err = cloud.Errorf(cloud.NoCapacity, "region %s has no zones", d.account.Region)
	}
	if err != nil {
		return "", err
	}
	return r.Zones[0], nil
}

// Ensure creates the machine with one POST. Its answer is an operation that may still fail, and
// then leaves nothing. So until Compute Engine has found capacity, Ensure returns Unavailable. All
// machines in this state share one listing.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	spec, err := union.MachineOf(req.Spec)
	if err != nil {
		return cloud.Resource{}, err
	}
	value, _ := encodeUserData(req.UserData)
	if err := driverkit.MaxUserData(maxMetadataValue)([]byte(value)); err != nil {
		return cloud.Resource{}, cloud.Invalid("%s", err)
	}
	zone, err := d.zoneOf(ctx, req)
	if err != nil {
		return cloud.Resource{}, err
	}
	known := d.creations.get(req, zone)
	if !known.began.IsZero() {
		found, err := d.findByToken(ctx, req)
		switch {
		case err != nil:
			return cloud.Resource{}, asUnknown(err)
		case found != nil:
			return d.made(req, found)
		case time.Since(known.asked) < d.replay:
			return cloud.Resource{}, d.beingMade(req, zone)
		}
	}
	return d.insert(ctx, req, spec, zone, known)
}

// insert sends the request. Sent again, it returns the operation as it is by then.
func (d *driver) insert(ctx context.Context, req cloud.Request, spec *infrav1.GCPMachine, zone string,
	known creation) (cloud.Resource, error) {
	var answer operation
	err := d.call(ctx, request{
		op: createInstance, class: cloud.ClassCreate, method: http.MethodPost, path: "zones/" + zone + "/instances",
		query: url.Values{"requestId": {requestID(req, zone, known.failures)}}, in: d.instanceRequest(req, spec, zone), out: &answer,
	})
	switch {
	case driverkit.RefusedAs(err, alreadyExists):
		return d.adopt(ctx, req, zone)
	case err != nil:
		return cloud.Resource{}, err
	case answer.Name == "" || answer.TargetID == "" || answer.Status == "":
		return cloud.Resource{}, d.api.Unexpected(createInstance, "without an operation")
	}
	known.asked = time.Now()
	failed := d.outcome(createInstance, &answer)
	switch {
	case failed != nil:
		known.began, known.failures = time.Time{}, known.failures+1
		d.creations.Put(req.Token, known, creationMemory)
		switch {
		case driverkit.RefusedAs(failed, resourceExists):
			return d.adopt(ctx, req, zone)
		case d.isOld(&answer) && known.failures <= maxReplays:
			return d.insert(ctx, req, spec, zone, known)
		}
		return cloud.Resource{}, failed
	case answer.Status != "DONE":
		if known.began.IsZero() {
			known.began = known.asked
		}
		d.creations.Put(req.Token, known, creationMemory)
		return cloud.Resource{}, d.beingMade(req, zone)
	}
	found, err := d.get(ctx, zone, answer.TargetID)
	switch {
	case err != nil:
		return cloud.Resource{}, asUnknown(err)
	case found == nil:
		d.creations.Forget(req.Token)
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict,
			"%s: the instance %s was created in %s and is gone: delete the Machine to replace it", createInstance, instanceName(req), zone)
	}
	return d.made(req, found)
}

// isOld reports whether an operation is of an earlier process, which counted the failures that are
// part of the request's ID. Compute Engine then has not looked at this request.
func (d *driver) isOld(o *operation) bool {
	return o.InsertTime != nil && o.InsertTime.Before(d.started.Add(-maxSkew))
}

// made returns an instance, unless Compute Engine may still refuse it.
func (d *driver) made(req cloud.Request, found *instance) (cloud.Resource, error) {
	r := d.resource(found)
	switch {
	case r.Token != req.Token || r.OwnershipID != req.OwnershipID:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict,
			"an instance %s exists in %s and does not belong to this machine: delete it, or the Machine", instanceName(req), r.FailureDomain)
	case found.isUndecided() && d.creations.isOpen(req.Token):
		return cloud.Resource{}, d.beingMade(req, r.FailureDomain)
	}
	d.creations.Forget(req.Token)
	return r, nil
}

func (d *driver) beingMade(req cloud.Request, zone string) error {
	return &cloud.Error{Code: cloud.Unavailable, RetryAfter: d.poll, Message: createInstance + ": Compute Engine is creating instance " +
		instanceName(req) + " in " + zone}
}

// asUnknown returns the error of a read after a create, whose outcome it leaves open.
func asUnknown(err error) error {
	switch cloud.CodeOf(err) {
	case cloud.NotFound, cloud.InvalidSpec, cloud.QuotaExceeded, cloud.NoCapacity, cloud.Conflict:
		return &cloud.Error{Code: cloud.Unknown, Message: err.Error(), Err: err}
	}
	return err
}

// adopt returns the instance with the name if an earlier request made it.
func (d *driver) adopt(ctx context.Context, req cloud.Request, zone string) (cloud.Resource, error) {
	found, err := d.get(ctx, zone, instanceName(req))
	switch {
	case err != nil:
		return cloud.Resource{}, asUnknown(err)
	case found == nil:
		return cloud.Resource{}, cloud.Errorf(cloud.Unavailable, "CreateInstance: the instance %s existed in %s, and is gone now",
			instanceName(req), zone)
	}
	return d.made(req, found)
}

// findByToken returns the instance of a machine that is being made; nil: reads do not show it yet.
// A read of a moment ago is enough, and one that took long is enough for longer.
func (d *driver) findByToken(ctx context.Context, req cloud.Request) (*instance, error) {
	seen, err := d.instancesByToken.Get(ctx, "", func(ctx context.Context) (map[string]instance, error) {
		began := time.Now()
		all, err := d.instances(ctx, tokensFilter(d.creations.underWay()))
		d.instancesByToken.TTL = max(d.poll, min(cloud.CooldownFactor*time.Since(began), maxCooldown)) // under the lock of the only key
		seen := map[string]instance{}
		for _, i := range all {
			seen[i.Labels[cloud.TagToken]] = i
		}
		return seen, err
	})
	found, ok := seen[req.Token]
	if err != nil || !ok {
		return nil, err
	}
	return &found, nil
}

// get reads one instance by its number or name; nil: there is none. Compute Engine then names the
// instance as it was asked for (https://github.com/elastic/beats/issues/15613). A 404 that names
// something else, such as the project, is an error.
func (d *driver) get(ctx context.Context, zone, name string) (*instance, error) {
	const op = "GetInstance"
	var found instance
	err := d.call(ctx, request{op: op, class: cloud.ClassRead, method: http.MethodGet, path: "zones/" + zone + "/instances/" +
		url.PathEscape(name), out: &found})
	switch {
	case driverkit.RefusedAs(err, notFound) && strings.Contains(err.Error(), "/zones/"+zone+"/instances/"+name+"' was not found"):
		return nil, nil
	case err != nil:
		return nil, err
	case found.ID == "" || found.Name == "" || lastPart(found.Zone) != zone:
		return nil, d.api.Unexpected(op, "without the instance")
	}
	return &found, nil
}

// instances lists the instances that a filter selects and that carry an ownership ID, each once.
func (d *driver) instances(ctx context.Context, filter string) ([]instance, error) {
	all, err := listAll(ctx, d, "ListInstances", allInstances, filter, func(s scope) []instance { return s.Instances })
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(i instance) bool {
		drop := i.ID == "" || i.Name == "" || i.Labels[cloud.TagOwnership] == "" || seen[i.ID]
		seen[i.ID] = true
		return drop
	}), err
}

// disks lists the disks that a filter selects, that carry an ownership ID and that no instance
// uses, each once.
func (d *driver) disks(ctx context.Context, filter string) ([]disk, error) {
	all, err := listAll(ctx, d, "ListDisks", allDisks, filter, func(s scope) []disk { return s.Disks })
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(k disk) bool {
		key := k.Zone + "/" + k.Name
		drop := k.Name == "" || k.Labels[cloud.TagOwnership] == "" || len(k.Users) > 0 || seen[key]
		seen[key] = true
		return drop
	}), err
}

// List reads the instances on every call, and disks every few minutes and for some minutes after a
// delete. It leaves out instances that Ensure has not returned because Compute Engine may still
// refuse them: a refusal would look like the end of an instance.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	found, err := d.instances(ctx, ownFilter)
	if err != nil {
		return nil, err
	}
	if time.Since(time.Unix(0, d.lastDelete.Load())) < leftoversTTL {
		d.leftovers.Forget("")
	}
	left, err := d.leftovers.Get(ctx, "", func(ctx context.Context) ([]disk, error) { return d.disks(ctx, ownFilter) })
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(i instance) bool {
		token := i.Labels[cloud.TagToken]
		if i.isUndecided() && d.creations.isOpen(token) {
			return true
		}
		d.creations.Forget(token)
		return false
	})
	all := d.resources(ctx, found, nil)
	for i := range left {
		all = append(all, leftover(&left[i]))
	}
	balancers, err := d.listBalancers(ctx)
	return append(all, balancers...), err
}

// Describe reads the instances. It looks for disks only if a token has no instance: until then they
// belong to the instance. Of such a token without a provider ID, it also looks for a load balancer.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) (all []cloud.Resource, err error) {
	wanted, nameless := map[string]bool{}, map[string]bool{}
	for _, ref := range refs {
		if ref.Token != "" {
			wanted[ref.Token] = true
			nameless[ref.Token] = ref.ProviderID == ""
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	found, err := d.instances(ctx, tokensFilter(wanted))
	if err != nil {
		return nil, err
	}
	missing := map[string]bool{}
	for token := range wanted {
		missing[token] = true
	}
	found = slices.DeleteFunc(found, func(i instance) bool {
		token := i.Labels[cloud.TagToken]
		delete(missing, token)
		return !wanted[token]
	})
	all = d.resources(ctx, found, wanted)
	if len(missing) == 0 {
		return all, nil
	}
	left, err := d.disks(ctx, tokensFilter(missing))
	if err != nil {
		return nil, err
	}
	for i := range left {
		if missing[left[i].Labels[cloud.TagToken]] {
			all = append(all, leftover(&left[i]))
		}
	}
	maps.DeleteFunc(missing, func(token string, _ bool) bool { return !nameless[token] })
	balancers, err := d.balancersOf(ctx, missing, driverkit.RecordedBalancers(refs))
	return append(all, balancers...), err
}

// Find implements cloud.Finder.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	zone, name, _ := strings.Cut(strings.TrimPrefix(ref.ProviderID, "gce://"+d.account.ProjectID+"/"), "/")
	if ref.ProviderID != providerID(d.account.ProjectID, zone, name) || zone == "" || name == "" {
		return nil, cloud.Invalid("provider ID %q is not of an instance in the account's project", cloud.Clip(ref.ProviderID, 256))
	}
	found, err := d.get(ctx, zone, name)
	if err != nil || found == nil {
		return nil, err
	}
	r := d.resource(found)
	return &r, nil
}

// Delete makes one call for each resource. Compute Engine deletes the disks of an instance with it.
func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	d.lastDelete.Store(time.Now().UnixNano())
	return driverkit.InParallel(deletesAtOnce, resources, func(r cloud.Resource) error { return d.remove(ctx, r) })
}

// remove names an instance by its number, which is never used again: its name may be another's by
// now.
func (d *driver) remove(ctx context.Context, r cloud.Resource) error {
	op, collection := "DeleteInstance", "instances"
	switch r.Kind {
	case cloud.KindInstance:
		d.preemptions.deleted(r.ID)
	case cloud.KindDisk:
		op, collection = "DeleteDisk", "disks"
	case cloud.KindBalancer:
		return d.deleteBalancer(ctx, r)
	default:
		return cloud.Invalid("delete %s %s: the kind is not supported on GCP", r.Kind, r.ID)
	}
	zone, name, _ := strings.Cut(r.ID, "/")
	_, err := d.change(ctx, request{op: op, class: cloud.ClassDelete, method: http.MethodDelete, path: "zones/" + zone + "/" + collection +
		"/" + url.PathEscape(name)})
	if driverkit.RefusedAs(err, notFound) {
		return nil
	}
	return err
}
