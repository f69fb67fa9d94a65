// SPDX-License-Identifier: Apache-2.0

// Package vcenter is govmomi's simulator of a vCenter Server behind a proxy. The proxy handles one
// call at a time, until its tasks have ended, because vcsim's tasks race with each other and with
// reads. VMs can have bodies, and are remembered after their deletion. The package is only for
// tests.
package vcenter

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	_ "github.com/vmware/govmomi/vapi/simulator" // the Automation API
	"github.com/vmware/govmomi/vim25/types"
)

// The inventory: a template, a resource pool and a datastore, by their paths in the datacenter.
const (
	Datacenter   = "DC0"
	Template     = "DC0_C0_RP1_VM0"
	ResourcePool = "DC0_C0/Resources"
	Datastore    = "LocalDS_0"
)

// Options configures a VCenter.
type Options struct {
	Username, Password string
	// Power is called when a VM with Drover's options is powered on. The function that it returns
	// is called when the VM is powered off or destroyed. nil means that VMs have no bodies.
	Power func(VM) (off func())
	// Subnet is the second octet of the VMs' addresses, 10.<subnet>.x.y.
	Subnet int
	// Latency is added to the duration of each call.
	Latency time.Duration
}

// VM is a virtual machine as vCenter has it, or had it before its deletion.
type VM struct {
	Name, UUID string
	// Options is the VM's extraConfig, which holds the guest's user data.
	Options   map[string]string
	CPUs      int32
	MemoryMiB int64
	IP        string // the guest's address, as reported to vCenter
	On, Gone  bool
	Made      time.Time // approximate
	// Attributes holds the custom attributes by name.
	Attributes map[string]string
}

// VCenter is a running simulator.
type VCenter struct {
	// URL is the URL of its API, over TLS. CA is the PEM certificate that verifies it.
	URL string
	CA  []byte

	options     Options
	permissions Permissions
	model       *simulator.Model
	server      *simulator.Server
	door        *httptest.Server

	faulty sync.Mutex
	faults []*injected
	calls  map[string]int

	mu       sync.Mutex
	sessions map[string]bool              // sessions that have not ended
	settled  types.ManagedObjectReference // the last task that was waited for
	seen     map[types.ManagedObjectReference]VM
	off      map[types.ManagedObjectReference]func()
}

// Start starts a VCenter. Close stops it.
func Start(o Options) (*VCenter, error) {
	model := simulator.VPX()
	model.Host, model.ClusterHost, model.Pool, model.Machine = 0, 1, 1, 1
	if err := model.Create(); err != nil {
		return nil, fmt.Errorf("make the simulator's inventory: %w", err)
	}
	model.Service.Listen = &url.URL{User: url.UserPassword(o.Username, o.Password)}
	model.Service.RegisterEndpoints = true
	v := &VCenter{
		options: o, model: model, server: model.Service.NewServer(), calls: map[string]int{}, sessions: map[string]bool{},
		seen: map[types.ManagedObjectReference]VM{}, off: map[types.ManagedObjectReference]func(){},
	}
	model.Service.Context.Map.SessionManager().ValidLogin = func(req *types.Login) bool {
		return req.UserName == v.options.Username && req.Password == v.options.Password
	}
	v.permissions.Exists = func(ref types.ManagedObjectReference) bool { return model.Service.Context.Map.Get(ref) != nil }
	inner := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: v.server.URL.Host})
	inner.Transport = door{v}
	inner.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // closes the connection
	v.door = httptest.NewTLSServer(inner)
	v.URL, v.CA = v.door.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.door.Certificate().Raw})
	return v, nil
}

// Close stops the simulator and all bodies.
func (v *VCenter) Close() {
	v.door.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, off := range v.off {
		off()
	}
	v.server.Close()
	v.model.Remove()
}

// door passes calls to the simulator, one at a time.
type door struct{ *VCenter }

// RoundTrip implements http.RoundTripper.
func (d door) RoundTrip(req *http.Request) (*http.Response, error) {
	operation, err := operationOf(req)
	if err != nil {
		return nil, err
	}
	d.count(operation)
	if err := (Fault{Delay: d.options.Latency}).pause(req); err != nil {
		return nil, err
	}
	return d.fault(operation, false).spoil(req, func(req *http.Request) (*http.Response, error) {
		return Poll(req, func(req *http.Request) (*http.Response, error) {
			return d.permissions.Filter(req, operation, func(req *http.Request) (*http.Response, error) { return d.send(req, operation) })
		})
	})
}

// send sends a call and waits for its effects.
func (d door) send(req *http.Request, operation string) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.admit(req, operation) {
		return Fault{Method: &types.NotAuthenticated{}}.answer(req, nil, nil)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	d.remember(resp, operation)
	answer, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	d.settle()
	return resp, err
}

func (v *VCenter) count(operation string) {
	v.faulty.Lock()
	defer v.faulty.Unlock()
	v.calls[operation]++
}

// Calls returns the number of calls by operation. Calls of the Automation API are counted by method
// and path.
func (v *VCenter) Calls() map[string]int {
	v.faulty.Lock()
	defer v.faulty.Unlock()
	return maps.Clone(v.calls)
}

// VMs returns the VMs with Drover's options and those that Launch created, including deleted ones.
func (v *VCenter) VMs() []VM {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []VM
	for _, vm := range v.seen {
		all = append(all, vm)
	}
	return all
}

// Destroy deletes a VM without Drover's knowledge.
func (v *VCenter) Destroy(uuid string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, vm := range v.machines() {
		if vm.Config.Uuid == uuid {
			v.destroy(vm)
			return nil
		}
	}
	return errors.New("there is no VM " + uuid)
}

func (v *VCenter) destroy(vm *simulator.VirtualMachine) {
	vm.PowerOffVMTask(v.model.Service.Context, &types.PowerOffVM_Task{This: vm.Self})
	v.settle()
	vm.DestroyTask(v.model.Service.Context, &types.Destroy_Task{This: vm.Self})
	v.settle()
}

// foreign is an option of VMs that Launch created.
const foreign = "made-by-somebody"

// Launch creates a VM that is not Drover's with these options, and returns its UUID.
func (v *VCenter) Launch(name string, options map[string]string) (string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	template := v.machines()[slices.IndexFunc(v.machines(), func(m *simulator.VirtualMachine) bool { return m.Name == Template })]
	config := &types.VirtualMachineConfigSpec{ExtraConfig: []types.BaseOptionValue{&types.OptionValue{Key: foreign, Value: "yes"}}}
	for key, value := range options {
		config.ExtraConfig = append(config.ExtraConfig, &types.OptionValue{Key: key, Value: value})
	}
	template.CloneVMTask(v.model.Service.Context, &types.CloneVM_Task{
		This: template.Self, Folder: *template.Parent, Name: name, Spec: types.VirtualMachineCloneSpec{Config: config, PowerOn: true},
	})
	v.settle()
	for _, vm := range v.seen {
		if vm.Name == name {
			return vm.UUID, nil
		}
	}
	return "", errors.New("the VM " + name + " was not made")
}

func (v *VCenter) machines() (all []*simulator.VirtualMachine) {
	for _, e := range v.model.Service.Context.Map.All("VirtualMachine") {
		all = append(all, e.(*simulator.VirtualMachine))
	}
	return all
}

// settle waits for all tasks, including those that other tasks start. It adds bodies to VMs and
// removes them.
func (v *VCenter) settle() {
	ctx := v.model.Service.Context
	manager := ctx.Map.Get(*v.model.ServiceContent.TaskManager)
	for {
		var recent []types.ManagedObjectReference
		ctx.WithLock(manager, func() { recent = slices.Clone(manager.(*simulator.TaskManager).RecentTask) })
		last := slices.Index(recent, v.settled) + 1
		if last == len(recent) {
			break
		}
		for _, ref := range recent[last:] {
			if task, ok := ctx.Map.Get(ref).(*simulator.Task); ok {
				task.Wait()
			}
			v.settled = ref
		}
	}
	there := map[types.ManagedObjectReference]bool{}
	for _, m := range v.machines() {
		if vm, ours := v.look(m); ours {
			there[m.Self] = true
			v.embody(m, vm)
		}
	}
	for ref, vm := range v.seen {
		if !there[ref] && !vm.Gone {
			v.switchOff(ref)
			vm.On, vm.Gone = false, true
			v.seen[ref] = vm
		}
	}
}

// look reads a VM, and reports whether it is Drover's.
func (v *VCenter) look(m *simulator.VirtualMachine) (vm VM, ours bool) {
	vm = v.seen[m.Self] // keeps its address
	vm.Options, vm.Attributes = map[string]string{}, map[string]string{}
	names := v.attributes()
	v.model.Service.Context.WithLock(m, func() {
		vm.Name, vm.UUID, vm.On = m.Name, m.Config.Uuid, m.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
		vm.CPUs, vm.MemoryMiB = m.Config.Hardware.NumCPU, int64(m.Config.Hardware.MemoryMB)
		for _, o := range m.Config.ExtraConfig {
			vm.Options[o.GetOptionValue().Key], _ = o.GetOptionValue().Value.(string)
		}
		for _, value := range m.CustomValue {
			if value, ok := value.(*types.CustomFieldStringValue); ok {
				vm.Attributes[names[value.Key]] = value.Value
			}
		}
	})
	return vm, vm.Options["drover-creation-token"] != "" || vm.Options[foreign] != ""
}

// embody gives a powered-on VM a body and an address, and removes the body of a powered-off VM.
func (v *VCenter) embody(m *simulator.VirtualMachine, vm VM) {
	if vm.IP == "" {
		vm.Made = time.Now()
		n := len(v.seen) + 1
		vm.IP = fmt.Sprintf("10.%d.%d.%d", v.options.Subnet, n/250, n%250+1)
	}
	v.seen[m.Self] = vm
	switch _, has := v.off[m.Self]; {
	case vm.On && !has && v.options.Power != nil:
		v.off[m.Self] = func() {}
		switch birth := v.fault("", true).Birth; {
		case birth == Stillborn:
			v.destroy(m)
			return
		case birth == Lifeless || vm.Options[foreign] != "":
			return
		}
		v.model.Service.Context.Update(m, []types.PropertyChange{{Name: "guest.net", Val: []types.GuestNicInfo{
			{Network: "VM Network", DeviceConfigId: 4000, Connected: true, IpAddress: []string{vm.IP}},
		}}})
		v.off[m.Self] = v.options.Power(vm)
	case !vm.On:
		v.switchOff(m.Self)
	}
}

func (v *VCenter) switchOff(ref types.ManagedObjectReference) {
	if off := v.off[ref]; off != nil {
		off()
		delete(v.off, ref)
	}
}
