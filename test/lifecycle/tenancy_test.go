// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/test/internal/scenario"
)

// meta returns the metadata of an object in this test's namespace.
func (s *stage) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.Namespace, Name: name}
}

// conditioned is an object with conditions.
type conditioned interface {
	client.Object
	conditions.Getter
}

// says checks that a condition of an object has the reason, and the words in its message.
func says(o conditioned, condition, reason string, words ...string) scenario.Check {
	return saysTo(env.client, o, condition, reason, words...)
}

func saysTo(r client.Reader, o conditioned, condition, reason string, words ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		if err := r.Get(ctx, client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
			return fmt.Sprintf("%T %s does not exist", o, o.GetName()), nil
		} else if err != nil {
			return "", err
		}
		c := conditions.Get(o, condition)
		if c == nil || c.Reason != reason {
			return fmt.Sprintf("%T %s has %s %+v, want reason %s", o, o.GetName(), condition, c, reason), nil
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Sprintf("the message %q does not say %q", c.Message, w), nil
			}
		}
		return "", nil
	}
}

// soon is until for objects that the view does not follow: it polls several times a second.
func (s *stage) soon(what string, check scenario.Check) {
	s.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	still, err := "it was never looked at", error(nil)
	for s.ctx.Err() == nil {
		if still, err = check(s.ctx); still == "" && err == nil {
			return
		}
		select {
		case <-s.ctx.Done():
		case <-tick.C:
		}
	}
	s.Fatalf("waiting until %s: %s (%v)\n%s", what, still, err, s.describe())
}

// onlyMachine checks that the Ready condition of the test's one DroverMachine has the reason, and
// the words in its message.
func (s *stage) onlyMachine(reason string, words ...string) scenario.Check {
	return func(ctx context.Context) (string, error) {
		machines := s.machines()
		if len(machines) != 1 {
			return fmt.Sprintf("there are %d DroverMachines", len(machines)), nil
		}
		return says(&machines[0], clusterv1.ReadyCondition, reason, words...)(ctx)
	}
}

// TestOtherNamespacesAreOutOfReach checks that an account, a Secret or a template in another
// namespace is not used, although its name matches.
func TestOtherNamespacesAreOutOfReach(t *testing.T) {
	t.Parallel()
	rich := newStage(t)
	rich.until("the neighbor's account works", rich.account(infrav1.ReadyReason))
	poor := &stage{T: t, ctx: rich.ctx, Adopted: rich.Adopted}
	poor.Namespace += "-poor"
	cluster := poor.DroverCluster()
	cluster.Spec.AccountRefs = nil // otherwise the Cluster itself would wait for the account
	poor.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: poor.Namespace}}, cluster, poor.ControlPlane(), poor.Cluster())
	poor.soon("the control plane waits for its kubeconfig", says(poor.ControlPlane(), clusterv1.AvailableCondition,
		controlplanev1.KubeconfigMissingReason, poor.Name+"-adopted"))
	poor.create(&corev1.Secret{ObjectMeta: poor.meta(poor.Name + "-adopted"), Data: map[string][]byte{"value": poor.Kubeconfig}})

	pool := scenario.Pool{Cluster: poor.Adopted, Name: "pool", Replicas: 1}
	foreign := scenario.Pool{Cluster: rich.Adopted, Name: "pool"}
	rich.create(foreign.Template("pool", infrav1.SimulatedMachine{}))
	poor.create(pool.ConfigTemplate(), pool.Deployment())
	poor.stays("a MachineDeployment whose template is in another namespace", func() string {
		if n := len(poor.machines()); n != 0 {
			return fmt.Sprintf("%d machines were made", n)
		}
		return ""
	})
	poor.create(pool.Template("pool", infrav1.SimulatedMachine{}))
	poor.soon("the machine waits for an account", poor.onlyMachine(infrav1.WaitingForAccountReason, poor.Name, "in this namespace"))
	poor.soon("the user data waits for it, too", says(poor.onlyConfig(), clusterv1.ReadyCondition,
		bootstrapv1.WaitingForInfrastructureReason, poor.Name))

	poor.create(poor.Account())
	account := poor.Account()
	poor.soon("the account waits for its Secret", says(account, clusterv1.ReadyCondition, infrav1.SecretInvalidReason,
		poor.Name+"-credentials", "in this namespace"))
	poor.stays("the cloud", func() string {
		if n := len(rich.live()); n != 0 {
			return fmt.Sprintf("%d VMs were made in the neighbor's account", n)
		}
		return ""
	})
}

// TestReferencesHaveNoNamespace checks that no reference has a namespace: strict validation rejects
// one as an unknown field, and the API server drops one from an old client.
func TestReferencesHaveNoNamespace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	fields := map[string]any{"accountRef": map[string]any{"name": "a", "namespace": "other"},
		"cloud": map[string]any{"simulated": map[string]any{}}}
	for name, o := range map[string]struct {
		apiVersion, kind, path string
		spec                   map[string]any
	}{
		"machine": {infrav1.GroupVersion.String(), "DroverMachine", "spec.accountRef", fields},
		"template": {infrav1.GroupVersion.String(), "DroverMachineTemplate", "spec.template.spec.accountRef",
			map[string]any{"template": map[string]any{"spec": fields}}},
		"account": {infrav1.GroupVersion.String(), "DroverAccount", "spec.credentialsRef", map[string]any{
			"credentialsRef": map[string]any{"name": "a", "namespace": "other"}, "cloud": map[string]any{"simulated": map[string]any{}}}},
		"control-plane": {controlplanev1.GroupVersion.String(), "AdoptedControlPlane", "spec.kubeconfigRef", map[string]any{
			"kubeconfigRef": map[string]any{"name": "a", "namespace": "other"}}},
		"cluster": {infrav1.GroupVersion.String(), "DroverCluster", "spec.accountRefs", map[string]any{
			"accountRefs": []any{map[string]any{"name": "a", "namespace": "other"}}}},
	} {
		object := func() *unstructured.Unstructured {
			u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": o.apiVersion, "kind": o.kind}}
			u.Object["spec"] = (&unstructured.Unstructured{Object: o.spec}).DeepCopy().Object
			u.SetNamespace(s.Namespace)
			u.SetName(name)
			return u
		}
		strict := client.WithFieldValidation(env.client, metav1.FieldValidationStrict)
		err := strict.Create(s.ctx, object())
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "unknown field") || !strings.Contains(err.Error(), o.path) {
			t.Errorf("%s: a namespace in %s is answered with %v, want it refused as unknown", o.kind, o.path, err)
		}
		lenient := object()
		if err := client.WithFieldValidation(env.client, metav1.FieldValidationIgnore).Create(s.ctx, lenient); err != nil {
			t.Errorf("%s: %v", o.kind, err)
			continue
		}
		if text, err := lenient.MarshalJSON(); err != nil || strings.Contains(string(text), `"other"`) {
			t.Errorf("%s: the namespace was kept: %s (%v)", o.kind, text, err)
		}
	}
}

// listener starts an endpoint and counts the calls that reach it.
func (s *stage) listener(answer http.HandlerFunc) (url string, calls *atomic.Int64) {
	s.Helper()
	calls = &atomic.Int64{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // only then is a caller's disconnect seen
		answer(w, r)
	}))
	s.Cleanup(server.Close)
	return server.URL, calls
}

func (s *stage) change(o client.Object, change func()) error {
	s.Helper()
	if err := env.client.Get(s.ctx, client.ObjectKeyFromObject(o), o); err != nil {
		s.Fatal(err)
	}
	before := o.DeepCopyObject().(client.Object)
	change()
	return env.client.Patch(s.ctx, o, client.MergeFrom(before))
}

// TestAmbientCredentials checks that the manager's own credentials serve only the namespaces that
// the operator listed, and only the operator's endpoint.
func TestAmbientCredentials(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ambient := func(namespace, name string) *infrav1.DroverAccount {
		return &infrav1.DroverAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{Simulated: &infrav1.SimulatedAccount{}}}}
	}
	for _, namespace := range []string{"operator", "operators", s.Namespace} {
		s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, ambient(namespace, "ambient"))
	}
	inside := ambient("operator", "ambient")
	s.soon("an account of the operator's works", says(inside, clusterv1.ReadyCondition, infrav1.ReadyReason))
	if len(inside.Status.FailureDomains) == 0 {
		t.Error("the operator's account knows no zone, so the cloud was not asked")
	}
	for _, namespace := range []string{"operators", s.Namespace} {
		s.soon("a tenant's account is refused", says(ambient(namespace, "ambient"), clusterv1.ReadyCondition,
			infrav1.NotPermittedReason, namespace, "--ambient-credentials-namespaces", "credentialsRef"))
	}

	url, calls := s.listener(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	own := ambient("operator", "own-endpoint")
	own.Spec.Cloud.Simulated.Endpoint = url
	s.refused(own, "spec.cloud.simulated.endpoint", "set credentialsRef")
	if err := s.change(inside, func() { inside.Spec.Cloud.Simulated.Endpoint = url }); err == nil ||
		!strings.Contains(err.Error(), "endpoint can't be changed") {
		t.Errorf("an ambient account was given an endpoint: %v", err)
	}
	// A missing Secret and an empty Secret both differ from no reference.
	own.Spec.CredentialsRef = infrav1.LocalReference{Name: "own"}
	s.create(own)
	s.soon("the Secret is missed", says(own, clusterv1.ReadyCondition, infrav1.SecretInvalidReason))
	if err := s.change(own, func() { own.Spec.CredentialsRef = infrav1.LocalReference{} }); err == nil ||
		!strings.Contains(err.Error(), "set credentialsRef") {
		t.Errorf("the credentials were taken off an account with an endpoint of its own: %v", err)
	}
	s.create(scenario.Credentials(metav1.ObjectMeta{Namespace: "operator", Name: "own"}, "simulated", nil))
	s.soon("the empty Secret is refused", says(own, clusterv1.ReadyCondition, infrav1.UnauthorizedReason, `"token"`, "missing or empty"))
	if n := calls.Load(); n != 0 {
		t.Errorf("%d calls with the operator's credentials reached a tenant's endpoint", n)
	}
}

// TestHostileEndpoints checks that an endpoint that is not a cloud harms no other account. Its own
// account reports the error in a message of bounded length that quotes nothing of the answer.
// Drover follows no redirect, and other accounts go on.
func TestHostileEndpoints(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const inside = "INSIDE-5d1f" // stands for the answer of an endpoint inside the operator's network
	elsewhere, followed := s.listener(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, inside) })
	json := func(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/json") }
	zones := func(zones ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			json(w)
			_, _ = fmt.Fprintf(w, `{"account":"hostile","zones":["%s"]}`, strings.Join(zones, `","`))
		}
	}
	var many []string
	for i := range 500 {
		many = append(many, fmt.Sprintf("zone-%d", i))
	}
	tests := map[string]struct {
		answer http.HandlerFunc
		reason string
		words  string
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}, infrav1.CloudErrorUnknownReason, "redirect"},
		"moved": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, http.StatusFound) },
			infrav1.CloudErrorUnknownReason, "redirect"},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, infrav1.CloudUnavailableReason, "no response"},
		"html": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>"+inside)
		}, infrav1.CloudErrorUnknownReason, "response of type text/html"},
		"no-json": {func(w http.ResponseWriter, _ *http.Request) {
			json(w)
			_, _ = io.WriteString(w, strings.Repeat(inside, 1<<20/len(inside)))
		}, infrav1.CloudUnavailableReason, "not complete JSON"},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			json(w)
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(" ", 1<<20)); err != nil {
					return
				}
			}
		}, infrav1.CloudErrorUnknownReason, "larger than 8 MiB"},
		"talkative": {func(w http.ResponseWriter, _ *http.Request) {
			json(w)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"code":%q,"message":%q}`, strings.Repeat("c", 1<<20), strings.Repeat("m", 1<<20))
		}, infrav1.CloudErrorUnknownReason, "ccc"},
		"many-zones": {zones(many...), infrav1.CloudErrorUnknownReason, "500 zones"},
		"long-zone":  {zones(strings.Repeat("z", 300)), infrav1.CloudErrorUnknownReason, "zone"},
		"empty-zone": {zones("a", ""), infrav1.CloudErrorUnknownReason, "zone"},
		"same-zones": {zones("a", "a"), infrav1.ReadyReason, ""},
	}
	accounts, called := map[string]*infrav1.DroverAccount{}, map[string]*atomic.Int64{}
	for name, test := range tests {
		account := s.Account()
		account.Name = name
		account.Spec.Cloud.Simulated.Endpoint, called[name] = s.listener(test.answer)
		s.create(account)
		accounts[name] = account
	}
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1}
	s.create(pool.Objects()...)
	s.until("a machine of another account is ready", pool.Ready(env.view, 1))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := &stage{T: t, ctx: s.ctx, Adopted: s.Adopted}
			account := accounts[name]
			s.soon("the account says it", says(account, clusterv1.ReadyCondition, test.reason, test.words))
			c := conditions.Get(account, clusterv1.ReadyCondition)
			if strings.Contains(c.Message, inside) || len(c.Message) > 1024 {
				t.Errorf("the message repeats the answer: %q", c.Message)
			}
			if called[name].Load() == 0 {
				t.Error("the endpoint was not called")
			}
		})
	}
	if n := followed.Load(); n != 0 {
		t.Errorf("%d calls were led elsewhere", n)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("the machine goes as well", s.gone())
	for _, account := range accounts { // otherwise they would call for as long as the other tests run
		if err := scenario.Delete(s.ctx, env.client, account); err != nil {
			t.Fatal(err)
		}
		s.soon("the account is gone", s.deleted(account))
	}
}

// TestBootstrapTokenOpensLittle checks that the bootstrap token on a machine's disk allows the
// machine to request a certificate, and nothing else.
func TestBootstrapTokenOpensLittle(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	// A machine that has joined has no token any more, so these VMs never start a kubelet.
	if _, err := env.admin.AddFault(s.ctx, simulator.Fault{Kind: simulator.DeadBody, Account: s.Name, Operation: "RunInstances"}); err != nil {
		t.Fatal(err)
	}
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 2}
	s.create(pool.Objects()...)
	var data []corev1.Secret
	s.soon("both machines have their data", func(ctx context.Context) (string, error) {
		data = s.dataSecrets(ctx)
		if len(data) < 2 {
			return fmt.Sprintf("there are %d data Secrets", len(data)), nil
		}
		return "", nil
	})
	s.soon("the VMs are there", func(context.Context) (string, error) {
		if n := len(s.live()); n != 2 {
			return fmt.Sprintf("there are %d", n), nil
		}
		return "", nil
	})
	config := rest.AnonymousClientConfig(env.management.AdminConfig())
	config.BearerToken = string(data[0].Data["bootstrap-token"])
	thief, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for what, try := range map[string]func() error{
		"its own data Secret": func() error {
			_, err := thief.CoreV1().Secrets(s.Namespace).Get(s.ctx, data[0].Name, metav1.GetOptions{})
			return err
		},
		"another machine's data Secret": func() error {
			_, err := thief.CoreV1().Secrets(s.Namespace).Get(s.ctx, data[1].Name, metav1.GetOptions{})
			return err
		},
		"all Secrets": func() error {
			_, err := thief.CoreV1().Secrets("").List(s.ctx, metav1.ListOptions{})
			return err
		},
		"the cloud's credentials": func() error {
			_, err := thief.CoreV1().Secrets(s.Namespace).Get(s.ctx, s.Name+"-credentials", metav1.GetOptions{})
			return err
		},
		"Nodes": func() error {
			_, err := thief.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
			return err
		},
		"a Node of its own making": func() error {
			_, err := thief.CoreV1().Nodes().Create(s.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}, metav1.CreateOptions{})
			return err
		},
		"a certificate's approval": func() error {
			_, err := thief.CertificatesV1().CertificateSigningRequests().UpdateApproval(s.ctx, "any",
				&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, metav1.UpdateOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("a bootstrap token reaches %s: %v", what, err)
		}
	}
	rules, err := thief.AuthorizationV1().SelfSubjectRulesReviews().Create(s.ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: s.Namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var may []string
	for _, r := range rules.Status.ResourceRules {
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				// Every account may ask for its own identity and permissions.
				if !strings.HasPrefix(resource, "selfsubject") {
					may = append(may, verb+" "+resource)
				}
			}
		}
	}
	slices.Sort(may)
	want := []string{"create certificatesigningrequests", "get certificatesigningrequests", "list certificatesigningrequests",
		"watch certificatesigningrequests"}
	if !slices.Equal(may, want) {
		t.Errorf("a bootstrap token may %q, want %q", may, want)
	}
}

// dataSecrets returns the Secrets that DroverConfigs of this test own.
func (s *stage) dataSecrets(ctx context.Context) []corev1.Secret {
	s.Helper()
	secrets := &corev1.SecretList{}
	if err := env.client.List(ctx, secrets, client.InNamespace(s.Namespace)); err != nil {
		s.Fatal(err)
	}
	return slices.DeleteFunc(secrets.Items, func(secret corev1.Secret) bool {
		owner := metav1.GetControllerOf(&secret)
		return owner == nil || owner.APIVersion != bootstrapv1.GroupVersion.String()
	})
}
