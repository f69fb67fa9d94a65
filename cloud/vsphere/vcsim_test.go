// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"cmp"
	"crypto/tls"
	"encoding/pem"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/conformance"
	standin "github.com/drover-io/drover/internal/test/vcenter"
)

const (
	username = "marked-user@vsphere.local"
	password = "marked-password"
)

// vcsim is govmomi's simulator of a vCenter: SOAP over TLS, with its own certificate. Its tasks
// race with each other and with reads, as the race detector shows. So it gets one call at a time,
// and each call waits for its tasks, unless a test holds them.
type vcsim struct {
	*simulator.Service
	model     *simulator.Model
	account   *infrav1.DroverAccountSpec
	transport http.RoundTripper
	stop      func()

	turn    sync.Mutex                   // held during a call
	held    bool                         // clones are held
	settled types.ManagedObjectReference // the last task that has been awaited
	mu      sync.Mutex
	calls   map[string]int
	// template is the VM template that content library items hold.
	template types.ManagedObjectReference
	// permissions holds what the driver's user may see.
	permissions standin.Permissions
	// fault handles a call instead of send. nil means no fault.
	fault   func(operation string, send func() (*http.Response, error)) (*http.Response, error)
	wakeups sync.Map // of machines, by token
}

// start runs a simulator with this many VMs, 1 by default. They belong to no machine.
func start(t testing.TB, vms ...int) *vcsim {
	t.Helper()
	return startAt(t, "127.0.0.1:0", append(vms, 1)[0])
}

// startAt runs a simulator at this address.
func startAt(t testing.TB, address string, vms int) *vcsim {
	t.Helper()
	model := simulator.VPX()
	model.Host, model.ClusterHost, model.Pool, model.Machine, model.Pod = 0, 1, 1, vms, 1
	if err := model.Create(); err != nil {
		t.Fatal(err)
	}
	model.Service.TLS = &tls.Config{}
	model.Service.RegisterEndpoints = true // the endpoints that tests import
	model.Service.Listen = &url.URL{Host: address, User: url.UserPassword(username, password)}
	server := model.Service.NewServer()
	stop := sync.OnceFunc(func() {
		server.Close()
		model.Remove()
	})
	t.Cleanup(stop)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	v := &vcsim{Service: model.Service, model: model, stop: stop, calls: map[string]int{}}
	v.account = &infrav1.DroverAccountSpec{
		CredentialsRef: infrav1.LocalReference{Name: "vcenter"},
		// Tests may run any number of clones at once.
		RateLimits: &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "1000", Burst: 1000}},
		Cloud: infrav1.AccountCloud{VSphere: &infrav1.VSphereAccount{
			Server: strings.Replace(server.URL.Host, "localhost", "127.0.0.1", 1), Datacenter: "DC0", CABundle: string(ca),
			FailureDomains: []infrav1.VSphereFailureDomain{
				{Name: "rack-b", ResourcePool: "DC0_C0/Resources/DC0_C0_RP1"},
				{Name: "rack-a", ResourcePool: "DC0_C0/Resources", Datastore: "LocalDS_0"},
			},
		}},
	}
	v.permissions.Exists = func(ref types.ManagedObjectReference) bool { return v.Context.Map.Get(ref) != nil }
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	config, err := trust(v.account.Cloud.VSphere)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := cloud.Connect(base, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(transport.(*http.Transport).CloseIdleConnections)
	v.transport = transport
	return v
}

// unpinned returns a driver that leaves the certificate check to the transport, which counts calls
// and checks already.
func (v *vcsim) unpinned(cfg cloud.Config) (cloud.Driver, error) {
	connect := cfg.Connect
	cfg.Connect = func(*tls.Config) (http.RoundTripper, error) { return connect(nil) }
	return newDriver(cfg)
}

// RoundTrip counts the driver's calls and injects faults.
func (v *vcsim) RoundTrip(req *http.Request) (*http.Response, error) {
	op := cloud.OperationOf(req.Context())
	operation, class := op.Name, op.Class
	v.mu.Lock()
	v.calls[operation]++
	fault := v.fault
	v.mu.Unlock()
	send := func() (*http.Response, error) {
		resp, err := standin.Poll(req, func(req *http.Request) (*http.Response, error) {
			return v.permissions.Filter(req, operation, func(req *http.Request) (*http.Response, error) { return v.send(req, class) })
		})
		return v.amend(operation, resp, err)
	}
	if fault != nil {
		return fault(operation, send)
	}
	return send()
}

func (v *vcsim) send(req *http.Request, class cloud.Class) (*http.Response, error) {
	v.turn.Lock()
	defer v.turn.Unlock()
	resp, err := v.transport.RoundTrip(req)
	if class != cloud.ClassRead && !v.held {
		v.wait()
	}
	return resp, err
}

// bystander is another user's client. Its calls are neither counted nor changed.
type bystander struct{ *vcsim }

func (b bystander) RoundTrip(req *http.Request) (*http.Response, error) {
	return b.send(req, cloud.ClassRead)
}

// settle waits for all tasks.
func (v *vcsim) settle() {
	v.turn.Lock()
	defer v.turn.Unlock()
	v.wait()
}

// wait waits for all tasks, including those that tasks start.
func (v *vcsim) wait() {
	manager := v.Context.Map.Get(*v.model.ServiceContent.TaskManager)
	for {
		var recent []types.ManagedObjectReference
		v.Context.WithLock(manager, func() { recent = slices.Clone(manager.(*simulator.TaskManager).RecentTask) })
		last := slices.Index(recent, v.settled) + 1
		if last == len(recent) {
			return
		}
		for _, ref := range recent[last:] {
			v.Context.Map.Get(ref).(*simulator.Task).Wait()
			v.settled = ref
		}
	}
}

// release lets one held clone of the template continue, and waits for everything that it starts. No
// other call may run meanwhile.
func (v *vcsim) release(template *heldVM) {
	running := template.running()
	template.released <- struct{}{}
	for template.running() == running {
		<-time.After(time.Millisecond)
	}
	manager := v.Context.Map.Get(*v.model.ServiceContent.TaskManager)
	var recent []types.ManagedObjectReference
	v.Context.WithLock(manager, func() { recent = slices.Clone(manager.(*simulator.TaskManager).RecentTask) })
	for _, ref := range recent {
		if task, ok := v.Context.Map.Get(ref).(*simulator.Task); ok && task.Info.Entity.Type != "Clone" {
			task.Wait()
		}
	}
}

func (v *vcsim) spoil(fault func(operation string, send func() (*http.Response, error)) (*http.Response, error)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fault = fault
}

// counted returns the calls that f makes.
func (v *vcsim) counted(f func()) map[string]int {
	v.mu.Lock()
	v.calls = map[string]int{}
	v.mu.Unlock()
	f()
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.calls) // more calls may follow
}

// driver returns a new driver, as in a new process.
func (v *vcsim) driver(t testing.TB) *driver {
	t.Helper()
	d, err := newDriver(cloud.Config{Account: v.account, Credentials: credentials(), Connect: conformance.Through(v)})
	if err != nil {
		t.Fatal(err)
	}
	return d.(*driver)
}

func credentials() map[string][]byte {
	return map[string][]byte{usernameKey: []byte(username), passwordKey: []byte(password)}
}

func machine(edit ...func(*infrav1.VSphereMachine)) *infrav1.DroverMachineFields {
	m := &infrav1.VSphereMachine{
		Template: "DC0_C0_RP1_VM0", ResourcePool: "DC0_C0/Resources", Datastore: "LocalDS_0", CPUs: 4, MemoryMiB: 8192,
		// vcsim's guests have no address by default.
		ExtraConfig: []infrav1.VSphereOption{{Key: "SET.guest.ipAddress", Value: "10.0.0.7"}},
	}
	for _, e := range edit {
		e(m)
	}
	return &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{VSphere: m}}
}

func request(token string, edit ...func(*infrav1.VSphereMachine)) cloud.Request {
	return cloud.Request{
		Token: token, OwnershipID: "blue", Namespace: "team", Name: "m-" + token, UserData: []byte("#cloud-config\n"), Spec: machine(edit...),
	}
}

// vms returns the VMs without a call of the driver.
func (v *vcsim) vms() []*simulator.VirtualMachine {
	var all []*simulator.VirtualMachine
	for _, e := range v.Context.Map.All("VirtualMachine") {
		switch m := e.(type) {
		case *simulator.VirtualMachine:
			all = append(all, m)
		case *heldVM:
			all = append(all, m.VirtualMachine)
		}
	}
	return all
}

// options returns a VM's options, read under its lock.
func (v *vcsim) options(m *simulator.VirtualMachine) map[string]string {
	options := map[string]string{}
	v.Context.WithLock(m, func() {
		for _, o := range m.Config.ExtraConfig {
			options[o.GetOptionValue().Key], _ = o.GetOptionValue().Value.(string)
		}
	})
	return options
}

// with returns the VMs that have the option.
func (v *vcsim) with(key, value string) []*simulator.VirtualMachine {
	var found []*simulator.VirtualMachine
	for _, m := range v.vms() {
		if v.options(m)[key] == value {
			found = append(found, m)
		}
	}
	return found
}

// refuse makes a method fault until undo is called.
func (v *vcsim) refuse(method string, fault types.BaseMethodFault) (undo func()) {
	v.AddFaultRule(&simulator.FaultInjectionRule{
		MethodName: method, ObjectType: "*", ObjectName: "*", Probability: 1, FaultType: simulator.FaultTypeCustom, Fault: fault, Enabled: true,
	})
	return v.ClearFaultRules
}

// heldVM is a template whose clones start and wait until they are released, or end with a fault.
type heldVM struct {
	*simulator.VirtualMachine
	released chan struct{} // nil: clones don't wait
	fault    types.BaseMethodFault
	user     string                        // user of the tasks; "": the driver's
	entity   *types.ManagedObjectReference // the entity of the tasks; nil: one that does not exist

	cloning sync.Mutex // as the template's lock does in vcsim, which a held clone no longer has

	mu           sync.Mutex
	sent         []types.VirtualMachineCloneSpec // the requests, as they arrived
	begun, ended int
}

// running returns the number of clones that have started and not ended.
func (m *heldVM) running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begun - m.ended
}

// CloneVMTask implements the method of vSphere's API, as vcsim calls it.
func (m *heldVM) CloneVMTask(ctx *simulator.Context, req *types.CloneVM_Task) soap.HasFault {
	m.mu.Lock()
	m.sent = append(m.sent, req.Spec)
	m.begun++
	m.mu.Unlock()
	ended := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ended++
	}
	// A task locks its entity. This one has its own, so that everything else can be read.
	task := simulator.CreateTask(types.ManagedObjectReference{Type: "Clone", Value: req.Name}, "cloneVm",
		func(*simulator.Task) (types.AnyType, types.BaseMethodFault) {
			defer ended()
			if m.released != nil {
				<-m.released
			}
			if m.fault != nil {
				return nil, m.fault
			}
			m.cloning.Lock()
			made := m.VirtualMachine.CloneVMTask(ctx, req).(*methods.CloneVM_TaskBody)
			m.cloning.Unlock()
			inner := ctx.Map.Get(made.Res.Returnval).(*simulator.Task)
			inner.Wait()
			if inner.Info.Error != nil {
				return nil, inner.Info.Error.Fault
			}
			return inner.Info.Result, nil
		})
	task.Info.DescriptionId = "VirtualMachine.cloneVm"
	task.Info.Reason = &types.TaskReasonUser{UserName: cmp.Or(m.user, username)}
	ref := task.Run(ctx)
	if m.entity != nil {
		ctx.WithLock(task, func() { task.Info.Entity = m.entity })
	}
	return &methods.CloneVM_TaskBody{Res: &types.CloneVM_TaskResponse{Returnval: ref}}
}

// hold keeps new clones out of the inventory until release is called.
func (v *vcsim) hold(t testing.TB, edit ...func(*heldVM)) (release func()) {
	held := v.replace(func(held *heldVM) {
		held.released = make(chan struct{})
		for _, e := range edit {
			e(held)
		}
	})
	v.turn.Lock()
	defer v.turn.Unlock()
	v.held = true
	release = sync.OnceFunc(func() {
		v.turn.Lock()
		defer v.turn.Unlock()
		close(held.released)
		v.wait()
		v.held = false
		v.Context.Map.Put(held.VirtualMachine)
	})
	t.Cleanup(release)
	return release
}

// replace replaces vcsim's template.
func (v *vcsim) replace(edit func(*heldVM)) *heldVM {
	m := &heldVM{VirtualMachine: v.named("DC0_C0_RP1_VM0")}
	edit(m)
	v.turn.Lock()
	defer v.turn.Unlock()
	v.Context.Map.Put(m)
	return m
}

// named returns the VM with this name, without a call of the driver.
func (v *vcsim) named(name string) *simulator.VirtualMachine {
	all := v.vms()
	return all[slices.IndexFunc(all, func(m *simulator.VirtualMachine) bool { return m.Name == name })]
}
