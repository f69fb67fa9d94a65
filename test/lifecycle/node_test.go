// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestNodeWithoutProviderID uses another bootstrap provider: its kubelet does not know its provider
// ID. Drover finds the Node by its name and the VM's address, and Cluster API finds it by the
// provider ID that Drover sets.
func TestNodeWithoutProviderID(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	node := "ip-of-" + strings.ToLower(s.Name)
	s.create(s.foreignData("data", node))
	owner, machine := s.byHand(node, "data")
	s.approve(node)
	s.soon("the Machine has its Node", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(owner), owner); err != nil {
			return "", err
		}
		if owner.Status.NodeRef.Name != node {
			return fmt.Sprintf("it has %q", owner.Status.NodeRef.Name), nil
		}
		return "", nil
	})
	have := &corev1.Node{}
	if err := env.client.Get(s.ctx, client.ObjectKey{Name: node}, have); err != nil {
		t.Fatal(err)
	}
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
		t.Fatal(err)
	}
	if have.Spec.ProviderID == "" || have.Spec.ProviderID != machine.Spec.ProviderID {
		t.Errorf("the Node has provider ID %q, and the machine %q", have.Spec.ProviderID, machine.Spec.ProviderID)
	}
	if err := scenario.Delete(s.ctx, env.client, owner); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
	s.soon("the Node is gone", s.deleted(have))
}

// TestNodesBringTheListing checks that Drover soon knows that the VM of a new Node runs, although
// the account's next listing is ten minutes off: the listing comes when all starting machines have
// joined. The test failed when Nodes did not bring the listing forward.
func TestNodesBringTheListing(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(a *scenario.Adopted) {
		a.Inventory = infrav1.InventorySpec{IdleSeconds: 3600, ActiveSeconds: 600}
	})
	s.until("the cluster is available", s.Available(env.view))
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3}
	s.create(pool.Objects()...)
	s.soon("three machines are ready", pool.Ready(env.client, 3))
}

// nodeBeforeItsAddress registers a Node without a provider ID after its machine has looked for it,
// while the manager's cache still lacks the machine's addresses, by which the Node is found. Drover
// links the Node all the same. The test failed when a write of addresses did not requeue the
// machine.
func (h *house) nodeBeforeItsAddress() {
	const behind = 12 * time.Second
	pool := h.adopted("address-late")
	// The answer to the create is lost, so the VM already runs when Drover first sees it and
	// records its addresses.
	h.fault(simulator.Fault{Kind: simulator.CutAfter, Operation: wire.RunInstances, Account: "house-address-late", Count: 1})
	var written atomic.Bool
	drover := h.start("--kubeconfig=" + h.proxied(faultproxy.Options{
		Name: "late", Rule: func(_ context.Context, c faultproxy.Call, at faultproxy.Point) faultproxy.Verdict {
			if at == faultproxy.Before && c.Resource == "drovermachines" && slices.Contains(c.Fields, "status.addresses") {
				written.Store(true)
			}
			return faultproxy.Verdict{}
		},
		Lag: func(c faultproxy.Call) time.Duration {
			if c.Resource == "drovermachines" && written.Load() {
				return behind
			}
			return 0
		},
	}))
	const name = "before-its-address"
	owner, machine := handMade(pool.Cluster, name, "nothing")
	h.create(append(pool.Cluster.Objects(), machine, owner,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: owner.Namespace, Name: "nothing"},
			Data: map[string][]byte{"value": []byte("#cloud-config\n")}})...)
	h.soon("the machine's addresses are written down", func(context.Context) (string, error) {
		if !written.Load() {
			return "they are not", nil
		}
		return "", nil
	})
	<-time.After(behind / 2) // until the events of the cloud's listings are handled
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	h.create(node)
	before := node.DeepCopy()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.instances(pool)[0].PrivateIP}}
	if err := h.client.Status().Patch(h.ctx, node, client.MergeFrom(before)); err != nil {
		h.Fatal(err)
	}
	var cancel context.CancelFunc // machines without a Node are reconciled within minutes anyway
	whole := h.ctx
	h.ctx, cancel = context.WithTimeout(whole, 2*time.Minute)
	defer cancel()
	h.soon("the Node is the machine's", func(ctx context.Context) (string, error) {
		if err := h.client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil || node.Spec.ProviderID == "" {
			return "it has no provider ID", err
		}
		return "", nil
	})
	h.ctx = whole
	h.delete(owner)
	h.soon("nothing is left", h.gone(pool))
	drover.Kill()
}

// TestNodeThatNobodyMatched checks that a machine that is deleted before Cluster API knows its Node
// takes the Node along. No other controller would delete it.
func TestNodeThatNobodyMatched(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	node := "ip-of-" + strings.ToLower(s.Name)
	s.create(s.foreignData("data", node))
	owner, machine := s.byHand(node, "data")
	s.until("the VM is there", func(ctx context.Context) (string, error) {
		if len(s.live()) == 0 {
			return "it is not", nil
		}
		return "", nil
	})
	s.pauseObject(owner, `""`) // from here on Cluster API matches no Node
	s.approve(node)
	have := &corev1.Node{}
	s.soon("the Node has the provider ID", func(ctx context.Context) (string, error) {
		err := env.client.Get(ctx, client.ObjectKey{Name: node}, have)
		if err != nil || have.Spec.ProviderID == "" {
			return "it has not", client.IgnoreNotFound(err)
		}
		return "", nil
	})
	if err := scenario.Delete(s.ctx, env.client, machine); err != nil {
		t.Fatal(err)
	}
	s.soon("the DroverMachine is gone", s.deleted(machine))
	s.soon("the Node is gone", s.deleted(have))
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(owner), owner); err != nil || owner.Status.NodeRef.IsDefined() {
		t.Errorf("Cluster API knew the Node, so this showed nothing: %+v, %v", owner.Status.NodeRef, err)
	}
	s.pauseObject(owner, "null")
	if err := scenario.Delete(s.ctx, env.client, owner); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}

// TestNodeThatCameLast checks that a Node without a provider ID that registers just before its VM
// is deleted, or whose addresses are unknown, is deleted with the VM, by its name. A Node of that
// name that is older than the machine is not the machine's, and stays. The test failed both ways:
// with a Node that stayed, and with one that was deleted.
func TestNodeThatCameLast(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	name := func(of string) string { return of + "-of-" + strings.ToLower(s.Name) }
	nothing := &corev1.Secret{ObjectMeta: s.meta("nothing"), Data: map[string][]byte{"value": []byte("#cloud-config\n")}}
	there := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name("old")}}
	s.create(nothing, there)
	<-time.After(time.Second) // ages are compared in whole seconds
	_, machine := s.byHand(name("new"), "nothing")
	_, other := s.byHand(there.Name, "nothing")
	for _, m := range []*infrav1.DroverMachine{machine, other} {
		s.soon("both VMs run", says(m, clusterv1.ReadyCondition, infrav1.ReadyReason))
	}
	came := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}}
	s.create(came)
	for _, m := range []*infrav1.DroverMachine{machine, other} {
		if err := scenario.Delete(s.ctx, env.client, &clusterv1.Machine{ObjectMeta: s.meta(m.Name)}); err != nil {
			t.Fatal(err)
		}
		s.soon("the DroverMachine is gone", s.deleted(m))
	}
	s.soon("the Node that came is gone", s.deleted(came))
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(there), there); err != nil {
		t.Errorf("the Node that was there before: %v", err)
	}
	if err := scenario.Delete(s.ctx, env.client, there); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}

// TestAddressOfTwoMachines checks that a Node at a private address that two clouds gave to two
// machines of one cluster is linked to the machine whose name it has, and not to the other one.
func TestAddressOfTwoMachines(t *testing.T) {
	t.Parallel()
	const network = "10.82.0.0/16"
	first, _ := ownCloud(t, network)
	second, _ := ownCloud(t, network)
	s := newStage(t, func(a *scenario.Adopted) { a.Endpoint, a.Token = first.URL, first.Token })
	other := s.Adopted
	other.Name += "-2"
	other.Endpoint = second.URL
	s.create(other.Account(), scenario.Credentials(s.meta(other.Name+"-credentials"), "simulated",
		map[string][]byte{"token": []byte(second.Token)}))
	node := "ip-of-" + strings.ToLower(s.Name)
	s.create(s.foreignData("data", node), &corev1.Secret{ObjectMeta: s.meta("nothing"),
		Data: map[string][]byte{"value": []byte("#cloud-config\n")}})
	_, machine := s.byHand(node, "data")
	_, twin := s.byHand("twin", "nothing", func(m *infrav1.DroverMachine) { m.Spec.AccountRef.Name = other.Name })
	for _, m := range []*infrav1.DroverMachine{machine, twin} {
		s.soon("both VMs run", says(m, clusterv1.ReadyCondition, infrav1.ReadyReason))
	}
	s.approve(node)
	have := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.soon("the Node is the machine's", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(have), have); err != nil {
			return "", err
		}
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(machine), machine); err != nil {
			return "", err
		}
		if have.Spec.ProviderID == "" || have.Spec.ProviderID != machine.Spec.ProviderID {
			return fmt.Sprintf("the Node has provider ID %q, the machine %q", have.Spec.ProviderID, machine.Spec.ProviderID), nil
		}
		return "", nil
	})
}

// foreignData returns a Secret with user data without a provider ID, and creates their token, of
// which Drover knows nothing.
func (s *stage) foreignData(name, node string) *corev1.Secret {
	s.Helper()
	token, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		s.Fatal(err)
	}
	const group = "system:bootstrappers:foreign"
	id, secret, _ := strings.Cut(token, ".")
	s.create(
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)},
			Type:       bootstrapapi.SecretTypeBootstrapToken,
			StringData: map[string]string{
				bootstrapapi.BootstrapTokenIDKey: id, bootstrapapi.BootstrapTokenSecretKey: secret,
				bootstrapapi.BootstrapTokenUsageAuthentication: "true", bootstrapapi.BootstrapTokenExtraGroupsKey: group,
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "foreign-bootstrappers"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		},
	)
	data, err := render.UserData(render.Input{
		Spec: &bootstrapv1.DroverConfigSpec{}, NodeName: node, Server: env.management.URL, CA: env.management.CA(), Token: token,
	})
	if err != nil {
		s.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: s.meta(name), Data: map[string][]byte{"value": data}}
}

// approve acts as the other provider's approver: it approves the Node's certificates until the Node
// exists. Drover does not approve them.
func (s *stage) approve(node string) {
	s.Helper()
	c, err := kubernetes.NewForConfig(env.management.AdminConfig())
	if err != nil {
		s.Fatal(err)
	}
	const approver = "Foreign"
	s.soon("the Node has its certificate, and registers", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}); !apierrors.IsNotFound(err) {
			return "", err
		}
		list, err := c.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			csr := &list.Items[i]
			request, err := parseRequest(csr.Spec.Request)
			if err != nil || request.Subject.CommonName != "system:node:"+node ||
				csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
				continue
			}
			if decided := csr.Status.Conditions; len(decided) > 0 {
				if decided[0].Reason != approver {
					return "", fmt.Errorf("somebody else decided: %+v", decided)
				}
				continue
			}
			csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
				Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: approver, LastUpdateTime: metav1.Now(),
			}}
			if _, err := c.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
				return "", err
			}
		}
		return "it is not there", nil
	})
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// nodeGoneBeforeItsTrouble deletes a second Node with a machine's provider ID before the manager's
// cache has the condition that the manager wrote about it. The machine clears the condition all the
// same. The test failed when that write did not requeue the machine.
func (h *house) nodeGoneBeforeItsTrouble() {
	pool := h.adopted("trouble-late")
	pool.Replicas = 1
	var behind atomic.Bool
	drover := h.start("--kubeconfig=" + h.proxied(faultproxy.Options{
		Name: "late", Lag: func(c faultproxy.Call) time.Duration {
			if c.Resource == "drovermachines" && behind.Load() {
				return 8 * time.Second
			}
			return 0
		},
	}))
	h.create(append(pool.Cluster.Objects(), pool.Objects()...)...)
	h.soon("a machine is ready", pool.Ready(h.client, 1))
	list := &infrav1.DroverMachineList{}
	if err := h.client.List(h.ctx, list, client.InNamespace(pool.Cluster.Namespace)); err != nil || len(list.Items) != 1 {
		h.Fatalf("there are %d DroverMachines (%v)", len(list.Items), err)
	}
	machine := &list.Items[0]
	troubled := func(ctx context.Context) (*metav1.Condition, error) {
		err := h.client.Get(ctx, client.ObjectKeyFromObject(machine), machine)
		c := conditions.Get(machine, infrav1.MachineNodeJoinedCondition)
		if c == nil || c.Status != metav1.ConditionFalse {
			return nil, err
		}
		return c, err
	}
	behind.Store(true)
	impostor := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "impostor-for-a-moment"},
		Spec: corev1.NodeSpec{ProviderID: machine.Spec.ProviderID}}
	h.create(impostor)
	h.soon("the machine reports two Nodes", func(ctx context.Context) (string, error) {
		if c, err := troubled(ctx); c == nil || err != nil {
			return "it does not", err
		}
		return "", nil
	})
	h.delete(impostor)
	h.soon("the machine is content again", func(ctx context.Context) (string, error) {
		if c, err := troubled(ctx); c != nil || err != nil {
			return fmt.Sprintf("it still says %v", c), err
		}
		return "", nil
	})
	behind.Store(false)
	h.delete(pool.Deployment())
	h.soon("nothing is left", h.gone(pool))
	drover.Kill()
}

// TestNodesThatCannotBeToldApart checks that Drover does not guess between two Nodes that claim to
// be the same machine: the machine names both until one is gone. It links no Node that only claims
// the VM's address.
func TestNodesThatCannotBeToldApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	machine := s.machines()[0]
	vm := s.instanceOf(&machine)
	told := func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(&machine), &machine); err != nil {
			return "", err
		}
		if c := conditions.Get(&machine, infrav1.MachineNodeJoinedCondition); c != nil && c.Status != metav1.ConditionTrue {
			return "it still says: " + c.Message, nil
		}
		return "", nil
	}
	impostor := &corev1.Node{Spec: corev1.NodeSpec{ProviderID: machine.Spec.ProviderID}}
	impostor.Name = "impostor-of-" + s.Name
	s.create(impostor)
	s.soon("the machine reports two Nodes with its provider ID", says(&machine, infrav1.MachineNodeJoinedCondition,
		infrav1.DuplicateNodesReason, machine.Name, impostor.Name))
	if !conditions.IsTrue(&machine, clusterv1.ReadyCondition) {
		t.Error("the VM runs on, and its machine is not ready")
	}
	if err := scenario.Delete(s.ctx, env.client, impostor); err != nil {
		t.Fatal(err)
	}
	s.soon("the machine is content again", told)

	// Nodes without a provider ID claim the VM's address: neither has the machine's name, so
	// neither is linked.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine.Name}}
	claimants := []*corev1.Node{{}, {}}
	for i, claimant := range claimants {
		claimant.Name = fmt.Sprintf("claimant-%d-of-%s", i, s.Name)
		s.create(claimant)
		s.soon("the claimant has an address", func(ctx context.Context) (string, error) {
			if err := env.client.Get(ctx, client.ObjectKeyFromObject(claimant), claimant); err != nil {
				return "", err
			}
			claimant.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: vm.PrivateIP}}
			if err := env.client.Status().Update(ctx, claimant); apierrors.IsConflict(err) {
				return "someone else wrote the Node", nil
			} else if err != nil {
				return "", err
			}
			return "", nil
		})
	}
	unlinked := func() string {
		for _, claimant := range claimants {
			if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(claimant), claimant); err != nil || claimant.Spec.ProviderID != "" {
				return fmt.Sprintf("Node %s has provider ID %q (%v)", claimant.Name, claimant.Spec.ProviderID, err)
			}
		}
		return ""
	}
	s.stays("a Node at the same address, while the machine has one", unlinked)
	// The real Node is deleted, and its VM hangs, so the Node does not come back by itself.
	if err := env.admin.Act(s.ctx, vm.ID, "Hang"); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, env.client, node); err != nil {
		t.Fatal(err)
	}
	s.touch(&machine) // the deletion of its only Node is no event for it
	s.stays("a Node at the same address, while the machine has none", unlinked)
	for _, claimant := range claimants {
		if err := scenario.Delete(s.ctx, env.client, claimant); err != nil {
			t.Fatal(err)
		}
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}
