// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/token"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/vcenter"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
	"github.com/drover-io/drover/test/internal/stack"
	"github.com/drover-io/drover/test/internal/virt"
)

// Tenant is a namespace with a Cluster that adopts the rig's workload cluster, and with its own
// account in the rig's cloud. Its name is unique on the rig, and so are the names of its Machines.
type Tenant struct {
	scenario.Adopted
	// API is the proxy to the workload cluster for the clients of the Cluster's kubeconfig: Drover
	// and Cluster API. The machines bypass it. Cloud is the proxy to the account.
	API, Cloud *faultproxy.Proxy
	// AWS is the tenant's own stand-in for EC2, behind Cloud. It is nil for other clouds.
	AWS *ec2stub.Cloud
	// Azure is the tenant's own stand-in for Azure, behind Cloud. It is nil for other clouds.
	Azure *armstub.Cloud
	// GCP is the tenant's own stand-in for Compute Engine, behind Cloud. It is nil for other
	// clouds.
	GCP *gcpstub.Cloud
	// VCenter is the tenant's own vCenter, behind Cloud. It is nil for other clouds.
	VCenter *vcenter.VCenter
	// OpenStack is shared by all tenants, behind Cloud. It is nil for other clouds.
	OpenStack *stack.Cloud
	// KubeVirt is the cluster in which the tenant has a namespace of its name. It is nil for other
	// clouds.
	KubeVirt *virt.Cluster

	rig *Rig
}

// NewTenant creates a tenant's account and proxies. The test creates its objects.
func (r *Rig) NewTenant(ctx context.Context, name string) (*Tenant, error) {
	t := &Tenant{rig: r, Adopted: scenario.Adopted{Namespace: name, Name: name, Token: "token-of-" + name}}
	t.Inventory = infrav1.InventorySpec{IdleSeconds: 1, ActiveSeconds: 1}
	line, err := r.place.open(ctx, t)
	if err == nil {
		line.Name = "cloud"
		t.Cloud, err = faultproxy.Start(line)
	}
	if err == nil {
		t.API, err = faultproxy.Start(faultproxy.Options{
			Name: "workload", Upstream: r.Workload.URL, CA: r.Workload.CA(), Parse: faultproxy.Kubernetes,
		})
	}
	var raw []byte
	if err == nil {
		raw, err = r.Workload.ServiceAccountKubeconfig(ctx, metav1.NamespaceSystem, adopter)
	}
	if err == nil {
		t.Kubeconfig, err = t.API.Kubeconfig(raw)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("make tenant %s: %w", name, err)
	}
	t.Endpoint = t.Cloud.URL()
	return t, nil
}

// Close stops the proxies.
func (t *Tenant) Close() {
	for _, p := range []*faultproxy.Proxy{t.API, t.Cloud} {
		if p != nil {
			p.Close()
		}
	}
}

// hurry sets high rate limits on an account without any. A cloud's own limits would make a test of
// hundreds of machines slow.
func hurry(o *infrav1.DroverAccount) {
	if o.Spec.RateLimits == nil {
		fast := infrav1.RateLimit{PerSecond: "100", Burst: 100}
		o.Spec.RateLimits = &infrav1.RateLimits{Create: fast, Delete: fast, Read: fast}
	}
}

// Objects returns the namespace and all objects in it except worker pools.
func (t *Tenant) Objects() ([]client.Object, error) {
	u, err := url.Parse(t.rig.Workload.URL)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return nil, err
	}
	objects := t.Adopted.Objects()
	for _, o := range objects {
		if adopted, ok := o.(*controlplanev1.AdoptedControlPlane); ok {
			adopted.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: host, Port: int32(number)}
		}
	}
	return objects, nil
}

// NewPool returns a pool of the tenant. Each of its machines has a data disk, which outlives the VM
// unless it is deleted separately.
func (t *Tenant) NewPool(suffix string, replicas int32) scenario.Pool {
	return scenario.Pool{
		Cluster: t.Adopted, Name: t.Name + "-" + suffix, Replicas: replicas,
		Version: body.DefaultKubeletVersion, // without it Cluster API never counts a Machine as up to date
		Machine: infrav1.SimulatedMachine{DataDisks: []infrav1.SimulatedDataDisk{{SizeGiB: 1}}},
	}
}

// Rule sets the rule for all calls of Drover that concern this tenant, on either proxy. nil lets
// all calls pass.
func (t *Tenant) Rule(rule faultproxy.Rule) {
	t.Cloud.SetRule(rule)
	if rule == nil {
		t.API.SetRule(nil)
		return
	}
	t.API.SetRule(func(ctx context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
		if !Ours(c) {
			return faultproxy.Verdict{}
		}
		return rule(ctx, c, at)
	})
}

// Ours reports whether a call is Drover's rather than Cluster API's. Both use the same kubeconfig.
func Ours(c faultproxy.Call) bool { return strings.HasPrefix(c.Agent, "drover/") }

// Instances returns the tenant's instances in the cloud, including terminated ones.
func (t *Tenant) Instances(s simulator.Snapshot) (all []simulator.SnapshotResource) {
	for _, r := range s.Resources {
		if r.Account == t.Name && r.Kind == wire.Instance {
			all = append(all, r)
		}
	}
	return all
}

// Live returns the resources that the tenant would have to pay for.
func (t *Tenant) Live(s simulator.Snapshot) (all []simulator.SnapshotResource) {
	for _, r := range s.Live() {
		if r.Account == t.Name {
			all = append(all, r)
		}
	}
	return all
}

// Twice returns an error for machines for which more than one VM was ever created, by the cloud's
// own records, and nil when there are none. (Instances stay in the records for ten minutes after
// their end.)
func (t *Tenant) Twice(s simulator.Snapshot) error {
	made := map[string][]string{}
	for _, i := range t.Instances(s) {
		for _, tag := range []string{cloud.TagToken, cloud.TagMachine} {
			if v := i.Tags[tag]; v != "" {
				key := tag + " " + v
				made[key] = append(made[key], fmt.Sprintf("%s (%s)", i.ID, i.State))
			}
		}
	}
	var errs []error
	for key, ids := range made {
		if len(ids) > 1 {
			errs = append(errs, fmt.Errorf("%s: %d VMs were made for %s: %s", t.Name, len(ids), key, strings.Join(ids, ", ")))
		}
	}
	return errors.Join(errs...)
}

// Except says what Left ignores.
type Except struct {
	// Instances are ignored by ID, together with what is attached to them.
	Instances map[string]bool
	// Workload ignores everything in the workload cluster.
	Workload bool
}

// Left returns what is left of the tenant's machines anywhere, or "" when nothing is.
func (t *Tenant) Left(ctx context.Context, except Except) (string, error) {
	snapshot, err := t.rig.Snapshot(ctx)
	if err != nil {
		return "", err
	}
	var left []string
	for _, r := range t.Live(snapshot) {
		if !except.Instances[r.ID] && !except.Instances[r.AttachedTo] {
			left = append(left, fmt.Sprintf("%s %s (%s) in the cloud", r.Kind, r.ID, r.State))
		}
	}
	if len(left) > 0 {
		return strings.Join(left, "; "), nil // the rest is checked once the cloud is empty
	}
	for _, kind := range []client.ObjectList{&clusterv1.MachineList{}, &infrav1.DroverMachineList{}, &bootstrapv1.DroverConfigList{}} {
		if missing, err := scenario.Empty(t.rig.View, kind, t.Namespace)(ctx); missing != "" || err != nil {
			return missing, err // from the cache; what the cache no longer has is counted live
		}
	}
	objects, err := t.Adopted.Left(ctx, t.rig.Client, nothing{})
	if err != nil {
		return "", err
	}
	if !except.Workload {
		if objects.BootstrapTokens, objects.Nodes, err = t.inWorkload(ctx); err != nil {
			return "", err
		}
	}
	if objects != (scenario.Left{}) {
		return objects.String(), nil
	}
	return "", nil
}

// nothing is an empty workload cluster. The objects in the real one belong to all tenants, and only
// the tenant's own count.
type nothing struct{ client.Reader }

func (nothing) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// inWorkload counts the bootstrap tokens and the Nodes of the tenant's machines.
func (t *Tenant) inWorkload(ctx context.Context) (tokens, nodes int, err error) {
	secrets, err := t.rig.systemSecrets(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range secrets {
		s := &secrets[i]
		if s.Type == bootstrapapi.SecretTypeBootstrapToken && strings.HasPrefix(s.Annotations[token.MachineAnnotation], t.Namespace+"/") {
			tokens++
		}
	}
	all, err := t.rig.allNodes(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range all {
		if strings.HasPrefix(all[i].Name, t.Name+"-") {
			nodes++
		}
	}
	return tokens, nodes, nil
}
