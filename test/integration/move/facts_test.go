// SPDX-License-Identifier: Apache-2.0

package move

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/scenario"
)

// object is an object that has conditions.
type object interface {
	client.Object
	conditions.Getter
}

func items(list client.ObjectList) (all []object) {
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if o, ok := o.(object); ok {
			all = append(all, o)
		}
		return nil
	})
	return all
}

// facts holds everything that a move changes, and everything that it must not change.
type facts struct {
	// uids holds the UIDs of all objects in the cluster's namespace, by kind and name.
	uids map[string]types.UID
	// kept holds of each object: spec, labels, finalizers, owners by name, and a hash of a Secret's
	// data.
	kept map[string]string
	// nodes holds the Nodes' UIDs by name. vms holds the creation tokens of the VMs that were not
	// terminated, by instance ID.
	nodes, vms map[string]string
	// changes counts the mutating calls to the cloud so far.
	changes map[string]int
	// tokens counts the bootstrap tokens created so far in the workload cluster, by machine.
	tokens map[string]int
}

// differences returns the differences in what a move must keep, or "".
func (f facts) differences(g facts) string {
	var all []string
	for _, d := range []string{
		different(f.kept, g.kept), different(f.nodes, g.nodes), different(f.vms, g.vms),
		different(f.changes, g.changes), different(f.tokens, g.tokens),
	} {
		if d != "" {
			all = append(all, d)
		}
	}
	return strings.Join(all, "\n")
}

// without removes one machine from the facts.
func (f facts) without(m infrav1.DroverMachine) facts {
	for _, kind := range []string{"Machine/", "DroverMachine/", "DroverConfig/", "Secret/"} {
		delete(f.uids, kind+m.Name)
		delete(f.kept, kind+m.Name)
	}
	delete(f.nodes, m.Name)
	delete(f.tokens, m.Namespace+"/"+m.Name)
	maps.DeleteFunc(f.vms, func(_, token string) bool { return token == m.Spec.Creation.Token })
	return f
}

func (s *stage) facts(at *site) facts {
	s.Helper()
	f := facts{uids: map[string]types.UID{}, kept: map[string]string{}, nodes: map[string]string{}, vms: map[string]string{},
		changes: map[string]int{}}
	for name, o := range s.objects(at) {
		f.uids[name], f.kept[name] = o.GetUID(), keptOf(o)
	}
	nodes := &corev1.NodeList{}
	s.must(s.nodes.List(s.ctx, nodes))
	for _, n := range nodes.Items {
		f.nodes[n.Name] = string(n.UID)
	}
	for _, vm := range s.vms() {
		f.vms[vm.ID] = vm.Tags[cloud.TagToken]
	}
	audit, err := s.admin.Audit(s.ctx)
	s.must(err)
	for _, op := range []string{wire.RunInstances, wire.TerminateInstances, wire.DeleteResources} {
		f.changes[op] = audit.Calls(op)
	}
	f.tokens = s.tokens.all()
	return f
}

// furniture lists the objects that Kubernetes creates in every namespace. clusterctl does not move
// them.
var furniture = []string{"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}

// objects returns all objects in the cluster's namespace except Events, by kind and name.
func (s *stage) objects(at *site) map[string]*unstructured.Unstructured {
	s.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(at.AdminConfig())
	s.must(err)
	lists, err := d.ServerPreferredNamespacedResources()
	s.must(err)
	all := map[string]*unstructured.Unstructured{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		s.must(err)
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Kind == "Event" {
				continue
			}
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(gv.WithKind(r.Kind))
			s.must(at.client.List(s.ctx, list, client.InNamespace(s.Namespace)))
			for i := range list.Items {
				if name := r.Kind + "/" + list.Items[i].GetName(); !slices.Contains(furniture, name) {
					all[name] = &list.Items[i]
				}
			}
		}
	}
	return all
}

func keptOf(o *unstructured.Unstructured) string {
	var owners []string
	for _, r := range o.GetOwnerReferences() {
		owners = append(owners, fmt.Sprintf("%s %s %s controller=%t", r.APIVersion, r.Kind, r.Name, ptr.Deref(r.Controller, false)))
	}
	slices.Sort(owners)
	finalizers := slices.Sorted(slices.Values(o.GetFinalizers()))
	text, _ := json.Marshal(map[string]any{
		"spec": o.Object["spec"], "type": o.Object["type"], "data": fmt.Sprintf("%x", sha256.Sum256(fmt.Append(nil, o.Object["data"]))),
		"labels": o.GetLabels(), "finalizers": finalizers, "owners": owners,
	}) // the values come from JSON, so this can't fail
	return string(text)
}

// vms returns the account's VMs that were not terminated.
func (s *stage) vms() (ours []wire.Resource) {
	s.Helper()
	snapshot, err := s.admin.Snapshot(s.ctx)
	s.must(err)
	for _, r := range snapshot.Instances() {
		if r.Account == s.Name {
			ours = append(ours, r.Resource)
		}
	}
	return ours
}

// calls returns the cloud calls of a manager, from its own metrics.
func (s *stage) calls(at *site) string {
	s.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, at.drover.Metrics, nil)
	s.must(err)
	res, err := http.DefaultClient.Do(req)
	s.must(err)
	defer res.Body.Close()
	var lines []string
	for scanner := bufio.NewScanner(res.Body); scanner.Scan(); {
		if strings.HasPrefix(scanner.Text(), "drover_cloud_calls_total") {
			lines = append(lines, scanner.Text())
		}
	}
	return strings.Join(lines, "\n")
}

// different returns the keys in which two maps differ, with both values.
func different[V comparable](before, after map[string]V) string {
	var lines []string
	keys := maps.Clone(before)
	maps.Copy(keys, after)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		b, was := before[k]
		a, is := after[k]
		switch {
		case !is:
			lines = append(lines, k+" is missing")
		case !was:
			lines = append(lines, k+" is new")
		case a != b:
			lines = append(lines, fmt.Sprintf("%s was\n    %v\n  and is\n    %v", k, b, a))
		}
	}
	return strings.Join(lines, "\n")
}

// works checks that every status reports n running machines, even after statuses were lost and
// written again.
func (s *stage) works(at *site, n int32) scenario.Check {
	return scenario.All(s.Available(at.view), s.partsWork(at.view), s.machinesWork(at.view, int(n)), s.pool.Ready(at.view, n))
}

func (s *stage) partsWork(r client.Reader) scenario.Check {
	return func(ctx context.Context) (string, error) {
		key := client.ObjectKey{Namespace: s.Namespace, Name: s.Name}
		account, infra, adopted := &infrav1.DroverAccount{}, &infrav1.DroverCluster{}, &controlplanev1.AdoptedControlPlane{}
		for _, o := range []client.Object{account, infra, adopted} {
			if err := r.Get(ctx, key, o); err != nil {
				return fmt.Sprintf("there is no %T", o), client.IgnoreNotFound(err)
			}
		}
		switch {
		case !conditions.IsTrue(account, clusterv1.ReadyCondition) || !conditions.IsTrue(account, infrav1.AccountInventoryFreshCondition):
			return "the DroverAccount is not ready, or its inventory not fresh", nil
		case len(account.Status.FailureDomains) == 0:
			return "the DroverAccount has no failure domains", nil
		case !conditions.IsTrue(infra, clusterv1.ReadyCondition) || !ptr.Deref(infra.Status.Initialization.Provisioned, false):
			return "the DroverCluster is not ready", nil
		case len(infra.Status.FailureDomains) == 0:
			return "the DroverCluster has no failure domains", nil
		case !conditions.IsTrue(adopted, clusterv1.AvailableCondition) ||
			!ptr.Deref(adopted.Status.Initialization.ControlPlaneInitialized, false):
			return "the AdoptedControlPlane is not available", nil
		case !ptr.Deref(adopted.Status.ExternalManagedControlPlane, false) || adopted.Status.Version == "":
			return "the AdoptedControlPlane does not say what it is", nil
		}
		return "", nil
	}
}

func (s *stage) machinesWork(r client.Reader, n int) scenario.Check {
	return func(ctx context.Context) (string, error) {
		machines := &clusterv1.MachineList{}
		if err := r.List(ctx, machines, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		if len(machines.Items) != n {
			return fmt.Sprintf("there are %d Machines, want %d", len(machines.Items), n), nil
		}
		for i := range machines.Items {
			if missing, err := s.machineWorks(ctx, r, &machines.Items[i]); missing != "" || err != nil {
				return machines.Items[i].Name + ": " + missing, err
			}
		}
		return "", nil
	}
}

func (s *stage) machineWorks(ctx context.Context, r client.Reader, machine *clusterv1.Machine) (string, error) {
	infra, config := &infrav1.DroverMachine{}, &bootstrapv1.DroverConfig{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: machine.Spec.InfrastructureRef.Name}, infra); err != nil {
		return "there is no DroverMachine", client.IgnoreNotFound(err)
	}
	if err := r.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config); err != nil {
		return "there is no DroverConfig", client.IgnoreNotFound(err)
	}
	switch {
	case !conditions.IsTrue(machine, clusterv1.ReadyCondition) || !machine.Status.NodeRef.IsDefined():
		return "the Machine is not ready", nil
	case !conditions.IsTrue(infra, clusterv1.ReadyCondition) || !ptr.Deref(infra.Status.Initialization.Provisioned, false):
		return "the DroverMachine is not ready", nil
	case infra.Status.InstanceState != infrav1.InstanceStateRunning || len(infra.Status.Addresses) < 2 || infra.Status.FailureDomain == "":
		return "the DroverMachine does not say all of its VM", nil
	case !conditions.IsTrue(config, clusterv1.ReadyCondition) || !ptr.Deref(config.Status.Initialization.DataSecretCreated, false):
		return "the DroverConfig is not ready", nil
	case config.Status.DataSecretName != ptr.Deref(machine.Spec.Bootstrap.DataSecretName, ""):
		return fmt.Sprintf("the DroverConfig names the Secret %q, the Machine another", config.Status.DataSecretName), nil
	}
	return "", nil
}
