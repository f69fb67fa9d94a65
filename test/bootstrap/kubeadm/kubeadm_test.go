// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/rig"
	"github.com/drover-io/drover/test/internal/scenario"
)

type stage struct{ *rig.Stage }

// example returns the pool from the book's section on KubeadmConfig, for the stage's cluster, which
// has the name that the page uses.
func (s stage) example() (pool scenario.Pool, config *unstructured.Unstructured, others []client.Object) {
	s.Helper()
	root, err := playground.Root(s.Ctx)
	s.Do(err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "bootstrap.md"))
	s.Do(err)
	_, section, _ := strings.Cut(string(page), "\n## KubeadmConfig instead\n")
	_, text, _ := strings.Cut(section, "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	for _, document := range strings.Split(text, "---\n") {
		o := &unstructured.Unstructured{}
		s.Do(yaml.Unmarshal([]byte(document), &o.Object))
		o.SetNamespace(s.Namespace)
		if o.GetKind() == "KubeadmConfigTemplate" {
			config = o
		}
		others = append(others, o)
	}
	if len(others) != 3 || config == nil {
		s.Fatalf("the page has %d objects, or no KubeadmConfigTemplate", len(others))
	}
	return s.NewPool("kubeadm", 2), config, others
}

// TestMachineDeployment tests that the machines of the book's example become Ready Nodes with the
// described properties, roll, and are deleted without leftovers.
func TestMachineDeployment(t *testing.T) {
	s := stage{house.Stage(t, "blue")}
	pool, _, objects := s.example()
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	ready := scenario.All(pool.Ready(s.Rig.Client, 2), s.Nodes(2, "simulated://"), s.described)
	s.Until("two machines are ready", ready)
	s.Until("their certificates are approved", s.approved("AutoApproved"))

	s.Do(pool.Roll(s.Ctx, s.Rig.Client, pool.Name+"-2", pool.Machine))
	s.Until("all have rolled", scenario.All(pool.Current(s.Rig.Client), ready))

	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.nothingLeft()
	events := &eventsv1.EventList{}
	s.Do(s.Rig.Client.List(s.Ctx, events, client.InNamespace(s.Namespace)))
	for _, e := range events.Items {
		if e.Reason == "CertificateNotApproved" {
			t.Errorf("Drover told of a request that is not its own: %s", e.Note)
		}
	}
}

// TestWithoutProviderID tests that Drover sets the provider ID of the Node, which it finds by its
// name and the VM's address together, if the kubelet can't set it. This is so on clouds that
// generate the provider ID with the machine.
func TestWithoutProviderID(t *testing.T) {
	s := stage{house.Stage(t, "grey")}
	pool, config, objects := s.example()
	rename(objects, "blue", "grey")
	path := []string{"spec", "template", "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs"}
	args, _, err := unstructured.NestedSlice(config.Object, path...)
	s.Do(err)
	less := slices.DeleteFunc(slices.Clone(args), func(arg any) bool { return arg.(map[string]any)["name"] == "provider-id" })
	if len(less) != len(args)-1 {
		t.Fatalf("the example's arguments are %v", args)
	}
	s.Do(unstructured.SetNestedSlice(config.Object, less, path...))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("two machines are ready", scenario.All(pool.Ready(s.Rig.Client, 2), s.Nodes(2, "simulated://"), s.described))
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.nothingLeft()
}

// TestWrongAuthority tests that a machine that pins a CA other than the cluster's gives up and does
// not become a Node.
func TestWrongAuthority(t *testing.T) {
	s := stage{house.Stage(t, "pink")}
	pool, config, objects := s.example()
	rename(objects, "blue", "pink")
	s.Do(unstructured.SetNestedStringSlice(config.Object, []string{"sha256:" + strings.Repeat("0", 64)},
		"spec", "template", "spec", "joinConfiguration", "discovery", "bootstrapToken", "caCertHashes"))
	s.Do(scenario.Create(s.Ctx, s.Rig.Client, objects...))
	s.Until("both machines have given up", func(ctx context.Context) (string, error) { return s.gaveUp(ctx, 2, "are pinned") })
	s.Do(pool.Scale(s.Ctx, s.Rig.Client, 0))
	s.nothingLeft()
}

// rename replaces the cluster's name in the example.
func rename(objects []client.Object, from, to string) {
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k := range v {
				v[k] = walk(v[k])
			}
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case string:
			if v == from || strings.HasPrefix(v, from+"-") {
				return to + strings.TrimPrefix(v, from)
			}
		}
		return v
	}
	for _, o := range objects {
		if u, ok := o.(*unstructured.Unstructured); ok {
			walk(u.Object)
		}
	}
}

// own returns the stage's Nodes.
func (s stage) own(ctx context.Context) (own []corev1.Node, err error) {
	list := &corev1.NodeList{}
	if err := s.Rig.Nodes.List(ctx, list); err != nil {
		return nil, err
	}
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, s.Tenant.Name+"-") {
			own = append(own, n)
		}
	}
	return own, nil
}

// described checks that the Nodes have the labels and taints of the example, and no other taints.
func (s stage) described(ctx context.Context) (string, error) {
	nodes, err := s.own(ctx)
	for _, n := range nodes {
		want := corev1.Taint{Key: "dedicated", Value: "batch", Effect: corev1.TaintEffectNoSchedule}
		if n.Labels["pool"] != "batch" || len(n.Spec.Taints) != 1 || n.Spec.Taints[0] != want {
			return fmt.Sprintf("Node %s has labels %v and taints %v", n.Name, n.Labels, n.Spec.Taints), nil
		}
	}
	return "", err
}

// approved checks that for each Node a client certificate was approved with this reason, and a
// serving certificate by Drover.
func (s stage) approved(first string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		nodes, err := s.own(ctx)
		if err != nil {
			return "", err
		}
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := s.Rig.Nodes.List(ctx, list); err != nil {
			return "", err
		}
		by := map[string]int{}
		for _, csr := range list.Items {
			block, _ := pem.Decode(csr.Spec.Request)
			request, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				return "", err
			}
			if !strings.HasPrefix(request.Subject.CommonName, "system:node:"+s.Tenant.Name+"-") {
				continue
			}
			for _, c := range csr.Status.Conditions {
				by[csr.Spec.SignerName+" "+string(c.Type)+" "+c.Reason]++
			}
		}
		want := map[string]int{
			certificatesv1.KubeAPIServerClientKubeletSignerName + " Approved " + first: len(nodes),
			certificatesv1.KubeletServingSignerName + " Approved DroverApproved":       len(nodes),
		}
		if !maps.Equal(by, want) {
			return fmt.Sprintf("of %d Nodes the requests are %v", len(nodes), by), nil
		}
		return "", nil
	}
}

// gaveUp checks that n machines gave up joining with the words on their consoles, and that none is
// a Node.
func (s stage) gaveUp(ctx context.Context, n int, words string) (string, error) {
	nodes, err := s.own(ctx)
	if err != nil {
		return "", err
	}
	if len(nodes) > 0 {
		s.Fatalf("%s is a Node", nodes[0].Name)
	}
	failed := 0
	for _, r := range s.Live(s.Books()) {
		if r.Kind != wire.Instance {
			continue
		}
		report, err := s.Rig.Admin.Body(ctx, r.ID)
		if err != nil {
			return "", err
		}
		if report.Phase == body.PhaseFailed && slices.ContainsFunc(report.Console,
			func(line string) bool { return strings.Contains(line, words) }) {
			failed++
			continue
		}
		return fmt.Sprintf("%s is %s: %q", r.Name, report.Phase, report.Console), nil
	}
	if failed != n {
		return fmt.Sprintf("%d machines have given up", failed), nil
	}
	return "", nil
}

// nothingLeft waits until nothing of any machine is left, including the provider's objects and
// tokens. The tokens expire.
func (s stage) nothingLeft() {
	s.Helper()
	s.Empty()
	configs := &unstructured.UnstructuredList{}
	configs.SetAPIVersion("bootstrap.cluster.x-k8s.io/v1beta2")
	configs.SetKind("KubeadmConfigList")
	s.Until("no KubeadmConfig is left", scenario.Empty(s.Rig.Client, configs, s.Namespace))
	s.Until("no user data are left", func(ctx context.Context) (string, error) {
		secrets := &corev1.SecretList{}
		err := s.Rig.Client.List(ctx, secrets, client.InNamespace(s.Namespace))
		for _, secret := range secrets.Items {
			if owner := metav1.GetControllerOf(&secret); owner != nil && owner.Kind == "KubeadmConfig" {
				return "Secret " + secret.Name, nil
			}
		}
		return "", err
	})
	s.Until("no token of the provider's is left", func(ctx context.Context) (string, error) {
		secrets := &corev1.SecretList{}
		err := s.Rig.Nodes.List(ctx, secrets, client.InNamespace(metav1.NamespaceSystem))
		for _, secret := range secrets.Items {
			if strings.Contains(string(secret.Data[bootstrapapi.BootstrapTokenDescriptionKey]), "cluster-api") {
				return fmt.Sprintf("%s, until %s", secret.Name, secret.Data[bootstrapapi.BootstrapTokenExpirationKey]), nil
			}
		}
		return "", err
	})
}
