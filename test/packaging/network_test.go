// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestNetworkPolicy tests that the example of a NetworkPolicy covers the Pods of all Deployments,
// that each port by name is one that the manager has, that others may only ask for webhooks and
// metrics, and that the metadata services of clouds are out of reach.
func TestNetworkPolicy(t *testing.T) {
	kustomize := strings.TrimSpace(string(run(t, nil, root(t)+"/hack/tool", "kustomize")))
	policies := only[networkingv1.NetworkPolicy](t, objects(t, run(t, nil, kustomize, "build", "config/network-policy")), "NetworkPolicy")
	if len(policies) != 1 || policies[0].Namespace != namespace {
		t.Fatalf("want one NetworkPolicy, in namespace %s, got %+v", namespace, policies)
	}
	policy := policies[0].Spec
	selector, err := metav1.LabelSelectorAsSelector(&policy.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]corev1.Protocol{}
	deployments := only[appsv1.Deployment](t, objects(t, read(t, release(t)+"/infrastructure-components-safety.yaml")), "Deployment")
	for _, d := range deployments {
		if !selector.Matches(labels.Set(d.Spec.Template.Labels)) {
			t.Errorf("the policy does not select the Pods of %s", d.Name)
		}
		for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
			ports[p.Name] = p.Protocol
		}
	}
	if len(deployments) != 2 {
		t.Errorf("%d Deployments were found, want that of the machines and that of the safety controllers", len(deployments))
	}

	var open []string
	for _, rule := range policy.Ingress {
		for _, p := range rule.Ports {
			if ports[p.Port.StrVal] != *p.Protocol {
				t.Errorf("no container has the port %s/%s", p.Port.StrVal, *p.Protocol)
			}
			open = append(open, p.Port.StrVal)
		}
	}
	if slices.Sort(open); !slices.Equal(open, []string{"metrics", "webhook-server"}) {
		t.Errorf("the policy opens the ports %v", open)
	}
	for _, metadata := range []string{"169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254",
		"fe80::a9fe:a9fe"} {
		if reaches(policy.Egress, netip.MustParseAddr(metadata)) {
			t.Errorf("the manager may reach %s", metadata)
		}
	}
	for _, outside := range []string{"192.0.2.1", "2001:db8::1"} {
		if !reaches(policy.Egress, netip.MustParseAddr(outside)) {
			t.Errorf("the manager can't reach an API server at %s", outside)
		}
	}
}

// TestMemoryLimit tests that Go knows of each container's memory limit, with some room for what Go
// does not count.
func TestMemoryLimit(t *testing.T) {
	deployments := only[appsv1.Deployment](t, objects(t, read(t, release(t)+"/infrastructure-components-safety.yaml")), "Deployment")
	for _, d := range deployments {
		for _, c := range d.Spec.Template.Spec.Containers {
			i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
			if i < 0 {
				t.Fatalf("%s: container %s has no GOMEMLIMIT", d.Name, c.Name)
			}
			soft, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[i].Value, "B"))
			if err != nil {
				t.Fatal(err)
			}
			if hard := c.Resources.Limits.Memory().Value(); soft.Value()*10 > hard*9 || soft.Value()*10 < hard*8 {
				t.Errorf("%s: container %s: GOMEMLIMIT is %s of %d bytes, want eight to nine tenths", d.Name, c.Name, c.Env[i].Value, hard)
			}
		}
	}
	if len(deployments) != 2 {
		t.Errorf("%d Deployments were found, want 2", len(deployments))
	}
}

// reaches reports whether a rule without ports allows an address.
func reaches(rules []networkingv1.NetworkPolicyEgressRule, address netip.Addr) bool {
	in := func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(address) }
	for _, rule := range rules {
		for _, to := range rule.To {
			if to.IPBlock != nil && len(rule.Ports) == 0 && in(to.IPBlock.CIDR) && !slices.ContainsFunc(to.IPBlock.Except, in) {
				return true
			}
		}
	}
	return false
}
