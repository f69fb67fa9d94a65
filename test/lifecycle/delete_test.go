// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestDependantsGoToo checks that deleting a machine leaves neither its data disks nor its NIC
// behind.
func TestDependantsGoToo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2,
		Machine: infrav1.SimulatedMachine{DataDisks: []infrav1.SimulatedDataDisk{{SizeGiB: 10}, {SizeGiB: 20}}}}
	s.create(pool.Objects()...)
	s.until("two machines are ready", pool.Ready(env.view, 2))
	if n := len(s.resources()); n != 2*(1+1+3) {
		t.Errorf("the cloud has %d resources, want 2 VMs, 2 NICs and 6 disks", n)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// TestDeletionOfTheBroken checks that a deletion needs neither the templates nor the bootstrap
// config.
func TestDeletionOfTheBroken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	configs := &bootstrapv1.DroverConfigList{}
	if err := env.client.List(s.ctx, configs, client.InNamespace(s.Namespace)); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Template(pool.Name, pool.Machine), pool.ConfigTemplate(),
		&configs.Items[0]); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// TestDeletionOfTheCluster deletes the Cluster with all its machines, which Cluster API does
// without draining them.
func TestDeletionOfTheCluster(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2}
	s.create(pool.Objects()...)
	s.until("two machines are ready", pool.Ready(env.view, 2))
	machines := s.machines()
	if err := scenario.Delete(s.ctx, env.client, s.Cluster()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
	for _, m := range machines { // an adopted cluster lives on, and Cluster API deletes no Node while it deletes the Cluster
		s.until("the Node is gone", s.deleted(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}))
	}
	s.until("the Cluster and its footing are gone", func(context.Context) (string, error) {
		for _, o := range []client.Object{s.Cluster(), s.DroverCluster(), s.ControlPlane()} {
			err := env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o)
			if err == nil {
				return fmt.Sprintf("%T is still there", o), nil
			}
			if client.IgnoreNotFound(err) != nil {
				return "", err
			}
		}
		return "", nil
	})
}

// TestDeletionOfTheNamespace deletes a whole namespace, and with it the credentials, in any order
// that Kubernetes chooses. The Secret stays until the VMs are deleted. In the end nothing is left,
// neither in the cloud nor of the namespace. The test failed when the account was disconnected
// together with its Secret.
func TestDeletionOfTheNamespace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 3,
		Machine: infrav1.SimulatedMachine{DataDisks: []infrav1.SimulatedDataDisk{{SizeGiB: 1}}}}
	s.create(pool.Objects()...)
	s.until("the machines are ready", pool.Ready(env.view, 3))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	if err := scenario.Delete(s.ctx, env.client, namespace); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left in the cloud", func(context.Context) (string, error) {
		if n := len(s.resources()); n > 0 {
			return fmt.Sprintf("%d resources", n), nil
		}
		return "", nil
	})
	s.soon("the namespace is gone", s.deleted(namespace))
}

// TestDeletionOfTheNamespaceWithoutManager deletes a whole namespace while no manager runs. The
// next manager finds the credentials, deletes the VMs, and releases the Secret. The test failed
// when Kubernetes deleted the Secret first. It is not parallel, because it stops the manager that
// all tests share.
func TestDeletionOfTheNamespaceWithoutManager(t *testing.T) {
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2}
	s.create(pool.Objects()...)
	s.until("the machines are ready", pool.Ready(env.view, 2))
	env.drover.Kill()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}
	if err := scenario.Delete(s.ctx, env.client, namespace); err != nil {
		t.Fatal(err)
	}
	s.soon("all Secrets are deleted that can be", func(ctx context.Context) (string, error) {
		secrets := &corev1.SecretList{}
		if err := env.client.List(ctx, secrets, client.InNamespace(s.Namespace)); err != nil {
			return "", err
		}
		for i := range secrets.Items {
			if secrets.Items[i].DeletionTimestamp.IsZero() {
				return secrets.Items[i].Name, nil
			}
		}
		return "", nil
	})
	var err error
	if env.drover, err = startDrover(s.ctx); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left in the cloud", func(context.Context) (string, error) {
		if n := len(s.resources()); n > 0 {
			return fmt.Sprintf("%d resources", n), nil
		}
		return "", nil
	})
	s.soon("the namespace is gone", s.deleted(namespace))
}

// TestSecretOfTheUser checks that a Secret with credentials that a user deletes is gone at once if
// no VM needs it, also while an account refers to it.
func TestSecretOfTheUser(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Account().Spec.CredentialsRef.Name}}
	s.soon("the Secret has the finalizer", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
			return "", err
		}
		if !slices.Contains(secret.Finalizers, infrav1.CredentialsFinalizer) {
			return fmt.Sprint(secret.Finalizers), nil
		}
		return "", nil
	})
	if err := scenario.Delete(s.ctx, env.client, secret); err != nil {
		t.Fatal(err)
	}
	s.soon("the Secret is gone", s.deleted(secret))
	s.soon("the account says so", s.account(infrav1.SecretInvalidReason))
}

// TestAccountUnderDeletionAfterARestart checks that a restarted manager connects an account again
// that waits for its machines. The test is not parallel, because it restarts the manager that all
// tests share.
func TestAccountUnderDeletionAfterARestart(t *testing.T) {
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	if err := scenario.Delete(s.ctx, env.client, s.Account()); err != nil {
		t.Fatal(err)
	}
	s.soon("the account says that it is in use", s.account(infrav1.InUseReason))
	env.drover.Kill()
	var err error
	if env.drover, err = startDrover(s.ctx); err != nil {
		t.Fatal(err)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
	s.soon("the account is gone", s.deleted(s.Account()))
}

// TestDeletionWithoutItsCluster checks that a machine is deleted by its token alone after its
// Cluster and DroverCluster were removed by force.
func TestDeletionWithoutItsCluster(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	machine := s.machines()[0]
	for _, o := range []client.Object{s.Cluster(), s.DroverCluster()} {
		if err := scenario.Delete(s.ctx, env.client, o); err != nil {
			t.Fatal(err)
		}
		s.until("it is torn out", func(ctx context.Context) (string, error) {
			return s.tearOut(ctx, o)
		})
	}
	if err := scenario.Delete(s.ctx, env.client, &machine); err != nil {
		t.Fatal(err)
	}
	s.until("the machine is gone", s.deleted(&machine))
	if n := len(s.resources()); n != 0 {
		t.Errorf("%d resources are left in the cloud", n)
	}
}

// tearOut removes an object's finalizers. It returns "" once the object is gone.
func (s *stage) tearOut(ctx context.Context, o client.Object) (string, error) {
	err := env.client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if err != nil {
		return "", client.IgnoreNotFound(err)
	}
	o.SetFinalizers(nil)
	if err := env.client.Update(ctx, o); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return "", err
	}
	return fmt.Sprintf("%T is still there", o), nil
}

// TestAccountWaitsForItsMachines checks that an account stays until the machines that need it are
// deleted.
func TestAccountWaitsForItsMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	account := s.Account()
	if err := scenario.Delete(s.ctx, env.client, account); err != nil {
		t.Fatal(err)
	}
	s.until("the account says that it is in use", s.account(infrav1.InUseReason))
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
	s.until("the account is gone", s.deleted(account))
}

// TestAbandon checks that a machine whose credentials never work again reports it, and that a user
// can abandon it with an annotation that holds exactly its own name.
func TestAbandon(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	if err := env.admin.SetAccount(s.ctx, simulator.AccountOptions{Name: s.Name, Tokens: []string{"revoked"}}); err != nil {
		t.Fatal(err)
	}
	machine := s.machines()[0]
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.until("the machine says that the cloud refuses", s.ready(&machine, infrav1.UnauthorizedReason))
	s.annotate(&machine, "*")
	s.stays("a machine abandoned by another name", func() string {
		if len(s.machines()) == 0 {
			return "it was let go"
		}
		return ""
	})
	s.annotate(&machine, machine.Name)
	s.until("the machine is let go", s.deleted(&machine))
	s.until("an Event warns of it", s.event("Abandoned", machine.Spec.Creation.Token))
	if n := len(s.live()); n != 1 {
		t.Errorf("the cloud has %d VMs, want the one that was let go", n)
	}
}

func (s *stage) annotate(m *infrav1.DroverMachine, value string) {
	s.Helper()
	fresh := &infrav1.DroverMachine{}
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(m), fresh); err != nil {
		s.Fatal(err)
	}
	before := fresh.DeepCopy()
	if fresh.Annotations == nil {
		fresh.Annotations = map[string]string{}
	}
	fresh.Annotations[infrav1.AbandonAnnotation] = value
	if err := env.client.Patch(s.ctx, fresh, client.MergeFrom(before)); err != nil {
		s.Fatal(err)
	}
}

// event checks that the test's namespace has an Event with the reason and the words.
func (s *stage) event(reason string, words ...string) scenario.Check {
	return eventIn(env.client, s.Namespace, reason, words...)
}

func eventIn(r client.Reader, namespace, reason string, words ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		list := &corev1.EventList{}
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		for _, e := range list.Items {
			found := e.Reason == reason
			for _, w := range words {
				found = found && strings.Contains(e.Message, w)
			}
			if found {
				return "", nil
			}
		}
		return fmt.Sprintf("no Event has the reason %s and says %q", reason, words), nil
	}
}

// TestMachineByItself checks a Machine without a MachineDeployment, with the longest name that
// Cluster API accepts.
func TestMachineByItself(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	owner := s.single("a-machine-with-a-name." + strings.Repeat("x",
		39)) // 61 characters, with a dot: valid neither as a cloud's name nor as a hostname label
	s.until("the Machine has a Node", s.hasNode(owner))
	if err := scenario.Delete(s.ctx, env.client, owner); err != nil {
		t.Fatal(err)
	}
	s.until("nothing is left", s.gone())
}

// single creates a Machine without a MachineDeployment.
func (s *stage) single(name string, change ...func(*clusterv1.Machine)) *clusterv1.Machine {
	s.Helper()
	owner, machine := handMade(s.Adopted, name, "")
	config := &bootstrapv1.DroverConfig{ObjectMeta: s.meta(name)}
	owner.Spec.Bootstrap = clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
		APIGroup: bootstrapv1.GroupVersion.Group, Kind: "DroverConfig", Name: name}}
	for _, c := range change {
		c(owner)
	}
	s.create(machine, config, owner)
	return owner
}

// hasNode checks that a Machine has a Node.
func (s *stage) hasNode(m *clusterv1.Machine) scenario.Check {
	return func(ctx context.Context) (string, error) {
		have := &clusterv1.Machine{}
		if err := env.view.Get(ctx, client.ObjectKeyFromObject(m), have); err != nil {
			return "it is not seen yet", client.IgnoreNotFound(err)
		}
		if !have.Status.NodeRef.IsDefined() {
			return "it has none", nil
		}
		return "", nil
	}
}
