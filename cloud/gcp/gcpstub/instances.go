// SPDX-License-Identifier: Apache-2.0

package gcpstub

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// base is the URL of the project's resources.
func (c *Cloud) base() string {
	return "https://www.googleapis.com/compute/v1/projects/" + c.options.Project
}

// instance is an instance.
type instance struct {
	zone, name string
	id         uint64
	model      map[string]any // as it was sent
	made       time.Time
	started    time.Time // when it last was
	decided    time.Time // when capacity is found, or not
	running    time.Time // when its creation ends
	gone       time.Time // when its deletion ends; zero: it is not being deleted
	failed     string    // the code with which its creation fails
	status     string    // "" follows from the rest
	maintained string    // when the maintenance of its host begins, as Google writes it; "": none is announced
	ip         string
	timer      *time.Timer // until the guest boots
	off        func()      // switches the guest off
}

// operation is the progress of a create or a delete.
type operation struct {
	id         uint64
	kind       string
	zone       string // "" for one that is in no zone
	collection string // of what it changes
	request    string
	target     uint64
	name       string
	started    time.Time
	ends       time.Time
	failed     string
}

// disk is a persistent disk.
type disk struct {
	zone, name string
	id         uint64
	labels     any
	made       time.Time
	owner      *instance
	cascades   bool
}

func (c *Cloud) number() uint64 {
	c.numbers++
	return c.numbers
}

// insert is "instances.insert".
func (c *Cloud) insert(in call) (any, *failure) {
	request := in.is("requestId")
	if request == "" {
		c.objections = append(c.objections, "instances.insert without requestId")
	}
	if old := c.requests[request]; old != nil {
		return old.model(c.base()), nil
	}
	var model map[string]any
	if err := json.Unmarshal(in.body, &model); err != nil {
		return nil, refuse(http.StatusBadRequest, "parseError", "Parse Error")
	}
	name := fmt.Sprint(model["name"])
	if c.instances[in.zone+"/"+name] != nil {
		return nil, refuse(http.StatusConflict, "alreadyExists", "The resource 'projects/%s/zones/%s/instances/%s' already exists",
			c.options.Project, in.zone, name)
	}
	if fail := c.check(in.zone, model); fail != nil {
		return nil, fail
	}
	now := time.Now()
	i := &instance{
		zone: in.zone, name: name, id: c.number(), model: model, made: now, started: now, decided: now.Add(c.options.Boot / 2),
		running: now.Add(c.options.Boot),
		failed:  c.late, ip: fmt.Sprintf("10.%d.%d.%d", c.options.Network, c.numbers/250%250, c.numbers%250+4),
	}
	if c.birth != "" && c.birth != Lifeless {
		i.failed = c.birth
	}
	if c.exhausted[in.zone] {
		i.failed = "ZONE_RESOURCE_POOL_EXHAUSTED"
	}
	c.instances[in.zone+"/"+name] = i
	if i.failed == "" {
		c.made++
		c.makeDisks(i)
	}
	if c.birth != Lifeless {
		c.boot(i)
	}
	op := &operation{id: c.number(), kind: "insert", zone: in.zone, request: request, collection: "instances", target: i.id, name: name,
		started: now, ends: i.running, failed: i.failed}
	c.requests[request] = op
	c.operations = append(c.operations, op)
	return op.model(c.base()), nil
}

var resourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// check refuses what Compute Engine refuses at once.
func (c *Cloud) check(zone string, model map[string]any) *failure {
	machine := fmt.Sprint(model["machineType"])
	kind, known := strings.CutPrefix(machine, "zones/"+zone+"/machineTypes/")
	switch {
	case !resourceName.MatchString(fmt.Sprint(model["name"])):
		return refuse(400, "invalid", "Invalid value for field 'resource.name': '%v'.", model["name"])
	case !known:
		return refuse(400, "invalid", "Invalid value for field 'resource.machineType': '%s'. The URL is malformed.", machine)
	case catalog()[kind] == nil || catalog()[kind]["only"] != nil && catalog()[kind]["only"] != zone:
		return refuse(400, "invalid", "Invalid value for field 'resource.machineType': '%s'. Machine type with name '%s' does not exist in zone '%s'.", machine, kind, zone)
	case c.quota > 0 && len(c.instances) >= c.quota:
		return refuse(403, "quotaExceeded", "Quota 'INSTANCES' exceeded. Limit: %d in region %s.", c.quota, Region)
	}
	for i, raw := range list(model, "disks") {
		d, _ := raw.(map[string]any)
		params := object(d, "initializeParams")
		source := fmt.Sprint(params["sourceImage"])
		image := "projects/" + c.options.Project + "/global/images/" + Image
		if i == 0 && params["sourceSnapshot"] == nil && source != image && source != "projects/"+ImageProject+"/global/images/family/"+Image {
			return refuse(404, "notFound", "The resource '%s' was not found", source)
		}
	}
	for _, raw := range list(model, "networkInterfaces") {
		nic, _ := raw.(map[string]any)
		if subnet := nic["subnetwork"]; subnet != nil && subnet != "projects/"+c.options.Project+"/regions/"+Region+"/subnetworks/"+Subnet {
			return refuse(404, "notFound", "The resource '%v' was not found", subnet)
		}
	}
	total := 0
	for _, raw := range list(object(model, "metadata"), "items") {
		item, _ := raw.(map[string]any)
		size := len(fmt.Sprint(item["value"]))
		if total += size; size > 256<<10 || total > 512<<10 {
			return refuse(400, "invalid", "Value for field 'resource.metadata.items[0].value' is too large: maximum size 262144 character(s); actual size %d.", size)
		}
	}
	return nil
}

func (c *Cloud) makeDisks(i *instance) {
	for n, raw := range list(i.model, "disks") {
		d, _ := raw.(map[string]any)
		if d["type"] == "SCRATCH" {
			continue
		}
		name := i.name
		if n > 0 {
			name = fmt.Sprintf("%s-%d", i.name, n)
		}
		c.disks[i.zone+"/"+name] = &disk{
			zone: i.zone, name: name, id: c.number(), labels: object(d, "initializeParams")["labels"], made: i.made, owner: i,
			cascades: d["autoDelete"] == true,
		}
	}
}

// removeEnded removes instances that failed, and those whose deletion has ended. The caller holds
// the lock.
func (c *Cloud) removeEnded() {
	defer c.settleParts()
	now := time.Now()
	for key, i := range c.instances {
		refused := i.failed != "" && !now.Before(i.running)
		if !refused && (i.gone.IsZero() || now.Before(i.gone)) {
			continue
		}
		delete(c.instances, key)
		c.buried = append(c.buried, i)
		for key, d := range c.disks {
			switch {
			case d.owner != i:
			case d.cascades && !c.options.Keep:
				delete(c.disks, key)
			default:
				d.owner = nil
			}
		}
	}
}

func (o *operation) model(base string) map[string]any {
	scope := base + "/global"
	if o.zone != "" {
		scope = base + "/zones/" + o.zone
	}
	out := map[string]any{
		"kind": "compute#operation", "id": strconv.FormatUint(o.id, 10), "name": fmt.Sprintf("operation-%d", o.id),
		"operationType": o.kind, "targetId": strconv.FormatUint(o.target, 10), "targetLink": scope + "/" + o.collection + "/" + o.name,
		"status": "RUNNING", "progress": 0, "insertTime": stamp(o.started), "startTime": stamp(o.started), "user": "nodes@example.com",
		"selfLink": scope + "/operations/" + fmt.Sprintf("operation-%d", o.id),
	}
	if o.zone != "" {
		out["zone"] = scope
	}
	if o.kind == preempted {
		out["user"], out["statusMessage"] = "system", "Instance was preempted."
	}
	if o.request != "" {
		out["clientOperationId"] = o.request
	}
	if time.Now().Before(o.ends) {
		return out
	}
	out["status"], out["progress"], out["endTime"] = "DONE", 100, stamp(o.ends)
	if o.failed != "" {
		out["httpErrorStatusCode"], out["httpErrorMessage"] = 503, "SERVICE UNAVAILABLE"
		out["error"] = map[string]any{"errors": []any{map[string]any{
			"code": o.failed, "message": "The zone '" + o.zone + "' does not have enough resources available to fulfill the request.",
		}}}
	}
	return out
}

// stamp writes a time as Google does: with an offset.
func stamp(t time.Time) string {
	return t.In(time.FixedZone("", -8*3600)).Format("2006-01-02T15:04:05.000-07:00")
}

func (i *instance) state() string {
	now := time.Now()
	switch {
	case !i.gone.IsZero():
		return "STOPPING"
	case i.status != "":
		return i.status
	case now.Before(i.decided), i.failed != "":
		return "PROVISIONING"
	case now.Before(i.running):
		return "STAGING"
	}
	return "RUNNING"
}

// answer returns an instance as Google answers.
func (i *instance) answer(base string) map[string]any {
	var out map[string]any
	text, err := json.Marshal(i.model)
	if err != nil || json.Unmarshal(text, &out) != nil {
		panic("the model is JSON")
	}
	out["kind"], out["id"], out["zone"] = "compute#instance", strconv.FormatUint(i.id, 10), base+"/zones/"+i.zone
	out["name"], out["status"], out["creationTimestamp"], out["lastStartTimestamp"] = i.name, i.state(), stamp(i.made), stamp(i.started)
	out["selfLink"] = base + "/zones/" + i.zone + "/instances/" + i.name
	out["labelFingerprint"] = fingerprint(i.model["labels"])
	if tags := object(out, "tags"); len(tags) > 0 {
		tags["fingerprint"] = fingerprint(list(tags, "items"))
	}
	disks := []any{}
	for n, raw := range list(out, "disks") {
		d, _ := raw.(map[string]any)
		delete(d, "initializeParams")
		d["index"], d["source"] = n, base+"/zones/"+i.zone+"/disks/"+i.name
		disks = append(disks, d)
	}
	out["disks"] = disks
	for n, raw := range list(out, "networkInterfaces") {
		nic, _ := raw.(map[string]any)
		nic["name"], nic["networkIP"] = fmt.Sprintf("nic%d", n), i.ip
		for _, raw := range list(nic, "accessConfigs") {
			raw.(map[string]any)["natIP"] = "203.0.113.7"
		}
	}
	if i.maintained != "" {
		out["resourceStatus"] = map[string]any{"upcomingMaintenance": map[string]any{
			"type": "SCHEDULED", "maintenanceStatus": "PENDING", "canReschedule": false, "windowStartTime": i.maintained,
			"maintenanceReasons": []any{"PLANNED_UPDATE"},
		}}
	}
	if i.status != "" {
		out["statusMessage"] = "Instance was stopped."
	}
	return out
}

// find finds an instance by its name or number.
func (c *Cloud) find(in call) (*instance, *failure) {
	if i := c.instances[in.zone+"/"+in.name]; i != nil {
		return i, nil
	}
	for _, i := range c.instances {
		if i.zone == in.zone && strconv.FormatUint(i.id, 10) == in.name {
			return i, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/instances/%s' was not found", c.options.Project,
		in.zone, in.name)
}

func (c *Cloud) getInstance(in call) (any, *failure) {
	i, fail := c.find(in)
	if fail != nil {
		return nil, fail
	}
	return i.answer(c.base()), nil
}

func (c *Cloud) deleteInstance(in call) (any, *failure) {
	i, fail := c.find(in)
	if fail != nil {
		return nil, fail
	}
	now := time.Now()
	i.end(c.options.Stop)
	op := &operation{id: c.number(), kind: "delete", zone: i.zone, request: in.is("requestId"), collection: "instances", target: i.id,
		name: i.name, started: now, ends: i.gone}
	c.operations = append(c.operations, op)
	return op.model(c.base()), nil
}

func (c *Cloud) serialPort(in call) (any, *failure) {
	i, fail := c.find(in)
	if fail != nil {
		return nil, fail
	}
	text := strings.Repeat("boot\n", 20_000) + "cloud-init: ready\n"
	start, err := strconv.Atoi(in.is("start"))
	if err != nil || start >= 0 {
		return nil, refuse(400, "invalid", "the stub shows only the end of the output")
	}
	text = text[max(len(text)+start, 0):]
	return map[string]any{"kind": "compute#serialPortOutput", "contents": text, "start": "0", "next": strconv.Itoa(len(text)),
		"selfLink": c.base() + "/zones/" + i.zone + "/instances/" + i.name + "/serialPort"}, nil
}

func (c *Cloud) listInstances(in call) (any, *failure) {
	var all []item
	for _, key := range slices.Sorted(maps.Keys(c.instances)) {
		if i := c.instances[key]; time.Since(i.made) >= c.options.Lag {
			all = append(all, item{i.zone, i.model["labels"], i.answer(c.base())})
		}
	}
	return c.aggregate(in, "instances", "compute#instanceAggregatedList", all)
}

func (c *Cloud) listDisks(in call) (any, *failure) {
	var all []item
	for _, key := range slices.Sorted(maps.Keys(c.disks)) {
		d := c.disks[key]
		out := map[string]any{"kind": "compute#disk", "id": strconv.FormatUint(d.id, 10), "name": d.name, "zone": c.base() + "/zones/" + d.zone,
			"creationTimestamp": stamp(d.made), "sizeGb": "10", "status": "READY"}
		if d.labels != nil {
			out["labels"] = d.labels
		}
		if d.owner != nil {
			out["users"] = []any{c.base() + "/zones/" + d.zone + "/instances/" + d.owner.name}
		}
		all = append(all, item{d.zone, d.labels, out})
	}
	return c.aggregate(in, "disks", "compute#diskAggregatedList", all)
}

func (c *Cloud) listOperations(in call) (any, *failure) {
	var all []item
	for _, o := range c.operations {
		all = append(all, item{o.zone, nil, o.model(c.base())})
	}
	return c.aggregate(in, "operations", "compute#operationAggregatedList", all)
}

func (c *Cloud) deleteDisk(in call) (any, *failure) {
	d := c.disks[in.zone+"/"+in.name]
	switch {
	case d == nil:
		return nil, refuse(http.StatusNotFound, "notFound", "The resource 'projects/%s/zones/%s/disks/%s' was not found", c.options.Project,
			in.zone, in.name)
	case d.owner != nil:
		return nil, refuse(400, "resourceInUseByAnotherResource", "The disk resource '%s' is already being used by '%s'", d.name, d.owner.name)
	}
	delete(c.disks, in.zone+"/"+in.name)
	op := &operation{id: c.number(), kind: "delete", zone: d.zone, collection: "disks", target: d.id, name: d.name, started: time.Now(),
		ends: time.Now()}
	return op.model(c.base()), nil
}

// item is one resource of a listing.
type item struct {
	zone   string
	labels any
	model  map[string]any
}

// aggregate returns one page of a listing of all zones.
func (c *Cloud) aggregate(in call, collection, kind string, all []item) (any, *failure) {
	selected, fail := filter(in.is("filter"))
	if fail != nil {
		return nil, fail
	}
	all = slices.DeleteFunc(all, func(i item) bool { return !selected(i) || c.dead[i.zone] || in.project != c.options.Project })
	size, err := strconv.Atoi(cmp.Or(in.is("maxResults"), "500"))
	if err != nil || size > 500 {
		return nil, refuse(400, "invalid", "Invalid value for field 'maxResults'.")
	}
	if c.options.PageSize > 0 {
		size = min(size, c.options.PageSize)
	}
	from, _ := strconv.Atoi(in.is("pageToken"))
	from = min(from, len(all))
	to := min(from+size, len(all))
	if c.short && from < to {
		to = from + (to-from)/2
	}
	items := map[string]any{"regions/" + Region: noResults("regions/" + Region)}
	for _, zone := range append(Zones(), "us-east1-b") {
		items["zones/"+zone] = noResults("zones/" + zone)
	}
	for zone, dead := range c.dead {
		if dead {
			delete(items, "zones/"+zone)
		}
	}
	byZone := map[string][]any{}
	for _, i := range all[from:to] {
		byZone[i.zone] = append(byZone[i.zone], i.model)
	}
	for zone, found := range byZone {
		items["zones/"+zone] = map[string]any{collection: found}
	}
	out := map[string]any{"kind": kind, "id": "projects/" + c.options.Project + "/aggregated/" + collection, "items": items,
		"selfLink": c.base() + "/aggregated/" + collection}
	if to < len(all) {
		out["nextPageToken"] = strconv.Itoa(to)
	}
	if dead := c.unreachable(); len(dead) > 0 && to == len(all) { // told on the last page
		out["unreachables"] = dead
		out["warning"] = map[string]any{"code": "UNREACHABLE", "message": "Some scopes could not be reached."}
	}
	return in.partial(out)
}

func (c *Cloud) unreachable() (all []any) {
	for _, zone := range slices.Sorted(maps.Keys(c.dead)) {
		if c.dead[zone] {
			all = append(all, "zones/"+zone)
		}
	}
	return all
}

func noResults(scope string) map[string]any {
	return map[string]any{"warning": map[string]any{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope '" + scope +
		"' on this page.",
		"data": []any{map[string]any{"key": "scope", "value": scope}}}}
}

var (
	isOfType = regexp.MustCompile(`^operationType = "([^"]*)"$`)
	hasLabel = regexp.MustCompile(`^labels\.([a-z0-9_-]+):\*$`)
	isTerm   = regexp.MustCompile(`^\((labels\.)?([a-z0-9_-]+) = "([^"]*)"\)$`)
	contains = regexp.MustCompile(`^(description) : "([^"]*)"$`)
)

// filter understands the forms of filters that the driver uses, and refuses others.
func filter(text string) (func(item) bool, *failure) {
	if m := isOfType.FindStringSubmatch(text); m != nil {
		return func(i item) bool { return i.model["operationType"] == m[1] }, nil
	}
	if m := hasLabel.FindStringSubmatch(text); m != nil {
		return func(i item) bool { l, _ := i.labels.(map[string]any); return l[m[1]] != nil }, nil
	}
	if m := contains.FindStringSubmatch(text); m != nil {
		return func(i item) bool { return strings.Contains(fmt.Sprint(i.model[m[1]]), m[2]) }, nil
	}
	if text == "" {
		return func(item) bool { return true }, nil
	}
	var terms [][]string
	for term := range strings.SplitSeq(text, " OR ") {
		m := isTerm.FindStringSubmatch(term)
		if m == nil {
			return nil, refuse(400, "invalid", "Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
		}
		terms = append(terms, m)
	}
	return func(i item) bool {
		return slices.ContainsFunc(terms, func(m []string) bool {
			of := i.model
			if m[1] != "" {
				of, _ = i.labels.(map[string]any)
			}
			return of[m[2]] == m[3]
		})
	}, nil
}

// SetStatus changes the status of an instance, such as "TERMINATED".
func (c *Cloud) SetStatus(zone, name, status string) {
	c.set(func() { c.instances[zone+"/"+name].status = status }, nil)
}

// Maintain announces maintenance of an instance's host.
func (c *Cloud) Maintain(zone, name string, from time.Time) {
	c.set(func() { c.instances[zone+"/"+name].maintained = stamp(from) }, nil)
}

// preempted is the type of the operation that reports a preemption.
const preempted = "compute.instances.preempted"

// Start starts an instance again, as another user would.
func (c *Cloud) Start(zone, name string) {
	c.set(func() {
		i := c.instances[zone+"/"+name]
		i.status, i.started = "", time.Now()
	}, nil)
}

// Preempt takes an instance back, as its terminationAction says.
func (c *Cloud) Preempt(zone, name string) {
	c.set(func() {
		i, now := c.instances[zone+"/"+name], time.Now()
		c.operations = append(c.operations, &operation{id: c.number(), kind: preempted, zone: zone, collection: "instances", target: i.id,
			name: name, started: now, ends: now})
		if object(i.model, "scheduling")["instanceTerminationAction"] == "DELETE" {
			i.end(c.options.Stop)
			return
		}
		i.status = "TERMINATED"
	}, nil)
}

// Launch makes an instance without the driver. alive reports whether it still exists.
func (c *Cloud) Launch(zone, name string, labels map[string]any) (alive func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := &instance{zone: zone, name: name, id: c.number(), made: time.Now(), started: time.Now(), model: map[string]any{}}
	if labels != nil {
		i.model["labels"] = labels
	}
	c.instances[zone+"/"+name] = i
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.instances[zone+"/"+name] == i && i.gone.IsZero()
	}
}

// Left lists the instances and disks with the label, and the parts of load balancers with it in
// their description.
func (c *Cloud) Left(label, value string) (all []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeEnded()
	has := func(labels any) bool { l, _ := labels.(map[string]any); return l[label] == value }
	for key, i := range c.instances {
		if has(i.model["labels"]) {
			all = append(all, "instance "+key)
		}
	}
	for key, d := range c.disks {
		if has(d.labels) {
			all = append(all, "disk "+key)
		}
	}
	for key, p := range c.parts {
		if slices.Contains(strings.Fields(fmt.Sprint(p.model["description"])), label+"="+value) {
			all = append(all, key)
		}
	}
	slices.Sort(all)
	return all
}

// object and list return a member of an object; never nil maps.
func object(of map[string]any, key string) map[string]any {
	if o, ok := of[key].(map[string]any); ok {
		return o
	}
	return map[string]any{}
}

func list(of map[string]any, key string) []any {
	all, _ := of[key].([]any)
	return all
}
