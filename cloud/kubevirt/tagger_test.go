// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/tagging"
)

// droverKeys are those that rollback takes off.
var droverKeys = []string{cloud.TagMachine, cloud.TagToken, cloud.TagOwnership}

// apiServer is a stand-in with VMs and their instances, which applies merge patches.
type apiServer struct {
	mu sync.Mutex
	// objects are by kind and name.
	objects map[string]map[string]any
	patches []string
	// cut: answers to patches are lost. gone: what is listed does not exist any more.
	cut, gone bool
}

func (a *apiServer) add(t *testing.T, kind string, o metav1.Object) {
	t.Helper()
	text, err := json.Marshal(o)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	fields := map[string]any{}
	NewWithT(t).Expect(json.Unmarshal(text, &fields)).To(Succeed())
	a.objects[kind+"/"+o.GetName()] = fields
}

// text returns all objects.
func (a *apiServer) text() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	text, _ := json.Marshal(a.objects)
	return string(text)
}

func (a *apiServer) handle(w http.ResponseWriter, req *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if kind := listKind(req); kind != "" {
		items := []any{}
		name, _ := strings.CutPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name=")
		for key, o := range a.objects {
			if path.Dir(key) == path.Base(req.URL.Path) && (name == "" || path.Base(key) == name) && selects(req.URL.Query(), o) {
				items = append(items, o)
			}
		}
		write(w, 200, map[string]any{"kind": kind, "metadata": map[string]any{}, "items": items})
		return
	}
	key := path.Base(path.Dir(req.URL.Path)) + "/" + path.Base(req.URL.Path)
	o, change := a.objects[key], map[string]any{}
	if o == nil || a.gone {
		write(w, 404, refusal(404, metav1.StatusReasonNotFound, "gone"))
		return
	}
	_ = json.NewDecoder(req.Body).Decode(&change)
	change["kind"] = o["kind"]
	if uid := change["metadata"].(map[string]any)["uid"]; req.Header.Get("Content-Type") != "application/merge-patch+json" ||
		uid != o["metadata"].(map[string]any)["uid"] {
		write(w, 409, refusal(409, metav1.StatusReasonConflict, "another object"))
		return
	}
	a.patches = append(a.patches, key)
	mergeInto(o, change)
	if a.cut {
		panic(http.ErrAbortHandler)
	}
	write(w, 200, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata"}})
}

// selects reports whether a label selector of the driver's selects an object.
func selects(query url.Values, o map[string]any) bool {
	selector := query.Get("labelSelector")
	labels, _ := o["metadata"].(map[string]any)["labels"].(map[string]any)
	return selector == "" || labels[cloud.TagToken] != nil &&
		(strings.Contains(selector, labels[cloud.TagToken].(string)) || selector == ofDrover)
}

// mergeInto applies a merge patch (RFC 7386).
func mergeInto(o, change map[string]any) {
	for key, value := range change {
		part, is := value.(map[string]any)
		switch {
		case is:
			if _, has := o[key].(map[string]any); !has {
				o[key] = map[string]any{}
			}
			mergeInto(o[key].(map[string]any), part)
		case value == nil:
			delete(o, key)
		default:
			o[key] = value
		}
	}
}

// theirs returns a VM as another system makes it, and its instance, which runs.
func theirs(name string, labels map[string]string) (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance) {
	meta := metav1.ObjectMeta{Name: name, UID: "uid-1", Labels: labels}
	vm := &kubevirtv1.VirtualMachine{ObjectMeta: meta, Spec: kubevirtv1.VirtualMachineSpec{
		RunStrategy: ptr.To(kubevirtv1.RunStrategyOnce),
		Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec: kubevirtv1.VirtualMachineInstanceSpec{Domain: kubevirtv1.DomainSpec{
				CPU: &kubevirtv1.CPU{Cores: 2}, Memory: &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("4Gi"))},
			}},
		},
	}}
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta}
	vmi.Status.Phase = kubevirtv1.Running
	return vm, vmi
}

// TestNameOf: only a token that begins with an identity and a hyphen names a VM of another name.
func TestNameOf(t *testing.T) {
	g := NewWithT(t)
	for token, name := range map[string]string{
		"1a2b3c4d-workers-6d4f5-abcde": "workers-6d4f5-abcde", "1a2b3c4d5f0c2a91d3b84e6f7a90c1d2": "1a2b3c4d5f0c2a91d3b84e6f7a90c1d2",
		"token-1": "token-1", "1a2b3c4z-x": "1a2b3c4z-x", "1a2b3c4d-": "1a2b3c4d-", "": "",
	} {
		g.Expect(nameOf(token)).To(Equal(name))
	}
	_, err := (&driver{}).check(cloud.Request{Token: "1a2b3c4d-x", OwnershipID: "blue",
		Spec: &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{KubeVirt: &infrav1.KubeVirtMachine{}}}})
	g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Conflict), "it is not made again")
	token := tagging.ImportToken("1a2b3c4d", "blue", "workers-0")
	for name, c := range map[string]struct {
		name, owner string
		want        bool
	}{"the VM": {"workers-0", "blue", true}, "a copy": {"copy", "blue", false}, "of another cluster": {"workers-0", "red", false}} {
		m := &metav1.ObjectMeta{Name: c.name, Labels: map[string]string{cloud.TagToken: token, cloud.TagOwnership: c.owner}}
		g.Expect(named(m)).To(Equal(c.want), name)
	}
}

// TestTagger: a VM that others made becomes a machine with two writes, and theirs again, with all
// as it was. A copy of it is none. It is deleted by its own name and UID.
func TestTagger(t *testing.T) {
	const id = "workers-6d4f5-abcde"
	for name, token := range map[string]string{"by digest": tagging.ImportToken("1a2b3c4d", "blue", id), "by name": "1a2b3c4d-" + id} {
		t.Run(name, func(t *testing.T) { testTagger(t, id, token) })
	}
}

func testTagger(t *testing.T, id, token string) {
	t.Helper()
	g := NewWithT(t)
	a := &apiServer{objects: map[string]map[string]any{}}
	labels := map[string]string{"mcm.gardener.cloud/role": "node", "empty": ""}
	vm, vmi := theirs(id, labels)
	a.add(t, "virtualmachines", vm)
	a.add(t, "virtualmachineinstances", vmi)
	d := served(t, a.handle)
	before := a.text()
	tags := map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: token, cloud.TagMachine: "team/" + id}
	find := func(keys ...string) []tagging.Instance {
		t.Helper()
		found, err := d.Tagged(t.Context(), keys)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	g.Expect(find()).To(BeEmpty(), "never all")
	g.Expect(find(droverKeys...)).To(BeEmpty())
	g.Expect(find("Name")).To(ConsistOf(And(
		HaveField("ID", id), HaveField("ProviderID", "kubevirt://"+id), HaveField("Token", ""), HaveField("State", cloud.StateRunning),
		HaveField("Type", "2 CPUs, 4096 MiB"),
		HaveField("Tags", Equal(map[string]string{"mcm.gardener.cloud/role": "node", "empty": "", "Name": id})), HaveField("Partial", false),
	)))

	// cut loses the answer to each write, and returns whether the VM was complete then,
	// each time that it was found.
	cut := func(do func() error) (complete []bool) {
		t.Helper()
		for {
			a.patches, a.cut = nil, true
			err := do()
			a.cut = false
			if err == nil {
				g.Expect(a.patches).To(BeEmpty())
				return complete
			}
			g.Expect(a.patches).To(HaveLen(1), "%v", err)
			for _, vm := range find(cloud.TagToken, cloud.TagOwnership) {
				complete = append(complete, !vm.Partial)
			}
		}
	}
	g.Expect(d.Tag(t.Context(), id, tags, nil)).To(Succeed())
	g.Expect(a.patches).To(Equal([]string{"virtualmachines/" + id, "virtualmachineinstances/" + id}))
	a.patches = nil
	g.Expect(d.Tag(t.Context(), id, tags, nil)).To(Succeed())
	g.Expect(a.patches).To(BeEmpty(), "it was done")

	copied, _ := theirs("copy", map[string]string{cloud.TagOwnership: "blue", cloud.TagToken: token})
	copied.UID = "uid-2"
	a.add(t, "virtualmachines", copied)
	ref := cloud.Reference{Token: token, OwnershipID: "blue", ProviderID: "kubevirt://" + id}
	one := ConsistOf(And(HaveField("ID", "uid-1"), HaveField("ProviderID", "kubevirt://"+id), HaveField("Token", token),
		HaveField("State", cloud.StateRunning)))
	g.Expect(d.List(t.Context())).To(one)
	g.Expect(d.Describe(t.Context(), []cloud.Reference{ref})).To(one)
	g.Expect(find(droverKeys...)).To(ConsistOf(And(HaveField("ID", id), HaveField("Token", token), HaveField("OwnershipID", "blue"),
		HaveField("Partial", false))))
	k, name, uid, err := object(find(droverKeys...)[0].Resource)
	g.Expect([]any{k, name, err}).To(Equal([]any{virtualMachines, id, nil}))
	g.Expect(uid).NotTo(BeEmpty())
	delete(a.objects, "virtualmachines/copy")

	a.gone = true
	g.Expect(d.Untag(t.Context(), []string{id}, droverKeys)).To(Succeed())
	a.gone = false
	untag := func() error { return d.Untag(t.Context(), []string{id, "gone"}, droverKeys) }
	a.patches = nil
	g.Expect(untag()).To(Succeed())
	g.Expect(a.patches).To(Equal([]string{"virtualmachineinstances/" + id, "virtualmachines/" + id}))
	withoutEmpty := strings.NewReplacer(`"annotations":{},`, "", `"kind":null,`, "").Replace
	g.Expect(withoutEmpty(a.text())).To(Equal(before), "all is as it was")
	g.Expect(cut(func() error { return d.Tag(t.Context(), id, tags, nil) })).To(Equal([]bool{false, true}))
	g.Expect(cut(untag)).To(Equal([]bool{false}))
	g.Expect(d.Tag(t.Context(), id, tags, nil)).To(Succeed())
	g.Expect(d.Untag(t.Context(), []string{id}, []string{"mcm.gardener.cloud/role"})).To(Succeed())
	g.Expect(find("mcm.gardener.cloud/role")).To(BeEmpty())
	g.Expect(find("empty")).To(ConsistOf(HaveField("Partial", false)))

	g.Expect(cloud.CodeOf(d.Tag(t.Context(), "gone", tags, nil))).To(Equal(cloud.NotFound))
	a.objects["virtualmachines/"+id]["metadata"].(map[string]any)["labels"] = map[string]any{}
	found, err := d.foreigners(t.Context(), id)
	g.Expect(err).NotTo(HaveOccurred())
	a.objects["virtualmachines/"+id]["metadata"].(map[string]any)["uid"] = "uid-3"
	change, _ := found[0].changes(tags)
	g.Expect(cloud.CodeOf(d.merge(t.Context(), virtualMachines, id, change))).To(Equal(cloud.Conflict), "another VM has the name now")
}

// TestTagged: what a plan compares with a VM.
func TestTagged(t *testing.T) {
	g := NewWithT(t)
	plain := func() *kubevirtv1.VirtualMachine { vm, _ := theirs("a", nil); return vm }
	for name, c := range map[string]struct {
		change func(*kubevirtv1.VirtualMachine)
		size   string
		image  string
	}{
		"instancetype": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Instancetype = &kubevirtv1.InstancetypeMatcher{Kind: "VirtualMachineInstancetype", Name: "small"}
		}, "virtualmachineinstancetype small", ""},
		"requests": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain = kubevirtv1.DomainSpec{Resources: kubevirtv1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("2Gi")},
			}}
		}, "2 CPUs, 2048 MiB", ""},
		"limits": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain = kubevirtv1.DomainSpec{Resources: kubevirtv1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("2Gi")},
				Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			}}
		}, "4 CPUs, 2048 MiB", ""},
		"topology": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.Template.Spec.Domain.CPU = &kubevirtv1.CPU{Cores: 2, Sockets: 3, Threads: 2}
		}, "12 CPUs, 4096 MiB", ""},
		"image at a URL": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []kubevirtv1.DataVolumeTemplateSpec{
				{Spec: cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://x/y"}}}}}
		}, "2 CPUs, 4096 MiB", "https://x/y"},
		"image of a registry": {func(vm *kubevirtv1.VirtualMachine) {
			vm.Spec.DataVolumeTemplates = []kubevirtv1.DataVolumeTemplateSpec{
				{Spec: cdiv1.DataVolumeSpec{Source: &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: ptr.To("docker://x")}}}}}
		}, "2 CPUs, 4096 MiB", "docker://x"},
		"no template": {func(vm *kubevirtv1.VirtualMachine) { vm.Spec.Template = nil }, "", ""},
	} {
		vm := plain()
		c.change(vm)
		g.Expect(foreign{vm: vm}.tagged()).To(And(HaveField("Type", c.size), HaveField("ImageID", c.image)), name)
	}
	vm := plain()
	vm.Spec.RunStrategy, vm.Spec.Running = nil, ptr.To(false)
	g.Expect(foreign{vm: vm}.tagged().State).To(Equal(cloud.StateStopped))
	pruned := pruneVM(vm)
	g.Expect(instance(&pruned, nil, nil).State).To(Equal(cloud.StateStopped))
	vm.Spec.Running = ptr.To(true)
	g.Expect(foreign{vm: vm}.tagged().State).To(Equal(cloud.StatePending))
	vm.OwnerReferences = []metav1.OwnerReference{{Kind: "Machine", Name: "a"}}
	g.Expect(foreign{vm: vm}.tagged().Tags).To(HaveKeyWithValue("metadata.ownerReferences", "Machine a"))
}
