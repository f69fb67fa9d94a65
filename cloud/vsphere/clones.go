// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/cloud"
)

// clones holds the machines that are being cloned and not in the inventory yet. A task names its
// template but not the VM, so only the process that started it knows the machine. A clone that an
// earlier process started, or whose answer was lost, may belong to any machine whose create may
// have been sent, until the clone ends.
type clones struct {
	mu       sync.Mutex
	ensuring map[string]bool // machines with an Ensure under way
	tasks    map[string]*clone
	// unanswered holds the machines whose clone call got no answer, with the tasks that may be
	// theirs. nil means that the tasks were not read yet.
	unanswered map[string]map[types.ManagedObjectReference]bool
	// noEarlierClones is true once no clone of an earlier process runs.
	noEarlierClones bool
	// templates holds the templates that this process has used.
	templates map[types.ManagedObjectReference]bool
}

// clone is the task that creates a machine. Maps key it by the machine's UUID.
type clone struct {
	task     types.ManagedObjectReference
	resource cloud.Resource
	failed   *cloud.Error
}

// begin reports whether this is the only Ensure of the machine.
func (c *clones) begin(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ensuring == nil {
		c.ensuring, c.tasks, c.unanswered = map[string]bool{}, map[string]*clone{}, map[string]map[types.ManagedObjectReference]bool{}
	}
	if c.ensuring[id] {
		return false
	}
	c.ensuring[id] = true
	return true
}

func (c *clones) end(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ensuring, id)
}

// record records the result of the clone call.
func (c *clones) record(id string, task types.ManagedObjectReference, r cloud.Resource, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var fault vimFault
	switch {
	case err == nil:
		c.tasks[id] = &clone{task: task, resource: r}
		delete(c.unanswered, id)
	case !errors.As(err, &fault): // a fault means that no clone was started
		c.unanswered[id] = nil
	}
}

// addTemplate records a template that machines are cloned from.
func (c *clones) addTemplate(template types.ManagedObjectReference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.templates == nil {
		c.templates = map[types.ManagedObjectReference]bool{}
	}
	c.templates[withoutServer(template)] = true
}

// knownTemplates returns the templates that this process has used.
func (c *clones) knownTemplates() map[types.ManagedObjectReference]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[types.ManagedObjectReference]bool{}
	maps.Copy(all, c.templates)
	return all
}

// isUnsent reports whether this process started every create of the machine that may be running.
func (c *clones) isUnsent(req cloud.Request, id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, unanswered := c.unanswered[id]
	return !unanswered && (!req.MaybeSent || c.noEarlierClones)
}

// forget forgets a machine's clone and returns it, or nil if there is none.
func (c *clones) forget(id string) *clone {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.tasks[id]
	delete(c.tasks, id)
	return k
}

// task returns the machine's clone, or nil if there is none.
func (c *clones) task(id string) *clone {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tasks[id]
}

// failure returns why the machine's clone failed, or nil if it has not.
func (c *clones) failure(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.tasks[id]; k != nil && k.failed != nil {
		return k.failed
	}
	return nil
}

// running returns the known tasks of the machines with these UUIDs, or of all if ids is nil.
func (c *clones) running(ids []string) map[types.ManagedObjectReference]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	tasks := map[types.ManagedObjectReference]string{}
	for id, k := range c.tasks {
		if ids == nil || slices.Contains(ids, id) {
			tasks[k.task] = id
		}
	}
	return tasks
}

// refresh reads the clones' state, and returns the machines whose clone is running or has failed.
func (c *clones) refresh(ctx context.Context, s *session, page int32, ids []string) (map[string]cloud.Resource, error) {
	tasks := c.running(ids)
	if len(tasks) == 0 {
		return nil, nil
	}
	var refs []types.ManagedObjectReference
	for ref := range tasks {
		refs = append(refs, ref)
	}
	answers, err := s.readObjects(ctx, page, refs, []string{"info.state", "info.error"})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pending, reported := map[string]cloud.Resource{}, map[string]bool{}
	for _, task := range answers {
		id := tasks[task.ref]
		k := c.tasks[id]
		if k == nil || k.task != task.ref {
			continue
		}
		reported[id] = true
		switch task.properties["info.state"] {
		case types.TaskInfoStateSuccess:
			delete(c.tasks, id)
			continue
		case types.TaskInfoStateError:
			k.failed = domainRefusal(k.resource.FailureDomain, s.taskError("CloneVM_Task", task))
			k.resource.State, k.resource.Code, k.resource.Reason = cloud.StateFailed, k.failed.Code, k.failed.Message
		}
		pending[id] = k.resource
	}
	for ref, id := range tasks {
		if k := c.tasks[id]; k != nil && k.task == ref && !reported[id] { // vCenter forgets a task some minutes after it ends
			delete(c.tasks, id)
		}
	}
	return pending, nil
}

// taskError returns why a task failed.
func (v *vcenter) taskError(attempted string, task vm) *cloud.Error {
	f, _ := task.properties["info.error"].(types.LocalizedMethodFault)
	return v.faultError(attempted, f.Fault, f.LocalizedMessage)
}

// checkUnknown returns an error while a clone runs that may be the machine's: one started by the
// session's own user, or of one of these templates. If templates is nil, any clone counts.
func (c *clones) checkUnknown(ctx context.Context, s *session, page int32, id string,
	templates map[types.ManagedObjectReference]bool) error {
	c.mu.Lock()
	_, unanswered := c.unanswered[id]
	noEarlierClones := c.noEarlierClones
	c.mu.Unlock()
	if noEarlierClones && !unanswered {
		return nil
	}
	running, err := s.cloning(ctx, page)
	if err != nil {
		return err
	}
	known := c.running(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	suspects, earlier, foreign := 0, 0, 0
	unknown := map[types.ManagedObjectReference]bool{}
	for ref, task := range running {
		before := task.queued.Before(s.firstLogin())
		switch mayBe := templates == nil || templates[task.template] || strings.EqualFold(task.user, s.user.UserName); {
		case known[ref] != "":
		case !mayBe && before:
			foreign++
		case !mayBe:
		case before:
			earlier++
			unknown[ref] = true
		default:
			unknown[ref] = true
			if c.unanswered[id][ref] {
				suspects++
			}
		}
	}
	c.noEarlierClones = c.noEarlierClones || earlier+foreign == 0
	if unanswered && c.unanswered[id] == nil {
		c.unanswered[id] = unknown
		suspects = len(unknown)
	}
	if suspects+earlier > 0 {
		return cloud.Errorf(cloud.Unavailable, "%d running clones may be this machine; it is retried when they have ended", suspects+earlier)
	}
	delete(c.unanswered, id)
	return nil
}

// cloning is a clone task of any user.
type cloning struct {
	queued   time.Time
	template types.ManagedObjectReference
	user     string // "" if no user started the task
}

// cloning returns the clone tasks that are running or queued.
func (s *session) cloning(ctx context.Context, page int32) (map[types.ManagedObjectReference]cloning, error) {
	tasks, err := s.retrieve(ctx, page, "Task", []types.ObjectSpec{{
		Obj: *s.content.TaskManager, Skip: ptr.To(true),
		SelectSet: []types.BaseSelectionSpec{&types.TraversalSpec{Type: "TaskManager", Path: "recentTask"}},
	}}, []string{"info.state", "info.descriptionId", "info.queueTime", "info.entity", "info.reason"})
	if err != nil {
		return nil, err
	}
	running := map[types.ManagedObjectReference]cloning{}
	for _, task := range tasks {
		state := task.properties["info.state"]
		if !strings.HasPrefix(task.text("info.descriptionId"), "VirtualMachine.clone") ||
			(state != types.TaskInfoStateRunning && state != types.TaskInfoStateQueued) {
			continue
		}
		queued, ok := task.properties["info.queueTime"].(time.Time)
		if !ok {
			return nil, cloud.Errorf(cloud.Unknown, "RetrievePropertiesEx: unexpected response: a clone task has no queue time")
		}
		of := cloning{queued: queued}
		if entity, ok := task.properties["info.entity"].(types.ManagedObjectReference); ok {
			of.template = withoutServer(entity)
		}
		switch by := task.properties["info.reason"].(type) {
		case types.TaskReasonUser:
			of.user = by.UserName
		case *types.TaskReasonUser:
			of.user = by.UserName
		}
		running[task.ref] = of
	}
	return running, nil
}

// Ensure looks for the machine as a VM, as a running clone and as a clone that may be the
// machine's. It clones the template only if there is none.
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (made cloud.Resource, err error) {
	if req.Spec == nil || req.Spec.Cloud.VSphere == nil {
		return made, cloud.Invalid("the machine's spec.cloud.vsphere is not set")
	}
	if len(req.UserData) > maxUserData {
		return made, cloud.Invalid("the user data has %d bytes, at most %d are possible", len(req.UserData), maxUserData)
	}
	id := identityOf(req.Token)
	if !d.clones.begin(id) {
		return made, cloud.Errorf(cloud.Unavailable, "a create with token %s is under way", req.Token)
	}
	defer d.clones.end(id)
	err = d.vcenter.withSession(ctx, func(s *session) error {
		found, err := d.existing(ctx, s, req, id)
		if err == nil && found == nil {
			found, err = d.clone(ctx, s, req, id)
		}
		if err == nil {
			made = *found
		}
		return err
	})
	return made, err
}

// DryRun implements preflight.DryRunner. It resolves the names, and compares the fields with the
// template. vCenter checks no clone without starting it.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	if req.Spec == nil || req.Spec.Cloud.VSphere == nil {
		return cloud.Invalid("the machine's spec.cloud.vsphere is not set")
	}
	return d.vcenter.withSession(ctx, func(s *session) error {
		p, err := d.plan(ctx, s, req.Spec.Cloud.VSphere, req.FailureDomain)
		if err == nil {
			_, err = p.cloneSpec(req, identityOf(req.Token))
		}
		return err
	})
}

// existing returns the machine if its VM exists or is being created.
func (d *driver) existing(ctx context.Context, s *session, req cloud.Request, id string) (*cloud.Resource, error) {
	pending, err := d.clones.refresh(ctx, s, d.page, []string{id})
	if err != nil {
		return nil, err
	}
	failed := d.clones.failure(id)
	p, cloning := pending[id]
	if cloning && p.State == cloud.StatePending {
		return &p, nil // its VM may be incomplete
	}
	wanted := map[string]cloud.Reference{id: {Token: req.Token, OwnershipID: req.OwnershipID}}
	vms, err := d.machines(ctx, s, wanted, stateProperties())
	if err != nil {
		return nil, err
	}
	switch {
	case len(vms) == 0 && cloning: // the attempt has failed without a VM; the next one may succeed
		d.clones.forget(id)
		return nil, failed
	case len(vms) == 0:
		return nil, d.mayClone(ctx, s, req, id)
	case len(vms) > 1:
		return nil, cloud.Errorf(cloud.Conflict, "%d VMs have the token %s: %s", len(vms), req.Token, names(vms))
	case vms[0].unreadable():
		return nil, cloud.Errorf(cloud.Unavailable, "VM %s exists, but vCenter can't read its configuration now", vms[0].ref.Value)
	case vms[0].identity() == "":
		if err := d.clones.checkUnknown(ctx, s, d.page, id, nil); err != nil {
			return nil, err
		}
		return nil, cloud.Errorf(cloud.Conflict, "VM %s has the UUID of token %s but not its tag; Drover does not use it", vms[0].ref.Value,
			req.Token)
	}
	return &d.merge(vms, pending)[0], nil
}

// mayClone returns an error while an earlier create of the machine may have created a VM, or may
// create one.
func (d *driver) mayClone(ctx context.Context, s *session, req cloud.Request, id string) error {
	if req.MaybeSent {
		if err := d.checkAbsent(ctx, s, []string{id}); err != nil {
			return err
		}
	}
	if d.clones.isUnsent(req, id) {
		return nil
	}
	var templates map[types.ManagedObjectReference]bool
	if p, err := d.plan(ctx, s, req.Spec.Cloud.VSphere, req.FailureDomain); err == nil {
		templates = map[types.ManagedObjectReference]bool{withoutServer(p.template.ref): true}
	}
	return d.clones.checkUnknown(ctx, s, d.page, id, templates)
}

func names(vms []vm) string {
	var all []string
	for _, m := range vms {
		all = append(all, m.ref.Value)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// clone starts the clone of the machine. One call sets its UUIDs, its owner and its user data, and
// powers it on.
func (d *driver) clone(ctx context.Context, s *session, req cloud.Request, id string) (*cloud.Resource, error) {
	p, err := d.plan(ctx, s, req.Spec.Cloud.VSphere, req.FailureDomain)
	if err != nil {
		return nil, err
	}
	spec, err := p.cloneSpec(req, id)
	if err != nil {
		return nil, err
	}
	r := cloud.Resource{
		Kind: cloud.KindInstance, ID: id, ProviderID: providerID(id), Token: req.Token, OwnershipID: req.OwnershipID,
		State: cloud.StatePending, FailureDomain: req.FailureDomain,
	}
	d.locations.recordClone(id, withoutServer(p.folder))
	name := vmName(req.Name, req.Token)
	if p.pod != nil {
		if spec.Location.Datastore, err = s.recommended(ctx, p, name, spec); err != nil {
			return nil, err
		}
	}
	answer, err := methods.CloneVM_Task(ctx, s, &types.CloneVM_Task{This: p.template.ref, Folder: p.folder, Name: name, Spec: *spec})
	if err != nil {
		d.clones.record(id, types.ManagedObjectReference{}, r, err)
		d.plans.Reset() // the template may have been replaced by one of the same name
		if isGone(err) {
			d.zones.Reset() // so may the compute cluster
			return nil, &cloud.Error{Code: cloud.Unavailable, Message: fmt.Sprintf("%v; the lookup is retried", err), Err: err}
		}
		if e, ok := errors.AsType[*cloud.Error](err); ok {
			return nil, domainRefusal(req.FailureDomain, e)
		}
		return nil, err
	}
	d.clones.record(id, answer.Returnval, r, nil)
	return &r, nil
}
