// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/fleet"
)

// placed is a driver that can only report where its credentials lead.
type placed struct {
	cloud.Driver
	place string
}

func (d placed) Probe(context.Context) (cloud.Info, error) { return cloud.Info{Place: d.place}, nil }

// accountTest is one AWS account whose Secret determines its place.
type accountTest struct {
	*WithT
	*DroverAccountReconciler
	events  *events.FakeRecorder
	account *infrav1.DroverAccount
	secret  *corev1.Secret
}

func newAccountTest(t *testing.T, spec infrav1.DroverAccountSpec) *accountTest {
	t.Helper()
	scheme := runtime.NewScheme()
	g := NewWithT(t)
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
	spec.CredentialsRef = infrav1.LocalReference{Name: "keys"}
	x := &accountTest{
		WithT:  g,
		events: events.NewFakeRecorder(10),
		account: &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "prod", Finalizers: []string{infrav1.AccountFinalizer}}, Spec: spec},
		secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "keys", Labels: map[string]string{infrav1.CredentialsLabel: "aws"}},
			Data:       map[string][]byte{"leads-to": []byte("aws:111111111111:eu-central-1")},
		},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(x.account, x.secret).WithStatusSubresource(x.account).
		WithIndex(&infrav1.DroverAccount{}, accountByCredentials, func(o client.Object) []string {
			return []string{o.(*infrav1.DroverAccount).Spec.CredentialsRef.Name}
		}).
		WithIndex(&infrav1.DroverMachine{}, machineByAccount, func(o client.Object) []string {
			return []string{o.(*infrav1.DroverMachine).Spec.AccountRef.Name}
		}).Build()
	clouds := []cloud.Cloud{{
		Name: "aws",
		Union: driverkit.Fields[infrav1.AWSAccount, infrav1.AWSMachine]{
			Account: func(s *infrav1.DroverAccountSpec) *infrav1.AWSAccount { return s.Cloud.AWS },
			Machine: func(f *infrav1.DroverMachineFields) *infrav1.AWSMachine { return f.Cloud.AWS },
		},
		New: func(c cloud.Config) (cloud.Driver, error) {
			place, ok := c.Credentials["leads-to"]
			if !ok {
				return nil, cloud.Errorf(cloud.Unauthorized, "the Secret lacks the key leads-to")
			}
			return placed{place: string(place)}, nil
		},
		Limits: cloud.Limits{Read: cloud.Limit{PerSecond: 1000, Burst: 1000}, Create: cloud.Limit{PerSecond: 1000, Burst: 1000},
			Delete: cloud.Limit{PerSecond: 1000, Burst: 1000}},
		Batch: cloud.Batch{Read: 1, Delete: 1},
	}}
	x.DroverAccountReconciler = &DroverAccountReconciler{
		Client: c, APIReader: c, Clouds: clouds, Recorder: x.events,
		Accounts: fleet.NewAccounts(fleet.Options{Clouds: clouds, Times: fleet.TimesFor(fleet.DefaultCall)}),
		Changed:  &EventQueue{}, Machines: &EventQueue{}, Endpoints: &EventQueue{},
	}
	return x
}

// reconcile runs the reconciler once, and reads the account again.
func (x *accountTest) reconcile() {
	_, err := x.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(x.account)})
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(x.Client.Get(context.Background(), client.ObjectKeyFromObject(x.account), x.account)).To(Succeed())
}

// ready returns the reason and the message of Ready.
func (x *accountTest) ready() (reason, message string) {
	return conditions.GetReason(x.account, clusterv1.ReadyCondition), conditions.GetMessage(x.account, clusterv1.ReadyCondition)
}

// fill replaces the data of the Secret.
func (x *accountTest) fill(key, value string) {
	x.Expect(x.Client.Get(context.Background(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
	x.secret.Data = map[string][]byte{key: []byte(value)}
	x.Expect(x.Client.Update(context.Background(), x.secret)).To(Succeed())
}

func (x *accountTest) live() *fleet.Account {
	return x.Accounts.Get(client.ObjectKeyFromObject(x.account))
}

// TestPlaceIsRecorded: the reconciler writes the place of the credentials before anything else. The
// account becomes ready only after that.
func TestPlaceIsRecorded(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	x.reconcile()
	x.Expect(x.account.Spec.Place).To(Equal("aws:111111111111:eu-central-1"))
	x.Expect(x.account.Status.Conditions).To(BeEmpty(), "the place comes first")
	live := x.live()
	x.reconcile()
	x.Expect(x.live()).To(BeIdenticalTo(live), "the driver is kept")
	reason, _ := x.ready()
	x.Expect(reason).To(Equal(infrav1.ReadyReason))
}

// TestEditKeepsDriver: an edit of the account's own settings, or a copy of its Secret, makes no
// other driver, which would begin without what this one remembers. Other data of the Secret do.
func TestEditKeepsDriver(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	x.reconcile()
	x.reconcile()
	edit := func(change func()) *fleet.Account {
		change()
		x.Expect(x.Client.Update(t.Context(), x.account)).To(Succeed())
		x.reconcile()
		reason, message := x.ready()
		x.Expect(reason).To(Equal(infrav1.ReadyReason), message)
		return x.live()
	}
	live := x.live()
	x.Expect(edit(func() {
		x.account.Spec.RateLimits = &infrav1.RateLimits{Create: infrav1.RateLimit{PerSecond: "0.5", Burst: 2}}
	})).To(BeIdenticalTo(live))
	x.Expect(edit(func() {
		x.account.Spec.Inventory.IdleSeconds, x.account.Spec.OrphanPolicy = 30, infrav1.OrphanPolicyDelete
	})).To(BeIdenticalTo(live))
	x.Expect(edit(func() {
		other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "copy", Labels: x.secret.Labels}, Data: x.secret.Data}
		x.Expect(x.Client.Create(t.Context(), other)).To(Succeed())
		x.account.Spec.CredentialsRef.Name = "copy"
	})).To(BeIdenticalTo(live))
	x.Expect(edit(func() {
		x.account.Spec.CredentialsRef.Name = "keys"
		x.fill("leads-to", x.account.Spec.Place)
		x.secret.Data["more"] = []byte("x")
		x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
	})).NotTo(BeIdenticalTo(live))
}

// TestConnectionWakes: what waits for the account is reconciled once the account is connected.
func TestConnectionWakes(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	machine := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "m"}}
	machine.Spec.AccountRef.Name = "prod"
	x.Expect(x.Client.Create(t.Context(), machine)).To(Succeed())
	for name, account := range map[string]string{"with": "prod", "elsewhere": "other", "without": ""} {
		cluster := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		cluster.Spec.Endpoint.LoadBalancer.AccountRef.Name = account
		x.Expect(x.Client.Create(t.Context(), cluster)).To(Succeed())
	}
	x.reconcile()
	x.reconcile()
	named := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "team", Name: name}}
	}
	x.Expect(x.Machines.take()).To(ConsistOf(named("m")))
	x.Expect(x.Endpoints.take()).To(ConsistOf(named("with")))
}

// TestPlaceMismatch: the reconciler refuses credentials of another place until the right ones are
// back. The message names both places and the remedy.
func TestPlaceMismatch(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
	var log recorded
	x.Log = log.logger()
	x.reconcile()
	x.reconcile()
	x.fill("leads-to", "aws:222222222222:eu-central-1")
	x.reconcile()
	x.reconcile()
	reason, message := x.ready()
	x.Expect(reason).To(Equal(infrav1.PlaceMismatchReason))
	x.Expect(message).To(And(ContainSubstring("aws:111111111111:eu-central-1"), ContainSubstring("aws:222222222222:eu-central-1"),
		ContainSubstring("restore the credentials"), ContainSubstring("create another DroverAccount")))
	x.Expect(x.account.Spec.Place).To(Equal("aws:111111111111:eu-central-1"))
	x.Expect(x.events.Events).To(HaveLen(1), "one Event, however often it is tried")
	x.Expect(<-x.events.Events).To(And(HavePrefix("Warning PlaceMismatch"), ContainSubstring("aws:222222222222:eu-central-1")))

	x.fill("leads-to", "aws:111111111111:eu-central-1")
	x.reconcile()
	reason, _ = x.ready()
	x.Expect(reason).To(Equal(infrav1.ReadyReason))
	lines := log.grep(t, "")
	x.Expect(said(lines)).To(Equal([]string{"Connected the account", "The account is not ready", "Connected the account"}),
		"one line for each change")
	x.Expect(lines[1].Account).To(Equal("team/prod"))
	x.Expect(lines[1].Reason).To(Equal(infrav1.PlaceMismatchReason))
}

// TestStatedAccountID: an AWS account ID in the spec is compared before a place is recorded.
func TestStatedAccountID(t *testing.T) {
	t.Parallel()
	x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1",
		AccountID: "222222222222"}}})
	x.reconcile()
	reason, message := x.ready()
	x.Expect(reason).To(Equal(infrav1.PlaceMismatchReason))
	x.Expect(message).To(And(ContainSubstring("222222222222"), ContainSubstring("aws:111111111111:eu-central-1")))
	x.Expect(x.account.Spec.Place).To(BeEmpty())
	x.Expect(x.events.Events).To(HaveLen(1))

	x.fill("leads-to", "aws-cn:222222222222:eu-central-1")
	x.reconcile()
	x.Expect(x.account.Spec.Place).To(Equal("aws-cn:222222222222:eu-central-1"))
}

// TestSecretMustServe: a Secret without this cloud's credentials label is neither used nor changed.
func TestSecretMustServe(t *testing.T) {
	t.Parallel()
	for value, command := range map[string]string{
		"":        "kubectl -n team label secret keys drover.io/cloud-credentials=aws",
		"vsphere": "kubectl -n team label --overwrite secret keys drover.io/cloud-credentials=aws",
	} {
		x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
		x.secret.Labels = nil
		if value != "" {
			x.secret.Labels = map[string]string{infrav1.CredentialsLabel: value}
		}
		x.Expect(x.Client.Update(t.Context(), x.secret)).To(Succeed())
		x.reconcile()
		reason, message := x.ready()
		x.Expect(reason).To(Equal(infrav1.SecretInvalidReason), value)
		x.Expect(message).To(ContainSubstring("`"+command+"`"), value)
		x.Expect(x.live()).To(BeNil(), "no driver is made from it")
		x.Expect(x.Client.Get(t.Context(), client.ObjectKeyFromObject(x.secret), x.secret)).To(Succeed())
		x.Expect(x.secret.Labels).NotTo(HaveKey(moveLabel), "a Secret that does not serve is left alone")
	}
}

// TestErrorKeepsTheLiveAccount: if no live account can be made from the account's new state, the
// previous one stays connected.
func TestErrorKeepsTheLiveAccount(t *testing.T) {
	t.Parallel()
	for _, connectOnly := range []bool{false, true} {
		x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
		x.reconcile()
		x.reconcile()
		live := x.live()
		x.Expect(live).NotTo(BeNil())
		x.ConnectOnly = connectOnly
		x.fill("half", "written")
		x.reconcile()
		x.Expect(x.live()).To(BeIdenticalTo(live))
		if connectOnly {
			continue
		}
		reason, message := x.ready()
		x.Expect(reason).To(Equal(string(cloud.Unauthorized)))
		x.Expect(message).To(And(ContainSubstring("leads-to"), ContainSubstring("keeps its previous settings")))
	}
}

// TestSecretGone: a Secret that a user deletes while no VM needs it is gone at once, and its
// account is disconnected. If the namespace is deleted, the Secret stays as long as the account
// does.
func TestSecretGone(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} {
		x := newAccountTest(t, infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: "eu-central-1"}}})
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Finalizers: []string{"example.com/waits"}}}
		x.Expect(x.Client.Create(t.Context(), namespace)).To(Succeed())
		x.reconcile()
		x.reconcile()
		if deleted {
			x.Expect(x.Client.Delete(t.Context(), namespace)).To(Succeed())
		}
		key := client.ObjectKeyFromObject(x.secret)
		credentials := &CredentialsReconciler{Client: x.Client, APIReader: x.Client}
		release := func() error {
			_, err := credentials.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			x.Expect(err).NotTo(HaveOccurred())
			return x.Client.Get(t.Context(), key, x.secret)
		}
		x.Expect(release()).To(Succeed())
		x.Expect(x.secret.Finalizers).To(ConsistOf(infrav1.CredentialsFinalizer), "an account refers to it")
		x.Expect(x.Client.Delete(t.Context(), x.secret)).To(Succeed())
		err := release()
		x.reconcile()
		reason, message := x.ready()
		if !deleted {
			x.Expect(apierrors.IsNotFound(err)).To(BeTrue())
			x.Expect(x.live()).To(BeNil())
			x.Expect(reason).To(Equal(infrav1.SecretInvalidReason))
			x.Expect(message).To(ContainSubstring(`Secret "keys"`))
			continue
		}
		x.Expect(err).NotTo(HaveOccurred())
		x.Expect(x.live()).NotTo(BeNil())
		x.Expect(reason).To(Equal(infrav1.ReadyReason))
		x.Expect(x.Client.Delete(t.Context(), x.account)).To(Succeed())
		_, err = x.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(x.account)})
		x.Expect(err).NotTo(HaveOccurred())
		x.Expect(apierrors.IsNotFound(release())).To(BeTrue(), "no account is left")
	}
}
