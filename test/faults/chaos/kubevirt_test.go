// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/virt"
)

// kubevirtWorld is a cluster with KubeVirt's own API server and controller, and a namespace for
// each tenant. Faults of a tenant's account are injected in the proxy.
type kubevirtWorld struct {
	mu     sync.Mutex
	births map[string][]virt.Birth // for the guests that start next, by namespace
}

func (k *kubevirtWorld) start(ctx context.Context) (*rig.Rig, error) {
	k.births = map[string][]virt.Birth{}
	return rig.StartOnKubeVirt(ctx)
}

func (*kubevirtWorld) parts() int { return 1 }

// launch creates a stopped VM, as a person would. If the tags contain a token, the VM has it as its
// name, as Drover's VMs do, so that it looks more like one of Drover's.
func (*kubevirtWorld) launch(ctx context.Context, x *tenant, tags map[string]string) (string, error) {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: x.Name, Name: fmt.Sprintf("foreign-%d", len(x.foreign)),
		Labels: map[string]string{}}}
	for k, v := range tags {
		switch k {
		case cloud.TagMachine:
			vm.Annotations = map[string]string{k: v}
		case cloud.TagToken:
			vm.Name, vm.Labels[k] = v, v
		case cloud.TagOwnership:
			vm.Labels[k] = v
		}
	}
	vm.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategyHalted)
	vm.Spec.Template = &kubevirtv1.VirtualMachineInstanceTemplateSpec{}
	return vm.Name, x.KubeVirt.Admin.Create(ctx, vm)
}

// accept deletes all service accounts except those of the tokens.
func (k *kubevirtWorld) accept(ctx context.Context, x *tenant, tokens ...string) error {
	admin := x.KubeVirt.Admin
	for _, token := range tokens {
		if err := k.hire(ctx, x, token); err != nil {
			return err
		}
		if err := client.IgnoreAlreadyExists(admin.Create(ctx, virt.Binding(x.Name, token))); err != nil {
			return err
		}
	}
	all := &corev1.ServiceAccountList{}
	if err := admin.List(ctx, all, client.InNamespace(x.Name)); err != nil {
		return err
	}
	for i := range all.Items {
		o := &all.Items[i]
		if o.Name == "default" || slices.Contains(tokens, o.Name) {
			continue
		}
		// The API server still accepts a token for ten seconds after its service account was
		// deleted, so its binding is deleted too.
		if err := scenario.Delete(ctx, admin, virt.Binding(x.Name, o.Name), o); err != nil {
			return err
		}
	}
	return nil
}

// hire creates the service account of a token, without permissions.
func (*kubevirtWorld) hire(ctx context.Context, x *tenant, token string) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: x.Name, Name: token}}
	return client.IgnoreAlreadyExists(x.KubeVirt.Admin.Create(ctx, account))
}

func (k *kubevirtWorld) credentials(ctx context.Context, x *tenant, token string) (map[string]string, error) {
	if err := k.hire(ctx, x, token); err != nil {
		return nil, err
	}
	raw, err := x.KubeVirt.ServiceAccountKubeconfig(ctx, x.Name, token)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := x.Cloud.Kubeconfig(raw)
	return map[string]string{"kubeconfig": string(kubeconfig)}, err
}

func (*kubevirtWorld) elsewhere(context.Context, *tenant) (map[string]string, error) { return nil, nil }

// harm deletes a VM in any case: KubeVirt does not show deleted VMs.
func (*kubevirtWorld) harm(ctx context.Context, x *tenant, id string, _ simulator.InstanceAction) error {
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: x.Name, Name: id}}
	return client.IgnoreNotFound(x.KubeVirt.Admin.Delete(ctx, vm))
}

// These map the simulated cloud's operations to calls, and its error codes to errors.
var (
	kubevirtOperations = map[string]func(faultproxy.Call) bool{
		"":                      func(faultproxy.Call) bool { return true },
		wire.RunInstances:       func(c faultproxy.Call) bool { return c.Verb == "create" },
		wire.DescribeResources:  func(c faultproxy.Call) bool { return c.Verb == "list" || c.Verb == "watch" },
		wire.TerminateInstances: func(c faultproxy.Call) bool { return isDelete(c) && c.Resource == "virtualmachines" },
		wire.DeleteResources:    func(c faultproxy.Call) bool { return isDelete(c) && c.Resource != "virtualmachines" },
		wire.DescribeCatalog:    func(c faultproxy.Call) bool { return c.Verb == "get" },
	}
	kubevirtErrors = map[string]*apierrors.StatusError{
		"":                        apierrors.NewServiceUnavailable("it was told to"),
		wire.InternalError:        apierrors.NewInternalError(errors.New("it was told to")),
		wire.ServiceUnavailable:   apierrors.NewServiceUnavailable("it was told to"),
		wire.RequestLimitExceeded: apierrors.NewTooManyRequests("it was told to", 1),
		wire.IdempotentParameterMismatch: apierrors.NewConflict(schema.GroupResource{Group: kubevirtv1.GroupVersion.Group,
			Resource: "virtualmachines"},
			"vm", errors.New("it was told to")),
		wire.AuthFailure: apierrors.NewForbidden(schema.GroupResource{Group: kubevirtv1.GroupVersion.Group, Resource: "virtualmachines"},
			"", errors.New("it was told to")),
		// An API server accepts a VM for which there is no capacity. This error is the closest to
		// it.
		wire.InsufficientInstanceCapacity: apierrors.NewServiceUnavailable("no room"),
	}
)

func isDelete(c faultproxy.Call) bool { return c.Verb == "delete" || c.Verb == "deletecollection" }

func (k *kubevirtWorld) fault(_ context.Context, x *tenant, f simulator.Fault) (func(context.Context) error, error) {
	m, err := mannerOf(f.Kind)
	if err != nil {
		return nil, err
	}
	concerns, named := kubevirtOperations[f.Operation]
	refusal, known := kubevirtErrors[f.Code]
	switch {
	case !named || !known:
		return nil, fmt.Errorf("KubeVirt knows no %s of %s", f.Code, f.Operation)
	case m.birth != "":
		k.mu.Lock()
		defer k.mu.Unlock()
		k.births[x.Name] = append(k.births[x.Name], virt.Birth(m.birth))
		k.midwife(x.KubeVirt.Node)
		return forget(), nil
	case m.short: // short pages announce that others follow
		return forget(), nil
	}
	b := &blow{manner: m, concerns: concerns, skip: f.Skip, count: f.Count, delay: f.Delay.Duration, hit: map[int]bool{}}
	if f.Code != "" {
		b.verdict = faultproxy.Refuse(refusal)
	}
	return forget(x.lines.inject(b.rule)), nil
}

// midwife makes the node ask how guests start.
func (k *kubevirtWorld) midwife(n *virt.Node) {
	ask := func(vmi *kubevirtv1.VirtualMachineInstance) virt.Birth {
		k.mu.Lock()
		defer k.mu.Unlock()
		next := k.births[vmi.Namespace]
		if len(next) == 0 {
			return virt.Alive
		}
		k.births[vmi.Namespace] = next[1:]
		return next[0]
	}
	n.Birth.Store(&ask)
}

// blow is a fault that hits some calls.
type blow struct {
	manner
	concerns func(faultproxy.Call) bool
	delay    time.Duration
	verdict  faultproxy.Verdict

	mu          sync.Mutex
	skip, count int
	hit         map[int]bool // by the calls' numbers
}

func (b *blow) rule(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
	// The proxy cannot forward a call without its caller, so a late call is executed, and its answer is
	// lost after the delay.
	late := b.after || b.late
	if !b.draw(c, at) || late != (at == faultproxy.After) {
		return faultproxy.Verdict{}
	}
	faultproxy.Delay(ctx, b.delay)
	switch {
	case b.late || b.instead == "Cut":
		return faultproxy.Verdict{Cut: true}
	case b.instead == "Half":
		return faultproxy.Verdict{Answer: &faultproxy.Answer{Status: http.StatusOK, ContentType: "application/json",
			Body: []byte(`{"kind":"Sta`)}}
	case b.instead == "Page":
		return faultproxy.Verdict{Answer: &faultproxy.Answer{Status: http.StatusOK, ContentType: "text/html",
			Body: []byte("<html>Welcome</html>")}}
	case b.instead == "Elsewhere":
		return faultproxy.Verdict{Answer: &faultproxy.Answer{Status: http.StatusFound, ContentType: "text/html"}}
	}
	return b.verdict
}

// draw reports whether the fault hits the call. It decides when the call arrives.
func (b *blow) draw(c faultproxy.Call, at faultproxy.Point) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at == faultproxy.Before && b.concerns(c) {
		if b.skip > 0 {
			b.skip--
		} else if b.count > 0 {
			b.count--
			b.hit[c.Number] = true
		}
	}
	return b.hit[c.Number]
}

func (*kubevirtWorld) resize(m *infrav1.DroverMachineFields) { m.Cloud.KubeVirt.MemoryMiB *= 2 }

// set makes watches lag, as reads do in other clouds. Reads are consistent.
func (*kubevirtWorld) set(_ context.Context, w *wave, s simulator.Settings) error {
	for _, x := range w.tenants {
		x.Cloud.SetLag(func(faultproxy.Call) time.Duration { return s.ConsistencyLag.Duration })
	}
	return nil
}

// fall also closes all watches.
func (*kubevirtWorld) fall(_ context.Context, w *wave, mode simulator.DownMode) (func(context.Context) error, error) {
	down, ok := map[simulator.DownMode]faultproxy.Rule{
		simulator.DownCut: func(context.Context, faultproxy.Call, faultproxy.Point) faultproxy.Verdict {
			return faultproxy.Verdict{Cut: true}
		},
		simulator.DownUnavailable: func(context.Context, faultproxy.Call, faultproxy.Point) faultproxy.Verdict {
			return faultproxy.Refuse(kubevirtErrors[wire.ServiceUnavailable])
		},
		simulator.DownHang: func(ctx context.Context, _ faultproxy.Call, _ faultproxy.Point) faultproxy.Verdict {
			return faultproxy.Hang(ctx)
		},
	}[mode]
	if !ok {
		return nil, errors.New("nobody knows how an API server is down: " + string(mode))
	}
	var all []func()
	for _, x := range w.tenants {
		all = append(all, x.lines.inject(down))
		x.Cloud.CutStreams()
	}
	return forget(all...), nil
}
