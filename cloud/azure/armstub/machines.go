// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// machine is a virtual machine.
type machine struct {
	name    string
	model   map[string]any // as it was sent
	made    time.Time
	running time.Time // when its creation ends
	gone    time.Time // when its deletion ends; zero: it is not being deleted
	failed  string    // the code with which its creation fails
	power   string    // "" follows from the rest
	parts   []*part
	timer   *time.Timer // until the guest boots
	off     func()      // switches the guest off
}

// operation is the progress of a create, a change or a delete of a machine, a load balancer or a
// part.
type operation struct {
	m       *machine
	of      *balancer
	part    *part
	deletes bool
	ready   time.Time // when the health of a load balancer's targets is known
}

// create is "Virtual Machines - Create Or Update", only to create.
func (c *Cloud) create(in call) (answer, *failure) {
	c.removeDeleted()
	c.judge("virtualMachine", in.body)
	var model map[string]any
	if err := json.Unmarshal(in.body, &model); err != nil {
		return answer{}, refuse(http.StatusBadRequest, "InvalidRequestContent", "The request content was invalid.")
	}
	key := strings.ToLower(in.name)
	if old := c.machines[key]; old != nil {
		switch {
		case !old.gone.IsZero():
			return answer{}, refuse(http.StatusConflict, "OperationNotAllowed", "The VM '%s' is being deleted.", in.name)
		case in.create:
			return answer{}, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The resource '%s' exists.", in.name)
		}
		old.model["tags"] = model["tags"]
		return answer{status: http.StatusOK, body: c.modelOf(old, false), model: "virtualMachine"}, nil
	}
	if fail := c.check(in.name, model); fail != nil {
		return answer{}, fail
	}
	c.made++
	m := &machine{name: in.name, model: model, made: time.Now(), running: time.Now().Add(c.options.Boot)}
	if zones := list(model, "zones"); len(zones) > 0 && c.capacity[fmt.Sprint(zones[0])] {
		m.failed = "ZonalAllocationFailed"
	}
	if c.birth != "" && c.birth != Lifeless {
		m.failed = c.birth
	}
	c.makeParts(m)
	c.machines[key] = m
	if c.birth != Lifeless {
		c.boot(m)
	}
	return answer{status: http.StatusCreated, body: c.modelOf(m, false), model: "virtualMachine",
		header: c.progress(in, &operation{m: m})}, nil
}

// progress returns the headers that lead to an operation.
func (c *Cloud) progress(in call, o *operation) map[string]string {
	id := fmt.Sprintf("op-%d", len(c.operations))
	c.operations[id] = o
	link := "https://" + in.host + "/subscriptions/" + Subscription + "/providers/" + providers[in.kind] + "/locations/" + Location +
		"/operations/" + id + "?api-version=" + in.is("api-version")
	return map[string]string{"Azure-AsyncOperation": link, "Location": link + "&monitor=true"}
}

func (c *Cloud) getOperation(in call) (answer, *failure) {
	c.removeDeleted()
	o := c.operations[in.name]
	if o == nil {
		return answer{}, refuse(http.StatusNotFound, "NotFound", "The operation does not exist.")
	}
	if o.m == nil {
		return ok("operation", map[string]any{"name": in.name, "status": c.progressOf(o)})
	}
	body := map[string]any{"name": in.name, "startTime": o.m.made, "status": "InProgress"}
	switch {
	case o.deletes && c.machines[strings.ToLower(o.m.name)] == o.m, !o.deletes && time.Now().Before(o.m.running):
	case !o.deletes && o.m.failed != "":
		body["status"], body["error"] = "Failed", map[string]any{"code": o.m.failed, "message": "Allocation failed."}
	default:
		body["status"] = "Succeeded"
	}
	return ok("operation", body)
}

// progressOf returns the status of an operation of Microsoft.Network.
func (c *Cloud) progressOf(o *operation) string {
	state := "Succeeded"
	switch {
	case time.Now().Before(o.ready):
		return "InProgress"
	case o.of != nil && c.balancers[strings.ToLower(o.of.name)] == o.of:
		state = o.of.state()
	case o.part != nil:
		state = o.part.state()
	}
	if state == "Updating" || state == "Deleting" {
		return "InProgress"
	}
	return state
}

var vmName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62}[A-Za-z0-9])?$`)

// check refuses what Azure refuses at once.
func (c *Cloud) check(name string, model map[string]any) *failure {
	p := object(model, "properties")
	login := object(p, "osProfile")
	size := object(p, "hardwareProfile")["vmSize"]
	data, err := base64.StdEncoding.DecodeString(fmt.Sprint(login["customData"]))
	linux := object(login, "linuxConfiguration")
	switch {
	case !vmName.MatchString(name):
		return refuse(400, "InvalidResourceName", "The Resource '%s' is invalid.", name)
	case fmt.Sprint(model["location"]) != Location:
		return refuse(400, "InvalidParameter", "The location is invalid.")
	case sizeOf(size) == nil:
		return refuse(400, "InvalidParameter", "The value '%v' provided for the VM size is not valid.", size)
	case size == "Standard_Scarce":
		// https://github.com/MicrosoftDocs/azure-docs-cli/issues/599
		return refuse(409, "SkuNotAvailable", "The requested size for resource '%s' is currently not available in location '%s' zones '' for subscription '%s'. Please try another size or deploy to a different location or zones.",
			c.idOf("virtualMachines", name), Location, Subscription)
	case err != nil || len(data) > 65535:
		return refuse(400, "InvalidParameter", "Custom data in OSProfile must be in Base64 encoding and with a maximum length of 87380 characters.")
	case len(list(object(linux, "ssh"), "publicKeys")) == 0:
		return refuse(400, "InvalidParameter", "Authentication using SSH is required.")
	case len(fmt.Sprint(login["computerName"])) > 64:
		return refuse(400, "InvalidParameter", "Linux host name cannot exceed 64 characters.")
	}
	for _, zone := range list(model, "zones") {
		if !slices.Contains([]string{"1", "2", "3"}, fmt.Sprint(zone)) {
			return refuse(400, "InvalidAvailabilityZone",
				"The zone(s) '%v' for resource '%s' is not supported. The supported zones for location '%s' are '1,2,3'", zone,
				c.idOf("virtualMachines", name), Location)
		}
	}
	network := object(p, "networkProfile")
	if v := network["networkApiVersion"]; v != "2020-11-01" && v != "2022-11-01" {
		return refuse(400, "InvalidParameter", "The networkApiVersion '%v' is invalid.", v)
	}
	for _, check := range []func(map[string]any) *failure{c.checkQuota, c.checkParts, c.checkImage} {
		if fail := check(model); fail != nil {
			return fail
		}
	}
	return nil
}

// removeDeleted removes what has been deleted. The caller holds the lock.
func (c *Cloud) removeDeleted() {
	c.settleBalancers()
	for key, m := range c.machines {
		if m.gone.IsZero() || time.Now().Before(m.gone) {
			continue
		}
		delete(c.machines, key)
		c.buried = append(c.buried, m)
		for _, p := range m.parts {
			if p.cascades && !c.options.Keep {
				delete(c.parts[p.kind], strings.ToLower(p.name))
			} else {
				p.owner = nil
			}
		}
	}
}

func (m *machine) state() string {
	switch {
	case !m.gone.IsZero():
		return "Deleting"
	case time.Now().Before(m.running):
		return "Creating"
	case m.failed != "":
		return "Failed"
	}
	return "Succeeded"
}

func (m *machine) view() map[string]any {
	state := m.state()
	codes := map[string]string{"Deleting": "deleting", "Creating": "creating", "Failed": "failed/" + m.failed, "Succeeded": "succeeded"}
	statuses := []any{map[string]any{"code": "ProvisioningState/" + codes[state], "level": "Info", "displayStatus": state}}
	if state == "Failed" {
		statuses[0].(map[string]any)["message"] = "Allocation failed. We do not have sufficient capacity."
	}
	power := m.power
	if power == "" && state == "Succeeded" {
		power = "running"
	}
	if power != "" {
		statuses = append(statuses, map[string]any{"code": "PowerState/" + power, "level": "Info", "displayStatus": "VM " + power})
	}
	return map[string]any{"statuses": statuses}
}

// modelOf returns a machine as Azure answers: without custom data and inline configurations, and
// with the group's name in capitals.
func (c *Cloud) modelOf(m *machine, withView bool) map[string]any {
	var out map[string]any
	text, err := json.Marshal(m.model)
	if err != nil || json.Unmarshal(text, &out) != nil {
		panic("the model is JSON")
	}
	p := object(out, "properties")
	delete(object(p, "osProfile"), "customData")
	nics := []any{}
	for _, part := range m.parts {
		if part.kind == nicKind {
			option := map[bool]string{true: "Delete", false: "Detach"}[part.cascades]
			nics = append(nics, map[string]any{"id": c.idOf(part.kind, part.name), "properties": map[string]any{"deleteOption": option}})
		}
	}
	p["networkProfile"] = map[string]any{"networkInterfaces": nics}
	p["provisioningState"], p["timeCreated"] = m.state(), m.made.UTC().Truncate(time.Second).Format(time.RFC3339)
	p["vmId"] = VMID
	if withView {
		p["instanceView"] = m.view()
	}
	out["id"], out["name"], out["type"] = c.idOf("virtualMachines", m.name), m.name, "Microsoft.Compute/virtualMachines"
	return out
}

func (c *Cloud) find(in call) (*machine, *failure) {
	c.removeDeleted()
	if m := c.machines[strings.ToLower(in.name)]; m != nil {
		return m, nil
	}
	return nil, refuse(http.StatusNotFound, "ResourceNotFound",
		"The Resource 'Microsoft.Compute/virtualMachines/%s' under resource group '%s' was not found.", in.name, c.options.Group)
}

func (c *Cloud) getMachine(in call) (answer, *failure) {
	m, fail := c.find(in)
	if fail != nil {
		return answer{}, fail
	}
	return answer{status: http.StatusOK, body: c.modelOf(m, in.is("$expand") == "instanceView"), model: "virtualMachine"}, nil
}

func (c *Cloud) getView(in call) (answer, *failure) {
	m, fail := c.find(in)
	if fail != nil {
		return answer{}, fail
	}
	return answer{status: http.StatusOK, body: m.view(), model: "instanceView"}, nil
}

// listMachines lists the group or, with statusOnly, the views of the subscription, which have no
// tags.
func (c *Cloud) listMachines(in call) (answer, *failure) {
	c.removeDeleted()
	all := slices.SortedFunc(maps.Values(c.machines), func(a, b *machine) int { return strings.Compare(a.name, b.name) })
	all = slices.DeleteFunc(all, func(m *machine) bool { return time.Since(m.made) < c.options.Lag })
	from, to, next := c.pageOf(in, len(all))
	value := []any{}
	for _, m := range all[from:to] {
		out := c.modelOf(m, false)
		if in.is("statusOnly") == "true" {
			out = map[string]any{"id": out["id"], "name": m.name, "location": Location,
				"properties": map[string]any{"provisioningState": m.state(), "instanceView": m.view()}}
		}
		value = append(value, out)
	}
	body := map[string]any{"value": value}
	if next != "" {
		body["nextLink"] = next
	}
	return answer{status: http.StatusOK, body: body, model: "virtualMachineList"}, nil
}

func (c *Cloud) deleteMachine(in call) (answer, *failure) {
	m, fail := c.find(in)
	if fail != nil {
		return answer{status: http.StatusNoContent}, nil
	}
	m.end(c.options.Stop)
	return answer{status: http.StatusAccepted, header: c.progress(in, &operation{m: m, deletes: true})}, nil
}

// SAS is the secret in the links to boot diagnostics.
const SAS = "sig=marked-signature-of-the-link"

func (c *Cloud) diagnostics(in call) (answer, *failure) {
	m, fail := c.find(in)
	if fail != nil {
		return answer{}, fail
	}
	_, domain, _ := strings.Cut(in.host, ".")
	base := "https://diagnostics.blob." + domain + "/bootdiagnostics/" + m.name
	return answer{status: http.StatusOK, model: "bootDiagnosticsData", body: map[string]any{
		"consoleScreenshotBlobUri": base + ".bmp?" + SAS, "serialConsoleLogBlobUri": base + ".log?" + SAS,
	}}, nil
}

func (c *Cloud) serveBlob(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		c.object([]string{"the token was sent to the storage service"})
	}
	if r.URL.RawQuery != SAS {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.WriteString(w, "cloud-init: ready\n")
}

// Exhaust makes accepted machines of a zone fail for lack of capacity, until undo is called.
func (c *Cloud) Exhaust(zone string) (undo func()) {
	set := func(empty bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.capacity[zone] = empty
	}
	set(true)
	return func() { set(false) }
}

// SetPower changes the power state of a machine, such as "deallocated".
func (c *Cloud) SetPower(name, power string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines[name].power = power
}

// Launch makes a machine without the driver. alive reports whether it still exists.
func (c *Cloud) Launch(name string, tags map[string]any) (alive func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &machine{name: name, made: time.Now(), model: map[string]any{"location": Location, "properties": map[string]any{}}}
	if tags != nil {
		m.model["tags"] = tags
	}
	c.machines[strings.ToLower(name)] = m
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.machines[strings.ToLower(name)] == m && m.gone.IsZero()
	}
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

// Made returns how many machines were ever created.
func (c *Cloud) Made() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made
}
