// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/test/internal/scenario"
)

// raw posts a body to the API server unchanged, which no typed client would do.
func (s *stage) raw(group, resource, contentType, body string) error {
	s.Helper()
	c, err := kubernetes.NewForConfig(env.management.AdminConfig())
	if err != nil {
		s.Fatal(err)
	}
	return c.RESTClient().Post().AbsPath("/apis", group, "v1beta1", "namespaces", s.Namespace, resource).
		Param("fieldValidation", "Strict").SetHeader("Content-Type", contentType).Body([]byte(body)).Do(s.ctx).Error()
}

// TestBadInputIsRefused checks that the API server rejects invalid input when it is written, and
// names the field. (test/integration has more.)
func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const infra, boot, control = "infrastructure.cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
	long := strings.Repeat("n", 10_000)
	machine := func(spec string) [3]string { return [3]string{infra, "DroverMachine", spec} }
	simulated := func(fields string) [3]string {
		return machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":{` + fields + `}}}`)
	}
	account := func(fields string) [3]string {
		return [3]string{infra, "DroverAccount", `{"credentialsRef":{"name":"a"},"cloud":{"simulated":{}},` + fields + `}`}
	}
	config := func(fields string) [3]string { return [3]string{boot, "DroverConfig", `{` + fields + `}`} }
	for name, test := range map[string]struct {
		object [3]string // API group, kind, spec
		words  []string
	}{
		"two clouds": {machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":{},"vsphere":{"template":"t"}}}`),
			[]string{"exactly one of the fields in"}},
		"an unknown cloud": {machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":{},"nimbus":{}}}`),
			[]string{"unknown field", "spec.cloud.nimbus"}},
		"another cloud":        {machine(`{"accountRef":{"name":"a"},"nimbus":{}}`), []string{"unknown field", "spec.nimbus"}},
		"no cloud":             {machine(`{"accountRef":{"name":"a"}}`), []string{"spec.cloud", "Required"}},
		"a cloud that is null": {machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":null}}`), []string{"exactly one of the fields in"}},
		"no account":           {machine(`{"cloud":{"simulated":{}}}`), []string{"spec.accountRef", "Required"}},
		"no spec":              {machine(`null`), []string{"spec", "Required"}},
		"two clouds, account":  {account(`"nimbus":{}`), []string{"unknown field", "spec.nimbus"}},
		"misspelled field":     {simulated(`"instancetype":"small"`), []string{"unknown field", "spec.cloud.simulated.instancetype"}},
		"zero disk":            {simulated(`"diskGiB":0`), []string{"spec.cloud.simulated.diskGiB"}},
		"disk above all":       {simulated(`"diskGiB":65537`), []string{"spec.cloud.simulated.diskGiB"}},
		"disk beyond 32 bits":  {simulated(`"diskGiB":4294967300`), []string{"spec.cloud.simulated.diskGiB"}},
		"half a disk":          {simulated(`"diskGiB":10.5`), []string{"spec.cloud.simulated.diskGiB"}},
		"disk in words":        {simulated(`"diskGiB":"20"`), []string{"spec.cloud.simulated.diskGiB"}},
		"many disks": {simulated(`"dataDisks":[` + strings.TrimSuffix(strings.Repeat(`{"sizeGiB":1},`, 17), ",") + `]`),
			[]string{"spec.cloud.simulated.dataDisks"}},
		"empty type": {simulated(`"instanceType":""`), []string{"spec.cloud.simulated.instanceType"}},
		"long type":  {simulated(`"instanceType":"` + long + `"`), []string{"spec.cloud.simulated.instanceType"}},
		"long image": {simulated(`"image":"` + long + `"`), []string{"spec.cloud.simulated.image"}},
		"long zone":  {simulated(`"zone":"` + long + `"`), []string{"spec.cloud.simulated.zone"}},
		"long account": {machine(`{"accountRef":{"name":"` + long + `"},"cloud":{"simulated":{}}}`),
			[]string{"spec.accountRef.name"}},
		"zero byte in type": {simulated(`"instanceType":"a\u0000b"`), []string{"spec.cloud.simulated.instanceType"}},
		"bad UTF-8 in type": {simulated("\"instanceType\":\"a\xff\""), []string{"spec.cloud.simulated.instanceType"}},
		"short token": {machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":{}},"creation":{"token":"x"}}`),
			[]string{"spec.creation.token"}},
		"long provider ID": {machine(`{"accountRef":{"name":"a"},"cloud":{"simulated":{}},"providerID":"` + long + `"}`),
			[]string{"spec.providerID"}},
		"long endpoint": {[3]string{infra, "DroverAccount",
			`{"credentialsRef":{"name":"a"},"cloud":{"simulated":{"endpoint":"http://` + long + `"}}}`}, []string{"spec.cloud.simulated.endpoint"}},
		"endpoint with a password": {[3]string{infra, "DroverAccount",
			`{"credentialsRef":{"name":"a"},"cloud":{"simulated":{"endpoint":"http://a:b@c"}}}`}, []string{"spec.cloud.simulated.endpoint"}},
		"endpoint of a file": {[3]string{infra, "DroverAccount",
			`{"credentialsRef":{"name":"a"},"cloud":{"simulated":{"endpoint":"file:///etc/passwd"}}}`}, []string{"spec.cloud.simulated.endpoint"}},
		"negative interval":       {account(`"inventory":{"idleSeconds":-1}`), []string{"spec.inventory.idleSeconds"}},
		"interval of years":       {account(`"inventory":{"activeSeconds":99999999}`), []string{"spec.inventory.activeSeconds"}},
		"negative burst":          {account(`"rateLimits":{"create":{"perSecond":"1","burst":-1}}`), []string{"spec.rateLimits.create.burst"}},
		"endless rate":            {account(`"rateLimits":{"read":{"perSecond":"Inf","burst":1}}`), []string{"spec.rateLimits.read.perSecond"}},
		"rate of nothing":         {account(`"rateLimits":{"read":{"perSecond":"0","burst":1}}`), []string{"spec.rateLimits.read.perSecond"}},
		"unknown policy":          {account(`"orphanPolicy":"Keep"`), []string{"spec.orphanPolicy"}},
		"negative token lifetime": {config(`"tokenTTLSeconds":-1`), []string{"spec.tokenTTLSeconds"}},
		"long path":               {config(`"files":[{"path":"/` + long + `"}]`), []string{"spec.files[0].path"}},
		"zero byte in path":       {config(`"files":[{"path":"/a\u0000b"}]`), []string{"spec.files[0].path"}},
		"same path twice":         {config(`"files":[{"path":"/a"},{"path":"/a"}]`), []string{"spec.files[1]"}},
		"long command":            {config(`"preKubeletCommands":["` + long + `"]`), []string{"spec.preKubeletCommands[0]"}},
		"long label":              {config(`"nodeLabels":{"` + long + `":"x"}`), []string{"spec.nodeLabels"}},
		"bad UTF-8 in label":      {config("\"nodeLabels\":{\"a\":\"\xff\"}"), []string{"spec.nodeLabels"}},
		"long Secret name": {[3]string{control, "AdoptedControlPlane", `{"kubeconfigRef":{"name":"` + long + `"}}`},
			[]string{"spec.kubeconfigRef.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			group, kind, spec := test.object[0], test.object[1], test.object[2]
			body := fmt.Sprintf(`{"apiVersion":"%s/v1beta1","kind":%q,"metadata":{"name":"x"},"spec":%s}`, group, kind, spec)
			err := s.raw(group, strings.ToLower(kind)+"s", "application/json", body)
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Fatalf("the answer is %v, want a refusal", err)
			}
			for _, w := range test.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the answer %.500q does not say %q", err, w)
				}
			}
			if len(err.Error()) > 25_000 {
				t.Errorf("the answer has %d bytes", len(err.Error()))
			}
		})
	}
	for name, test := range map[string]struct{ contentType, body string }{
		"a name of 10,000 characters": {"application/json", `{"apiVersion":"` + infra + `/v1beta1","kind":"DroverMachine","metadata":{"name":"` +
			long + `"},"spec":{"accountRef":{"name":"a"},"cloud":{"simulated":{}}}}`},
		"YAML with a zero byte": {"application/yaml", "apiVersion: " + infra +
			"/v1beta1\nkind: DroverMachine\nmetadata: {name: x}\nspec: {accountRef: {name: a}, cloud: {simulated: {image: \"a\x00\"}}}\n"},
		"YAML with bad UTF-8": {"application/yaml", "apiVersion: " + infra +
			"/v1beta1\nkind: DroverMachine\nmetadata: {name: x}\nspec: {accountRef: {name: a}, cloud: {simulated: {image: \"a\xff\"}}}\n"},
		"half an object": {"application/json", `{"apiVersion":"` + infra + `/v1beta1","kind":"DroverMachine","metadata":{"na`},
		"nothing":        {"application/json", ``},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.raw(infra, "drovermachines", test.contentType, test.body); !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Errorf("the answer is %v, want a refusal", err)
			}
		})
	}
	if n := len(s.machines()); n != 0 {
		t.Errorf("%d machines were made of nonsense", n)
	}
}

// TestStrangeStringsReachTheCloud checks that the cloud judges what only the cloud can judge, and
// that the message stays readable for any input.
func TestStrangeStringsReachTheCloud(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for name, image := range map[string]string{"zero": `a\u0000b`, "utf8": "a\xff\xfe", "quotes": `\"; DROP TABLE images; --\n\u202e`} {
		body := fmt.Sprintf(`{"apiVersion":"infrastructure.cluster.x-k8s.io/v1beta1","kind":"DroverMachineTemplate","metadata":{"name":%q},`+
			`"spec":{"template":{"spec":{"accountRef":{"name":%q},"cloud":{"simulated":{"image":"%s"}}}}}}`, name, s.Name, image)
		if err := s.raw("infrastructure.cluster.x-k8s.io", "drovermachinetemplates", "application/json", body); err != nil {
			t.Fatal(err)
		}
		pool := scenario.Pool{Cluster: s.Adopted, Name: name, Replicas: 1}
		s.create(pool.ConfigTemplate(), pool.Deployment())
	}
	s.soon("each machine says what is wrong", func(ctx context.Context) (string, error) {
		machines := s.machines()
		if len(machines) != 3 {
			return fmt.Sprintf("there are %d DroverMachines", len(machines)), nil
		}
		for i := range machines {
			if wrong, err := says(&machines[i], clusterv1.ReadyCondition, infrav1.InvalidSpecReason, "image")(ctx); wrong != "" || err != nil {
				return wrong, err
			}
			if c := conditions.Get(&machines[i], clusterv1.ReadyCondition); strings.ContainsAny(c.Message, "\x00\n\u202e") {
				t.Errorf("the message would spoil a terminal: %q", c.Message)
			}
		}
		return "", nil
	})
	for _, name := range []string{"zero", "utf8", "quotes"} {
		if err := scenario.Delete(s.ctx, env.client, scenario.Pool{Cluster: s.Adopted, Name: name}.Deployment()); err != nil {
			t.Fatal(err)
		}
	}
	s.soon("nothing is left", s.gone())
}

// TestUserDataTooLarge checks that user data above the cloud's limit are not sent, and that a
// condition states how many bytes there are and how many are allowed. Drover's own config reports
// it before the data are written; for the data of other providers the DroverMachine does. Only
// files have a way around the limit (test/bootstrap and test/clouds/vm).
func TestUserDataTooLarge(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	noise := make([]byte, 20<<10) // does not compress
	for i := range noise {
		noise[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/"[rand.IntN(64)]
	}
	var commands []string
	for part := range slices.Chunk(noise, 7<<10) {
		commands = append(commands, ": "+string(part))
	}
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1, Config: bootstrapv1.DroverConfigSpec{PreKubeletCommands: commands}}
	s.create(pool.Objects()...)
	s.soon("the machine waits", s.onlyMachine(infrav1.WaitingForBootstrapDataReason))
	config := s.onlyConfig()
	s.soon("its config says why", says(config, clusterv1.ReadyCondition, bootstrapv1.InvalidSpecReason, "bytes", "accepts at most 16384",
		"shorten the commands"))
	if message := scenario.Message(config, clusterv1.ReadyCondition); strings.Contains(message, string(noise[:40])) {
		t.Errorf("the message repeats the command: %s", message)
	}

	s.create(&corev1.Secret{ObjectMeta: s.meta("large"), Type: clusterv1.ClusterSecretType, Data: map[string][]byte{"value": noise}})
	_, machine := s.byHand("large", "large")
	s.soon("a machine of another provider's says so itself", says(machine, clusterv1.ReadyCondition, infrav1.SecretInvalidReason,
		"bytes", "accepts at most 16384", "shorten the files and commands"))
	if message := scenario.Message(machine, clusterv1.ReadyCondition); strings.Contains(message, string(noise[:40])) {
		t.Errorf("the message repeats the user data: %s", message)
	}
	audit, err := env.admin.Audit(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.machines() {
		if n := audit.Machine(m.Spec.Creation.Token, ""); m.Spec.Creation.Token != "" && n != 0 {
			t.Errorf("%d calls were made for %s, whose user data are too large", n, m.Name)
		}
	}
	if n := len(s.resources()); n != 0 {
		t.Errorf("there are %d resources", n)
	}
	if err := scenario.Delete(s.ctx, env.client, s.Cluster()); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}

// onlyConfig returns the test's one DroverConfig.
func (s *stage) onlyConfig() *bootstrapv1.DroverConfig {
	s.Helper()
	configs := &bootstrapv1.DroverConfigList{}
	if err := env.client.List(s.ctx, configs, client.InNamespace(s.Namespace)); err != nil || len(configs.Items) != 1 {
		s.Fatalf("%d DroverConfigs (%v), want 1", len(configs.Items), err)
	}
	return &configs.Items[0]
}

// byHand creates a Machine whose bootstrap data are in a Secret written by hand, as with other
// bootstrap providers.
func (s *stage) byHand(name, secret string, change ...func(*infrav1.DroverMachine)) (*clusterv1.Machine, *infrav1.DroverMachine) {
	s.Helper()
	owner, machine := handMade(s.Adopted, name, secret)
	for _, c := range change {
		c(machine)
	}
	s.create(machine, owner)
	return owner, machine
}

// handMade returns a Machine without a MachineDeployment, whose bootstrap data are in a Secret, and
// its DroverMachine.
func handMade(a scenario.Adopted, name, secret string) (*clusterv1.Machine, *infrav1.DroverMachine) {
	meta := metav1.ObjectMeta{Namespace: a.Namespace, Name: name}
	fields := scenario.Pool{Cluster: a}.Template("", infrav1.SimulatedMachine{}).Spec.Template.Spec
	machine := &infrav1.DroverMachine{ObjectMeta: meta, Spec: infrav1.DroverMachineSpec{DroverMachineFields: fields}}
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: a.Name}
	return &clusterv1.Machine{ObjectMeta: meta, Spec: clusterv1.MachineSpec{
		ClusterName: a.Name,
		Version:     "v1.36.3",
		Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To(secret)},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: "DroverMachine", Name: name},
	}}, machine
}

// touch changes an annotation of an object, so that its controller reconciles it.
func (s *stage) touch(o client.Object) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"lifecycle-test/touched":"%d"}}}`, rand.Int())
	if err := env.client.Patch(s.ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

// TestBootstrapDataMissing checks that a machine waits for bootstrap data that are missing or under
// the wrong key, and that no VM is created without them.
func TestBootstrapDataMissing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	owner, machine := s.byHand("by-hand", "data")
	s.soon("the Secret is missed", says(machine, clusterv1.ReadyCondition, infrav1.SecretInvalidReason, `Waiting for Secret "data"`))
	secret := &corev1.Secret{ObjectMeta: s.meta("data"), Data: map[string][]byte{"userdata": []byte("#cloud-config\n")}}
	s.create(secret)
	s.touch(machine) // it would come back by itself within a minute
	s.soon("the key is missed", says(machine, clusterv1.ReadyCondition, infrav1.SecretInvalidReason, `"data" lacks the key "value"`))
	if n := len(s.resources()); n != 0 {
		t.Errorf("%d resources were made without bootstrap data", n)
	}
	if err := s.change(secret, func() { secret.Data["value"] = []byte("#cloud-config\n") }); err != nil {
		t.Fatal(err)
	}
	s.touch(machine)
	s.soon("the VM runs", says(machine, clusterv1.ReadyCondition, infrav1.ReadyReason))
	if n := len(s.live()); n != 1 {
		t.Errorf("there are %d VMs, want 1", n)
	}
	if err := scenario.Delete(s.ctx, env.client, owner); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}

// TestRunningMachineIsNotMoved checks that the fields of a machine are immutable, one by one, and
// that its provider ID and creation token cannot be removed. Changes of others to its status or to
// its Machine do not confuse it.
func TestRunningMachineIsNotMoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := scenario.Pool{Cluster: s.Adopted, Name: "pool", Replicas: 1,
		Machine: infrav1.SimulatedMachine{DataDisks: []infrav1.SimulatedDataDisk{{SizeGiB: 5}}}}
	s.create(pool.Objects()...)
	s.until("a machine is ready", pool.Ready(env.view, 1))
	machine := s.machines()[0]
	key, vm := client.ObjectKeyFromObject(&machine), s.instanceOf(&machine)
	for patch, words := range map[string]string{
		`{"accountRef":{"name":"other"}}`:                       "accountRef can't be changed",
		`{"accountRef":null}`:                                   "accountRef",
		`{"cloud":{"simulated":null}}`:                          "exactly one of the fields in",
		`{"cloud":{"simulated":{"instanceType":"large"}}}`:      "can't be changed",
		`{"cloud":{"simulated":{"image":"other"}}}`:             "can't be changed",
		`{"cloud":{"simulated":{"zone":"sim-1c"}}}`:             "can't be changed",
		`{"cloud":{"simulated":{"diskGiB":21}}}`:                "can't be changed",
		`{"cloud":{"simulated":{"dataDisks":[{"sizeGiB":6}]}}}`: "can't be changed",
		`{"cloud":{"simulated":{"dataDisks":null}}}`:            "can't be changed",
		`{"cloud":{"simulated":{"market":{"type":"spot"}}}}`:    "can't be changed",
		`{"providerID":"simulated:///sim-1a/i-1"}`:              "providerID is set once",
		`{"creation":{"attempt":1}}`:                            "creation can't be changed once the VM is made",
		`{"providerID":null}`:                                   "providerID is set once",
		`{"creation":{"token":"00000000000000000000"}}`:         "creation.token is set once",
		`{"creation":null}`:                                     "creation.token is set once",
	} {
		err := env.client.Patch(s.ctx, machine.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":`+patch+`}`)))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("the change %s is answered with %v, want a refusal that says %q", patch, err, words)
		}
	}

	owner := &clusterv1.Machine{}
	if err := env.client.Get(s.ctx, key, owner); err != nil {
		t.Fatal(err)
	}
	if err := s.change(owner, func() { owner.Spec.ProviderID = "simulated:///sim-1a/i-somebody-elses" }); err != nil {
		t.Fatal(err)
	}
	s.soon("Cluster API takes the provider ID from the DroverMachine again", func(ctx context.Context) (string, error) {
		if err := env.client.Get(ctx, key, owner); err != nil || owner.Spec.ProviderID == machine.Spec.ProviderID {
			return "", err
		}
		return "the Machine has " + owner.Spec.ProviderID, nil
	})

	accounts := s.Account()
	empty := client.RawPatch(types.MergePatchType, []byte(`{"status":null}`))
	for _, o := range []client.Object{&machine, accounts, s.DroverCluster()} {
		if err := env.client.Status().Patch(s.ctx, o.DeepCopyObject().(client.Object), empty); err != nil {
			t.Fatal(err)
		}
		s.touch(o)
	}
	s.soon("the status is found again", func(ctx context.Context) (string, error) {
		have := &infrav1.DroverMachine{}
		if err := env.client.Get(ctx, key, have); err != nil {
			return "", err
		}
		if !ptr.Deref(have.Status.Initialization.Provisioned, false) || len(have.Status.Addresses) == 0 || have.Status.FailureDomain == "" {
			return fmt.Sprintf("the status is %+v", have.Status), nil
		}
		return "", nil
	})
	s.soon("the account's status is found again", says(accounts, clusterv1.ReadyCondition, infrav1.ReadyReason))
	s.until("the machine is ready", pool.Ready(env.view, 1))
	if live := s.live(); len(live) != 1 || live[0].ID != vm.ID {
		t.Errorf("the cloud has %d VMs, want %s alone", len(live), vm.ID)
	}
	if err := env.client.Get(s.ctx, key, &machine); err != nil || machine.Spec.ProviderID != owner.Spec.ProviderID {
		t.Errorf("the DroverMachine has provider ID %s: %v", machine.Spec.ProviderID, err)
	}
	if err := scenario.Delete(s.ctx, env.client, pool.Deployment()); err != nil {
		t.Fatal(err)
	}
	s.soon("nothing is left", s.gone())
}
