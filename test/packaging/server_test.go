// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-io/drover/internal/test/playground"
	"github.com/drover-io/drover/test/internal/scenario"
)

// TestManagementCluster tests the life cycle of a provider as clusterctl manages it: install, use,
// upgrade and delete, in a management cluster with a real API server and the real Cluster API. The
// cluster runs no Pods. A manager process next to it does the work of Drover's Deployment, and only
// the CRDs of cert-manager are installed. clusterctl accepts this, because it does not wait for
// Deployments by default.
func TestManagementCluster(t *testing.T) {
	repository := t.TempDir()
	releaseInto(t, repository, version)
	management, err := playground.StartManagement(t.Context(), playground.ManagementOptions{
		ControlPlaneOptions: playground.ControlPlaneOptions{Progress: os.Stderr},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := management.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctl := newClusterctlFor(t, filepath.Join(repository, providerName, "latest"),
		"- name: cluster-api", "  type: CoreProvider", "  url: "+coreRepository(t),
		// A site without internet access sets this after it has installed cert-manager by its own
		// means.
		"cert-manager:", "  externallyProvisioned: true")
	ctl.env = append(ctl.env, "KUBECONFIG="+management.AdminKubeconfig())
	plain, err := client.New(management.AdminConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := client.WithFieldValidation(plain, metav1.FieldValidationStrict)
	if err := management.InstallCertManagerKinds(t.Context()); err != nil {
		t.Fatal(err)
	}
	installKinds(t, server, moduleDir(t, "hack/tools/nodeadm", "github.com/awslabs/amazon-eks-ami/nodeadm")+"/crds/*.yaml")

	step := func(name string, do func(t *testing.T)) { // each step depends on the ones before it
		if !t.Run(name, do) {
			t.FailNow()
		}
	}
	step("a release of another contract is refused", func(t *testing.T) { wrongContract(t, ctl) })
	step("init", func(t *testing.T) {
		out := string(ctl.run(t, "init", "--infrastructure", "drover:"+version, "--bootstrap", "-", "--control-plane", "-"))
		t.Log(out)
		if got := installed(t, server); !slices.Equal(got, []string{"cluster-api " + coreVersion, "infrastructure-drover " + version}) {
			t.Errorf("clusterctl's list is %v", got)
		}
	})
	components := objects(t, read(t, filepath.Join(repository, providerName, version, "infrastructure-components.yaml")))
	step("its manifests, strictly", func(t *testing.T) {
		for _, o := range components {
			if err := server.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.DryRunAll, client.ForceOwnership,
				client.FieldOwner("test")); err != nil {
				t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	})
	step("its kinds are not deleted by accident", func(t *testing.T) { keepsKinds(t, server) })
	step("the manager's pod under the restricted policy", func(t *testing.T) { podRules(t, server, components) })
	if err := management.ServeDrover(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("kinds of an older release are told", func(t *testing.T) { oldKinds(t, management, server) })
	life := newLife(t, ctl, management)
	step("every flavor, strictly", func(t *testing.T) {
		for _, provider := range []string{"bootstrap", "controlplane"} {
			installKinds(t, server, moduleDir(t, ".", "sigs.k8s.io/cluster-api")+"/"+provider+"/kubeadm/config/crd/bases/*.yaml")
		}
		for _, flavor := range flavors() {
			for _, o := range objects(t, ctl.generate(t, flavor, "blue", "default")) {
				accept(t, server, o, client.DryRunAll)
			}
		}
	})
	step("EKS's user data, strictly", func(t *testing.T) {
		accept(t, server, nodeConfig(t, ctl.generate(t, "aws-eks", "blue", "default")), client.DryRunAll)
	})
	step("the adopted flavor makes machines", life.begin)
	step("describe", life.describe)
	step("upgrade", func(t *testing.T) {
		releaseInto(t, repository, nextVersion)
		life.upgrade(t, server)
	})
	step("the autoscaled flavor begins with its least", life.autoscaled)
	step("the machines go", life.end)
	step("one cluster has machines of two clouds", life.mixed)
	step("a ClusterClass makes, changes and keeps machines", life.topology)
	step("each cloud's ClusterClass says what its flavor says", life.classes)
	life.drover.Kill()
	step("uninstall", func(t *testing.T) { deleteProvider(t, ctl, server) })
	step("GitOps installs it, and removes it", func(t *testing.T) {
		files := filepath.Join(repository, providerName, version, "infrastructure-components-default.yaml")
		ctl.shell(t, t.TempDir(), "kubectl apply --server-side -f "+files)
		uninstallWithout(t, ctl, server, "kubectl delete --ignore-not-found -f "+files)
	})
	if *operator {
		step("the cluster-api-operator installs it", func(t *testing.T) {
			operatorInstalls(t, management, server, filepath.Join(repository, providerName, version))
			const remove = "kubectl -n " + namespace + " delete infrastructureprovider drover"
			if !strings.Contains(string(read(t, root(t)+"/docs/install.md")), "`"+remove+"`") {
				t.Errorf("the page does not say %s", remove)
			}
			uninstallWithout(t, ctl, server, remove)
		})
	}
}

// wrongContract tests that clusterctl refuses a release with a contract that Cluster API here does
// not support, and names the contract.
func wrongContract(t *testing.T, ctl clusterctl) {
	repository := t.TempDir()
	folder := releaseInto(t, repository, version)
	metadata := strings.Replace(string(read(t, folder+"/metadata.yaml")), "contract: v1beta2", "contract: v1alpha4", 1)
	if err := os.WriteFile(folder+"/metadata.yaml", []byte(metadata), 0o600); err != nil {
		t.Fatal(err)
	}
	other := newClusterctlFor(t, filepath.Join(repository, providerName, "latest"), "- name: cluster-api", "  type: CoreProvider",
		"  url: "+coreRepository(t), "cert-manager:", "  externallyProvisioned: true")
	other.env = ctl.env
	other.refuses(t, "v1alpha4", "init", "--infrastructure", "drover:"+version, "--bootstrap", "-", "--control-plane", "-")
}

// installKinds installs the CRDs in a module's files.
func installKinds(t *testing.T, server client.Client, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no CRDs: %v", pattern, err)
	}
	for _, file := range files {
		for _, crd := range objects(t, read(t, file)) {
			// As releases of Cluster API's providers label them: each contract, and its version.
			crd.SetLabels(map[string]string{"cluster.x-k8s.io/v1beta1": "v1beta1", "cluster.x-k8s.io/v1beta2": "v1beta2"})
			accept(t, server, crd)
		}
	}
}

// coreVersion is the version of Cluster API that the playground runs.
const coreVersion = "v1.14.2"

// moduleDir returns the source folder of a module that the go.mod in the given folder requires.
func moduleDir(t *testing.T, folder, module string) string {
	t.Helper()
	dir, _, err := playground.FindModule(t.Context(), folder, module)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// coreRepository returns the URL from which clusterctl installs Cluster API itself.
func coreRepository(t *testing.T) string {
	t.Helper()
	url, err := playground.CoreRepository(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return url
}

// installed returns clusterctl's inventory of providers.
func installed(t *testing.T, server client.Client) (all []string) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("clusterctl.cluster.x-k8s.io/v1alpha3")
	list.SetKind("ProviderList")
	if err := server.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		v, _, _ := unstructured.NestedString(o.Object, "version")
		all = append(all, o.GetName()+" "+v)
	}
	slices.Sort(all)
	return all
}

func podRules(t *testing.T, server client.Client, components []*unstructured.Unstructured) {
	template := only[appsv1.Deployment](t, components, "Deployment")[0].Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.GenerateName = namespace, "drover-"
	if err := server.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Error(err)
	}
	pod.Spec.Containers[0].SecurityContext = nil
	if err := server.Create(t.Context(), pod, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the policy is not enforced: a pod without security context is answered with %v", err)
	}
}

// deleteProvider tests that clusterctl deletes the components immediately, the CRDs and the
// namespace only on request, and no objects of users.
func deleteProvider(t *testing.T, ctl clusterctl, server client.Client) {
	ctl.refuses(t, "existing objects", "delete", "--infrastructure", "drover", "--include-crd")
	for _, namespace := range []string{"team-a", "team-b", "team-c", "team-d"} {
		o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if err := server.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		until(t, func(ctx context.Context) (string, error) {
			if err := server.Get(ctx, client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
				return "namespace " + namespace + " is there", err
			}
			return "", nil
		})
	}
	ctl.run(t, "delete", "--infrastructure", "drover")
	if got := installed(t, server); !slices.Equal(got, []string{"cluster-api " + coreVersion}) {
		t.Errorf("clusterctl's list is %v", got)
	}
	if n := len(ours(t, server)); n == 0 {
		t.Error("the kinds went without being asked to")
	}
	left := &unstructured.UnstructuredList{}
	left.SetAPIVersion("apps/v1")
	left.SetKind("DeploymentList")
	if err := server.List(t.Context(), left, client.InNamespace(namespace)); err != nil || len(left.Items) > 0 {
		t.Errorf("%d Deployments are left (%v)", len(left.Items), err)
	}

	uninstall(t, ctl, server)
}

// uninstall installs Drover and tests that the last commands of docs/install.md leave nothing of it.
func uninstall(t *testing.T, ctl clusterctl, server client.Client) {
	t.Helper()
	ctl.run(t, "init", "--infrastructure", "drover:"+version, "--bootstrap", "-", "--control-plane", "-")
	if left := ctl.shell(t, t.TempDir(), installBlock(t, "sh", "kubectl get drovermachines,", "")); strings.Contains(left, "/") {
		t.Errorf("there are objects: %s", left)
	}
	ctl.shell(t, t.TempDir(), installBlock(t, "sh", "--include-crd", ""))
	nothingLeft(t, server)
}

// uninstallWithout tests that the same commands, with another one in place of clusterctl's, and those
// after them leave nothing, either.
func uninstallWithout(t *testing.T, ctl clusterctl, server client.Client, instead string) {
	t.Helper()
	var commands []string
	for line := range strings.Lines(installBlock(t, "sh", "--include-crd", "")) {
		if strings.Contains(line, "clusterctl delete") {
			line = instead + "\n"
		}
		commands = append(commands, line)
	}
	ctl.shell(t, t.TempDir(), strings.Join(commands, "")+installBlock(t, "sh", "kubectl delete crd,", ""))
	nothingLeft(t, server)
}

// nothingLeft waits until no object of the release is left.
func nothingLeft(t *testing.T, server client.Client) {
	t.Helper()
	until(t, func(ctx context.Context) (string, error) {
		for _, gvk := range []schema.GroupVersionKind{crdGVK, schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"),
			rbacv1.SchemeGroupVersion.WithKind("ClusterRole"), rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
			admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"),
			admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding")} {
			if names := oursOf(t, server, gvk); len(names) > 0 {
				return fmt.Sprintf("objects of kind %s are left: %s", gvk.Kind, strings.Join(names, ", ")), nil
			}
		}
		if err := server.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint("the namespace is there: ", err), nil
		}
		return "", nil
	})
}

var crdGVK = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")

// ours returns the names of Drover's CRDs.
func ours(t *testing.T, server client.Client) (names []string) {
	t.Helper()
	return oursOf(t, server, crdGVK)
}

// oursOf returns the names of the objects of a kind that belong to the release.
func oursOf(t *testing.T, server client.Client, gvk schema.GroupVersionKind) (names []string) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk)
	if err := server.List(t.Context(), list, client.MatchingLabels{providerLabel: providerName}); err != nil {
		t.Fatal(err)
	}
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	return names
}

// accept creates an object. It retries while the API server does not serve a new kind yet.
func accept(t *testing.T, server client.Client, o *unstructured.Unstructured, options ...client.CreateOption) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		last = server.Create(ctx, o.DeepCopy(), options...)
		return !apimeta.IsNoMatchError(last) && !apierrors.IsNotFound(last), nil
	})
	if err := errors.Join(err, last); err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

// until waits until nothing is missing.
func until(t *testing.T, check scenario.Check) {
	t.Helper()
	var missing string
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 10*time.Minute, true, func(ctx context.Context) (bool, error) {
		what, err := check(ctx)
		if ctx.Err() == nil { // otherwise the call that the deadline cut says nothing
			missing = what
		}
		return what == "" && err == nil, err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, missing)
	}
}
